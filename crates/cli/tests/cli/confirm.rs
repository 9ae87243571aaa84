//! What is destroyed is confirmed by its name, on a terminal.

use std::io::Write;
use std::process::{Command, Stdio};

use crate::common::daemon::Daemon;
use crate::common::have;

/// Runs a command on a terminal on which this is typed; what it shows, and its exit code.
pub fn on_terminal(daemon: &Daemon, arguments: &str, typed: &str) -> (String, Option<i32>) {
    let line = format!("{} {arguments}", env!("CARGO_BIN_EXE_forebay"));
    let mut script = Command::new("script");
    script.args(["-qec", &line, "/dev/null"]).env("TERM", "dumb");
    script.env("FOREBAY_CONTROL", daemon.dir.path("control.sock"));
    script.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = script.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    writeln!(stdin, "{typed}").unwrap();
    let output = child.wait_with_output().unwrap();
    drop(stdin);
    (String::from_utf8_lossy(&output.stdout).into_owned(), output.status.code())
}

#[test]
fn what_goes_is_confirmed_by_typing_its_name() {
    if !have("script") {
        return;
    }
    let mut daemon = Daemon::new("confirm");
    let ssd = daemon.ssd("ssd-0");
    let origin = daemon.dir.sparse("origin", 32 << 20);
    daemon.tell(&["pool", "create", "fast", "--ssd", ssd.to_str().unwrap()]);
    daemon.tell(&["volume", "add", "fast/vm", "--origin", origin.to_str().unwrap()]);
    for wrong in ["", "yes", "vm", "fast"] {
        let (text, code) = on_terminal(&daemon, "volume remove fast/vm", wrong);
        assert_eq!(code, Some(1), "{text}");
        assert!(
            text.contains("its data stays, on") && text.contains("Type the name of the volume"),
            "{text}"
        );
        assert!(text.contains("nothing was changed") && text.contains("type fast/vm"), "{text}");
    }
    let (text, code) = on_terminal(&daemon, "volume remove fast/vm", "fast/vm");
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("is the plain disk with all of its data"), "{text}");
    let (text, code) = on_terminal(&daemon, "pool destroy fast", "fats");
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("erases it from 1 cache device"), "{text}");
    let (text, code) = on_terminal(&daemon, "pool destroy fast", "fast");
    assert_eq!(code, Some(0), "{text}");
    assert_eq!(daemon.json(&["pool", "list"])["items"].as_array().unwrap().len(), 0);
    daemon.stop();
}
