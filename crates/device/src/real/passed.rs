//! Descriptors that whoever started this process has passed to it, as systemd does: numbers from 3
//! on, each with a name (sd_listen_fds(3)).

use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// The first one's number: `SD_LISTEN_FDS_START`.
const FIRST: RawFd = 3;

/// Most that are taken: more than a daemon has sockets, so a larger number is a mistake.
const PASSED_MAX: usize = 4096;

/// What systemd calls one that has no name.
const NAMELESS: &str = "unknown";

/// See the head of the file.
#[derive(Debug, Default)]
pub struct Passed {
    /// The descriptors with their names, in the order of their numbers.
    pub descriptors: Vec<(String, OwnedFd)>,
    /// What of the variables makes no sense, one sentence each.
    pub complaints: Vec<String>,
}

impl Passed {
    /// Takes them. To be called before the process opens anything, for a variable that lies would
    /// name a descriptor of our own; a second call finds none.
    pub fn take() -> Passed {
        static TAKEN: AtomicBool = AtomicBool::new(false);
        let mut passed = Passed::default();
        if TAKEN.swap(true, Ordering::Relaxed) {
            return passed;
        }
        let variable = |name| {
            let value = std::env::var_os(name)?;
            Some(value.to_string_lossy().into_owned())
        };
        let (pid, count) = (variable("LISTEN_PID"), variable("LISTEN_FDS"));
        let names = names(pid, count, variable("LISTEN_FDNAMES"), std::process::id());
        passed.complaints.extend(names.complaint);
        for (number, name) in (FIRST..).zip(names.list) {
            // SAFETY: no pointers; a number that is not open is an error.
            let flags = unsafe { libc::fcntl(number, libc::F_GETFD) };
            if flags < 0 {
                passed.complaints.push(format!(
                    "LISTEN_FDS speaks of descriptor {number} (\"{name}\"), which is not open"
                ));
                continue;
            }
            // SAFETY: no pointers; the descriptor is open.
            unsafe { libc::fcntl(number, libc::F_SETFD, flags | libc::FD_CLOEXEC) };
            // SAFETY: it is open, and who passed it says that it is ours; nothing else of this
            // process has it, because nothing was opened before.
            let descriptor = unsafe { OwnedFd::from_raw_fd(number) };
            passed.descriptors.push((name, descriptor));
        }
        passed
    }
}

/// The names of the descriptors, one for each.
#[derive(Debug, Default, PartialEq)]
struct Names {
    list: Vec<String>,
    complaint: Option<String>,
}

/// What the variables say. Those of another process are left alone: it has started this one.
fn names(pid: Option<String>, count: Option<String>, names: Option<String>, own: u32) -> Names {
    let wrong = |what| Names { list: Vec::new(), complaint: Some(what) };
    let Some(count) = count else { return Names::default() };
    match pid.as_deref().map(str::parse::<u32>) {
        Some(Ok(pid)) if pid == own => {}
        Some(Ok(_)) => return Names::default(),
        Some(Err(_)) | None => {
            let pid = pid.unwrap_or_default();
            return wrong(format!("LISTEN_PID is {pid:?}, no process: LISTEN_FDS is left alone"));
        }
    }
    let Some(count) = count.parse::<usize>().ok().filter(|count| *count <= PASSED_MAX) else {
        return wrong(format!("LISTEN_FDS is {count:?}, no number up to {PASSED_MAX}"));
    };
    let nameless = || vec![NAMELESS.to_owned(); count];
    let Some(names) = names else { return Names { list: nameless(), complaint: None } };
    let list: Vec<String> = names.split(':').map(str::to_owned).collect();
    if list.len() == count || (count == 0 && names.is_empty()) {
        return Names { list: list.into_iter().take(count).collect(), complaint: None };
    }
    let what = format!("LISTEN_FDNAMES has {} names for {count} descriptors", list.len());
    Names { list: nameless(), complaint: Some(what) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(pid: &str, count: &str, given: Option<&str>) -> (Vec<String>, String) {
        let of = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        let found = names(of(pid), of(count), given.map(str::to_owned), 7);
        (found.list, found.complaint.unwrap_or_default())
    }

    #[test]
    fn descriptors_are_known_by_the_names_that_go_with_them() {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let none = (Vec::new(), String::new());
        assert_eq!(
            said("7", "2", Some("control:fast/vm")),
            (names(&["control", "fast/vm"]), String::new())
        );
        assert_eq!(said("7", "1", None), (names(&["unknown"]), String::new()));
        assert_eq!(said("7", "0", Some("")), none);
        assert_eq!(said("7", "", Some("a")), none, "no LISTEN_FDS");
        assert_eq!(said("8", "2", Some("a:b")), none, "another process's");
    }

    #[test]
    fn variables_that_make_no_sense_are_told() {
        for (pid, count, names, words) in [
            ("", "1", None, "LISTEN_PID is \"\""),
            ("x", "1", None, "LISTEN_PID is \"x\""),
            ("7", "-1", None, "LISTEN_FDS is \"-1\""),
            ("7", "4097", None, "up to 4096"),
            ("7", "99999999999999999999", None, "LISTEN_FDS"),
        ] {
            let (list, complaint) = said(pid, count, names);
            assert!(list.is_empty() && complaint.contains(words), "{complaint}");
        }
        let (list, complaint) = said("7", "2", Some("a"));
        assert_eq!(list, ["unknown", "unknown"]);
        assert_eq!(complaint, "LISTEN_FDNAMES has 1 names for 2 descriptors");
    }
}
