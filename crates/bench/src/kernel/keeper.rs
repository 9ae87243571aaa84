//! Takes down what a run has made of a machine, also if the run is interrupted or killed.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use forebay_device::real::open::typed;

use super::ground::with_tools;
use crate::bench::Result;

/// What a line of undoing can say. All of them look whether the thing is there and is the run's, and say by their
/// status whether it is gone.
const WORDS: &str = r#"
unmount() { ! mountpoint -q "$1" || umount "$1" && { [ ! -d "$1" ] || rmdir "$1"; }; }

# A dm device, which may have been left suspended with requests that wait.
remove() {
    dmsetup info "$1" || return 0
    dmsetup resume "$1"
    dmsetup remove "$1"
}

# The loop devices of a file, which may have been removed.
detach() {
    set -- "$(readlink -m "$1")"
    for loop in /sys/block/loop*; do
        [ -e "$loop/loop/backing_file" ] || continue
        file=$(cat "$loop/loop/backing_file")
        [ "$(readlink -m "${file% (deleted)}")" = "$1" ] || continue
        losetup -d "/dev/${loop##*/}"
        [ ! -e "$loop/loop/backing_file" ] || return 1
    done
}

# A setting of the kernel, to what it was.
put_back() { echo "$2" >"$1"; }

# The first bytes, where whoever looks for something to keep would find it.
wipe() { [ ! -b "$1" ] || dd if=/dev/zero of="$1" bs=1M count=1 oflag=direct; }

# An nbd device, if it is still connected by the process of that number, in a file.
disconnect() {
    [ -e "/sys/block/$1/pid" ] && [ -e "$2" ] || return 0
    [ "$(cat "/sys/block/$1/pid")" = "$(cat "$2")" ] || return 0
    nbd-client -d "/dev/$1"
    [ ! -e "/sys/block/$1/pid" ]
}

# A bcache: the names of its slow disk and of its SSD.
unregister() {
    [ ! -e "/sys/block/$1/bcache/stop" ] || echo 1 >"/sys/block/$1/bcache/stop"
    [ ! -e "/sys/block/$2/bcache/set/stop" ] || echo 1 >"/sys/block/$2/bcache/set/stop"
    [ ! -e "/sys/block/$1/bcache" ] && [ ! -e "/sys/block/$2/bcache" ]
}

# Modules; one that somebody else has begun to use stays.
unload() { rmmod "$@" || true; }
"#;

