//! Opening origins that may not answer: a disk behind a dead path, a file system over a network.
//!
//! * Opening happens on a thread. It is waited for [`ANSWER_TIME_MAX`]; then the volume is
//!   `origin-missing` and the call goes on by itself, for the system has no way to end it.
//! * There is one such call for a path at a time, however often it is tried; when it returns after
//!   all, the next attempt uses what it has opened.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use forebay_control::error::Code;
use forebay_device::real::file::FileDevice;
use forebay_device::real::open::{OpenError, Opened, open};
use forebay_device::runtime::{MILLISECOND, Nanos, Runtime, SECOND};

use super::Daemon;
use crate::Result;
use crate::blocking::{Answer, begin};
use crate::failure::Failure;
use crate::flag::race;
use crate::origin;

/// How long a device may take to be opened before the daemon turns to something else: what sleeps
/// wakes up in that time, and a change that waits behind it is not taken for lost.
const ANSWER_TIME_MAX: Nanos = 5 * SECOND;

/// How often a device in use is tried again: a claim that ends by itself ends in milliseconds.
const IN_USE_INTERVAL: Nanos = 20 * MILLISECOND;

/// What opening has come to; a failure if the path is not even to be tried.
type Found = Result<std::result::Result<Opened, OpenError>>;

/// Calls that have not returned yet, by path.
#[derive(Default)]
pub(super) struct Pending(RefCell<BTreeMap<PathBuf, Answer<Found>>>);

impl Pending {
    /// Gives up what a path may still bring.
    pub(super) fn forget(&self, path: &Path) {
        self.0.borrow_mut().remove(path);
    }
}

impl Daemon {
    /// Opens an origin; while it is in use, tries for as long as `patience` says. Code
    /// [`Code::NotFound`] if nothing is there.
    pub(super) async fn open_device(&self, path: &Path, patience: Nanos) -> Result<FileDevice> {
        let until = self.reactor.now().saturating_add(patience);
        loop {
            match self.open_patiently(path).await? {
                Ok(opened) => return Ok(FileDevice::of(&self.reactor, opened)),
                Err(OpenError::InUse { .. }) if self.reactor.now() < until => {
                    let _ = self.runtime().sleep(IN_USE_INTERVAL).await;
                }
                Err(error @ OpenError::NotFound { .. }) => {
                    return Err(
                        Failure::coded(Code::NotFound, error.to_string()).hint(error.hint())
                    );
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Opens the origin at a path, on a thread; waits a while, and not at all if the last attempt is
    /// still under way.
    async fn open_patiently(&self, path: &Path) -> Found {
        let known = self.opening.0.borrow_mut().remove(path);
        let span = if known.is_some() { 0 } else { ANSWER_TIME_MAX };
        let answer = match known {
            Some(answer) => answer,
            None => {
                let (path, caches) = (path.to_owned(), self.identities());
                let call = move || {
                    origin::refuse_cache(&path, &caches)?;
                    Ok(open(&path, &origin::options()))
                };
                begin(call).map_err(|error| Failure::system("start a thread", &error))?
            }
        };
        let over = race(self.runtime().sleep(span), self.end.wait());
        if let Ok(found) = race(answer.wait(), over).await {
            return found;
        }
        self.opening.0.borrow_mut().insert(path.to_owned(), answer);
        Err(Failure::new(format!("{} does not answer", path.display())).hint(
            "see `dmesg` for the device, or `mount` for its file system; it is tried again by itself",
        ))
    }
}
