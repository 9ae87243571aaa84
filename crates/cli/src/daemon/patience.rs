//! Opening origins that may not answer; see [`crate::patience`]. The volume is `origin-missing` then.

use std::path::{Path, PathBuf};
use std::rc::Rc;

use forebay_control::error::Code;
use forebay_device::BlockDevice;
use forebay_device::real::file::FileDevice;
use forebay_device::real::open::{OpenError, open, typed};
use forebay_device::real::reactor::Reactor;
use forebay_device::runtime::{MILLISECOND, Nanos, Runtime};
use forebay_engine::read_superblock;
use forebay_export::nbd::client::Place;

use super::Daemon;
use super::answer::stopping;
use super::uses::{Use, user_of};
use super::volumes::{OwnExport, refuse_own};
use crate::Result;
use crate::blocking::{begin, on_thread};
use crate::failure::Failure;
use crate::flag::race;
use crate::members::Identity;
use crate::origin::{self, Origin};
use crate::patience::{ANSWER_TIME_MAX, no_answer};
use crate::remote;

/// How often a device in use is tried again: a claim that ends by itself ends in milliseconds.
const IN_USE_INTERVAL: Nanos = 20 * MILLISECOND;

/// What opening has come to; a failure if the path is not even to be tried, or it cannot be used.
pub(super) type Found = Result<std::result::Result<Origin, OpenError>>;

fn no_thread(error: &std::io::Error) -> Failure {
    Failure::system("start a thread", error)
}

async fn open_export(reactor: &Rc<Reactor>, place: Place, own: Vec<OwnExport>) -> Result<Origin> {
    let at = place.clone();
    let looked = on_thread(move || refuse_own(&at, &own)).await;
    looked.map_err(|error| no_thread(&error))??;
    Ok(Origin::Nbd(remote::open(reactor, &place).await?))
}

async fn open_file(reactor: &Rc<Reactor>, at: PathBuf, uses: Vec<Use>) -> Found {
    let call = move || {
        if let Some(user) = user_of(&uses, Identity::of(&at)) {
            return Err(user.failure_of_origin(&at));
        }
        Ok::<_, Failure>(open(&at, &origin::options()))
    };
    let opened = on_thread(call).await.map_err(|error| no_thread(&error))??;
    Ok(opened.map(|opened| Origin::File(Rc::new(FileDevice::of(reactor, opened)))))
}

impl Daemon {
    /// Opens an origin; while it is in use, tries for as long as `patience` says. Code
    /// [`Code::NotFound`] if nothing is there.
    pub(super) async fn open_device(&self, path: &Path, patience: Nanos) -> Result<Origin> {
        let until = self.reactor.now().saturating_add(patience);
        loop {
            match self.open_patiently(path).await? {
                Ok(device) => return Ok(device),
                Err(OpenError::InUse { .. }) if self.reactor.now() < until => {
                    let _ = self.runtime().sleep(IN_USE_INTERVAL).await;
                }
                Err(error @ OpenError::NotFound { .. }) => {
                    return Err(
                        Failure::coded(Code::NotFound, error.to_string()).hint(error.hint())
                    );
                }
                Err(OpenError::Size { path, size_bytes: 0, .. }) => {
                    let at = typed(&path);
                    // It may have holes, other than a cache device.
                    let hint = match self.is_awaited_at(&path) {
                        true => {
                            "a volume has its data there: restore it, with the size that it had"
                                .to_owned()
                        }
                        false => format!(
                            "give a file the size that the volume is to have: `truncate -s 10G {at}`; a drive needs a \
                             medium in it"
                        ),
                    };
                    return Err(Failure::new(format!("the origin {at} is empty")).hint(hint));
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Opens an origin, and has it answer a read and a flush: one that hangs is found out here, where
    /// nobody waits behind it.
    async fn open_patiently(&self, path: &Path) -> Found {
        let place = path.to_str().map_or(Ok(None), remote::place)?;
        let (uses, own) = (self.uses(), self.own_exports());
        let reactor = Rc::clone(&self.reactor);
        let owned = path.to_owned();
        let call = move || async move {
            let opened = match place {
                Some(place) => Ok(open_export(&reactor, place, own).await?),
                None => open_file(&reactor, owned.clone(), uses).await?,
            };
            let Ok(origin) = opened else { return Ok(opened) };
            let device = origin.device();
            // What is on it is for the caller to judge.
            let _ = read_superblock(&*device).await;
            let flushed = (&*device as &dyn BlockDevice).flush().done().await;
            flushed.map_err(|error| Failure::io(format!("flush {}", owned.display()), error))?;
            Ok(Ok(origin))
        };
        let found = self.opening.ask(&self.reactor, path, call, self.end.wait()).await;
        found.unwrap_or_else(|| {
            Err(Failure::new(format!("{} does not answer", path.display())).hint(
                "see `dmesg` for the device, `mount` for its file system, or the log of its server",
            ))
        })
    }

    /// Runs `call`, which blocks and asks `path`, on a thread.
    ///
    /// # Errors
    /// If there is no answer in time: the call goes on by itself then, and until it returns the path is not asked
    /// again.
    pub(super) async fn patiently<T: Send + 'static>(
        &self,
        path: impl std::fmt::Display,
        call: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T> {
        let name = path.to_string();
        self.silent.borrow_mut().retain(|_, has_returned| !has_returned());
        if self.silent.borrow().contains_key(&name) {
            return Err(no_answer(path));
        }
        let answer = begin(call).map_err(|error| no_thread(&error))?;
        let over = race(self.runtime().sleep(ANSWER_TIME_MAX), self.end.wait());
        race(answer.wait(), over).await.map_err(|_| {
            self.silent.borrow_mut().insert(name, answer.watch());
            if self.end.is_raised() { stopping() } else { no_answer(path) }
        })
    }

    /// Which device is at a path that somebody has named.
    pub(super) async fn identity_at(&self, path: &Path) -> Result<Option<Identity>> {
        let at = path.to_owned();
        self.patiently(path.display(), move || Identity::of(&at)).await
    }
}