/// Reads lines until its input ends, that is for the process at the other end to do so, whatever it dies of. Then it ends
/// the processes of the run, which have its name among their variables, and executes the lines, the last one first,
/// each of them for up to ten seconds.
const SCRIPT: &str = r#"
trap '' INT TERM HUP
lines=
while IFS= read -r line; do lines="$line
$lines"; done
sweeps=0
while [ $sweeps -lt 50 ]; do
    # Processes that end meanwhile are errors to grep, whatever it has found.
    found=$(grep -slzxF -e "NAME=$1" /proc/[0-9]*/environ)
    [ "$found" ] || break
    for file in $found; do
        pid=${file#/proc/}
        kill -KILL "${pid%/environ}" 2>/dev/null
    done
    sweeps=$((sweeps + 1))
    sleep 0.1
done
printf %s "$lines" | {
    left=0
    while IFS= read -r line; do
        tries=0
        until (eval "$line") >/dev/null 2>&1; do
            tries=$((tries + 1))
            [ $tries -lt 50 ] || { echo "not taken down: $line" >&2; left=1; break; }
            sleep 0.2
        done
    done
    exit $left
}
"#;

/// A process that takes down, in reverse order, what it was told of.
pub(super) struct Keeper(Child);

impl Keeper {
    /// Starts it for a run of that name.
    ///
    /// # Errors
    /// If there is no sh.
    pub(super) fn start(name: &str) -> Result<Self> {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("{WORDS}{SCRIPT}"), "sh", name]).process_group(0);
        with_tools(&mut command).current_dir("/").stdin(Stdio::piped()).stdout(Stdio::null());
        command.spawn().map(Self).map_err(|e| format!("running sh: {e}"))
    }

    /// Notes a line that undoes what is about to be done, with variables for it.
    ///
    /// # Errors
    /// If nobody is there to note it.
    pub(super) fn undo(&mut self, variables: &[(&str, String)], text: &str) -> Result<()> {
        let assigned = variables.iter().map(|(key, value)| {
            let value = typed(value.as_ref());
            format!("{key}={value}; ")
        });
        let line = format!("{}{text}\n", assigned.collect::<String>());
        let pipe = self.0.stdin.as_mut().ok_or("nobody takes down what is made any more")?;
        pipe.write_all(line.as_bytes()).map_err(|e| format!("noting how to take down: {e}"))
    }

    /// Has everything taken down.
    ///
    /// # Errors
    /// If something is left, which it has told.
    pub(super) fn end(mut self) -> Result<()> {
        match self.finish() {
            Some(true) => Ok(()),
            _ => Err("not all that was made could be taken down".to_owned()),
        }
    }

    fn finish(&mut self) -> Option<bool> {
        drop(self.0.stdin.take());
        self.0.wait().ok().map(|status| status.success())
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        let _ = self.finish();
    }
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use super::*;
    use crate::bench::Place;

    /// A directory, and a name for a run that no other test has.
    fn place(name: &str) -> (Place, String) {
        let place = Place::new(&std::env::temp_dir()).expect("a directory");
        (place, format!("forebay-bench-{name}-{}", std::process::id()))
    }

    fn at(place: &Place, name: &str) -> (PathBuf, Vec<(&'static str, String)>) {
        let path = place.path().join(name);
        let variables = vec![("FILE", path.display().to_string())];
        (path, variables)
    }

    #[test]
    fn what_was_made_last_is_taken_down_first() {
        let (place, name) = place("order");
        let (path, variables) = at(&place, "it's told");
        let mut keeper = Keeper::start(&name).expect("a keeper");
        for word in ["first", "second", "third"] {
            keeper.undo(&variables, &format!("echo {word} >>\"$FILE\"")).expect("noted");
        }
        keeper.end().expect("all is done");
        assert_eq!(std::fs::read_to_string(path).expect("a file"), "third\nsecond\nfirst\n");
    }

    #[test]
    fn what_does_not_work_at_first_is_tried_again() {
        let (place, name) = place("again");
        let (path, variables) = at(&place, "tries");
        let mut keeper = Keeper::start(&name).expect("a keeper");
        let third = "echo x >>\"$FILE\"; [ \"$(wc -l <\"$FILE\")\" = 3 ]";
        keeper.undo(&variables, third).expect("noted");
        keeper.end().expect("it worked in the end");
        assert_eq!(std::fs::read_to_string(path).expect("a file"), "x\nx\nx\n");
    }

    #[test]
    fn processes_of_a_run_end_before_anything_is_taken_down() {
        let (place, name) = place("processes");
        let (path, variables) = at(&place, "alive");
        let start = |name: &str| {
            let mut command = Command::new("sleep");
            command.arg("600").env("NAME", name).spawn().expect("a process")
        };
        let (mut own, mut other) = (start(&name), start(&format!("{name}-other")));
        let mut keeper = Keeper::start(&name).expect("a keeper");
        let is_alive =
            format!("kill -0 {} && ! grep -q '^State:.Z' /proc/{}/status", own.id(), own.id());
        keeper
            .undo(&variables, &format!("! {{ {is_alive}; }} || echo x >\"$FILE\""))
            .expect("noted");
        let ended = keeper.end();
        let has_ended = |child: &mut Child| child.try_wait().expect("a process").is_some();
        let (is_own_gone, is_other_gone) = (has_ended(&mut own), has_ended(&mut other));
        for child in [&mut own, &mut other] {
            let _ = child.kill();
            child.wait().expect("it ends");
        }
        ended.expect("nothing is left");
        assert!(is_own_gone, "it belonged to the run");
        assert!(!is_other_gone, "it did not");
        assert!(!path.exists());
    }

    #[test]
    fn what_was_never_made_is_no_failure() {
        let (place, name) = place("never");
        let (path, variables) = at(&place, "nothing");
        let mut keeper = Keeper::start(&name).expect("a keeper");
        for line in [
            "unmount \"$FILE\"",
            "detach \"$FILE\"",
            "wipe \"$FILE\"",
            "disconnect no-such-nbd \"$FILE\"",
            "unregister no-such-disk no-such-ssd",
        ] {
            keeper.undo(&variables, line).expect("noted");
        }
        keeper.end().expect("nothing is left");
        assert!(!Path::new(&path).exists());
    }
}
