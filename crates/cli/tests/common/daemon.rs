//! A daemon of a test's own: its configuration, sockets and devices are in one directory.

use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use super::{Dir, forebay, run, signal, stderr};

/// Smallest cache device.
pub const SSD_BYTES: usize = 512 << 20;

pub struct Daemon {
    pub dir: Dir,
    child: Option<Child>,
}

impl Daemon {
    /// Starts one in a new directory.
    pub fn new(name: &str) -> Daemon {
        Daemon::with(name, |_| String::new())
    }

    /// The same; `more` is put at the end of its configuration.
    pub fn with(name: &str, more: impl FnOnce(&Dir) -> String) -> Daemon {
        let dir = Dir::new(name);
        let root = dir.0.display();
        let mut config = format!(
            "state_dir = \"{root}/state\"\nrun_dir = \"{root}/run\"\n\
             [control]\nsocket = \"{root}/control.sock\"\n\
             [devices]\nscan = [\"{root}/ssd-*\"]\nwait_s = 2\n"
        );
        config.push_str(&more(&dir));
        std::fs::write(dir.path("forebay.toml"), config).unwrap();
        let mut daemon = Daemon { dir, child: None };
        daemon.start();
        daemon
    }

    /// `forebay serve` on this directory.
    pub fn command(&self) -> Command {
        let mut command = forebay();
        command.arg("serve").arg("--config").arg(self.dir.path("forebay.toml"));
        command.env("FOREBAY_LOG", "warn").stdin(Stdio::null());
        command
    }

    /// Starts and waits until it answers and no pool waits.
    pub fn start(&mut self) {
        self.spawn();
        self.until("no pool waits", |status| !status.contains("\"waiting\""));
    }

    /// Starts, and does not wait for anything.
    pub fn spawn(&mut self) {
        self.child = Some(self.command().spawn().unwrap());
    }

    /// Waits until it answers, and its status is like this.
    #[allow(clippy::disallowed_methods, reason = "a test waits")]
    pub fn until(&self, what: &str, holds: impl Fn(&str) -> bool) {
        for _ in 0..600 {
            let output = self.ask(&["status", "--json"]);
            let text = String::from_utf8_lossy(&output.stdout);
            if output.status.success() && holds(&text) {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        panic!("never: {what}");
    }

    /// Ends it as a power cut of the process.
    pub fn kill(&mut self) {
        let mut child = self.child.take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Ends it with SIGTERM; it must end well.
    pub fn stop(&mut self) {
        let mut child = self.child.take().unwrap();
        signal(child.id(), "TERM");
        assert!(child.wait().unwrap().success());
    }

    /// A cache device.
    pub fn ssd(&self, name: &str) -> PathBuf {
        self.dir.full(name, SSD_BYTES)
    }

    /// Runs a command against it.
    pub fn ask(&self, arguments: &[&str]) -> Output {
        let mut command = forebay();
        command.args(arguments).env("FOREBAY_CONTROL", self.dir.path("control.sock"));
        run(&mut command)
    }

    /// The same; it must succeed. Its standard output.
    pub fn tell(&self, arguments: &[&str]) -> String {
        let output = self.ask(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", stderr(&output));
        String::from_utf8(output.stdout).unwrap()
    }

    /// The same as JSON.
    pub fn json(&self, arguments: &[&str]) -> serde_json::Value {
        let mut arguments = arguments.to_vec();
        arguments.push("--json");
        let value: serde_json::Value = serde_json::from_str(&self.tell(&arguments)).unwrap();
        assert_eq!(value["schema"], 1, "{arguments:?}");
        value
    }

    /// The same; it must fail, with these words in `error:` and `hint:`.
    pub fn refused(&self, arguments: &[&str], error: &str, hint: &str) {
        let output = self.ask(arguments);
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {text}");
        let line = |start: &str| text.lines().find_map(|line| line.strip_prefix(start));
        assert!(line("error: ").is_some_and(|l| l.contains(error)), "{arguments:?}: {text}");
        assert!(line("hint: ").is_some_and(|l| l.contains(hint)), "{arguments:?}: {text}");
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
