//! What this daemon uses files and devices for, by name: to the kernel all of it is one process.

use std::path::{Path, PathBuf};

use forebay_device::real::open::typed;

use forebay_engine::format::MemberState;

use super::Daemon;
use crate::Result;
use crate::failure::Failure;
use crate::members::{Identity, Members};

/// A cache device or a spare of an open pool.
#[derive(Clone)]
pub(super) struct Use {
    identity: Identity,
    /// As in "a spare of pool "fast"".
    what: String,
    /// The command that frees it.
    free: String,
}

/// Whoever has this file or device.
pub(super) fn user_of(uses: &[Use], own: Option<Identity>) -> Option<&Use> {
    uses.iter().find(|it| Some(it.identity) == own)
}

impl Use {
    /// That it is at `path`, and how to free it.
    pub(super) fn failure(&self, path: &Path) -> Failure {
        Failure::new(format!("{} is {}", path.display(), self.what))
            .hint(format!("use another one, or take it out first: {}", self.free))
    }

    /// The same for what is to be an origin.
    pub(super) fn failure_of_origin(&self, path: &Path) -> Failure {
        self.failure(path).hint(format!(
            "a cache device holds the cache alone: give the origin another file or disk, or take this one out first: {}",
            self.free
        ))
    }
}

impl Daemon {
    /// Cache devices and spares of all open pools, which nobody may use as anything else.
    pub(super) fn uses(&self) -> Vec<Use> {
        let mut uses = Vec::new();
        for (slot, open) in self.open_pools() {
            let pool = slot.record.borrow().name.clone();
            let members = open.members.borrow();
            // The last one goes with its pool.
            let superblock = open.pool.superblock();
            let own = superblock.members.iter().filter(|it| it.state != MemberState::Removed);
            let is_only = own.count() == 1;
            let mut add = |role: &str, members: &Members, is_only: bool| {
                let there = members.files().map(|(path, _)| path).zip(members.identities());
                uses.extend(there.map(|(path, identity)| Use {
                    identity,
                    what: format!("a {role} of pool \"{pool}\""),
                    free: match is_only {
                        true => format!("`forebay pool destroy {pool}`"),
                        false => format!("`forebay pool device remove {pool} {}`", typed(path)),
                    },
                }));
            };
            add("cache device", &members, is_only);
            open.spares.ready().iter().for_each(|(_, members)| add("spare", members, false));
        }
        uses
    }

    /// The same failure to open one of `paths`, with what the daemon itself uses it for if that is why.
    pub(super) async fn by_whom(&self, paths: &[PathBuf], failure: Failure) -> Result<Failure> {
        // To the kernel the daemon is a process as any other, and of a disk it does not name the process.
        if !failure.what().contains(" is in use") {
            return Ok(failure);
        }
        let begins = |path: &&PathBuf| failure.what().starts_with(&path.display().to_string());
        let Some(path) = paths.iter().find(begins) else { return Ok(failure) };
        let own = self.identity_at(path).await?;
        if let Some(user) = user_of(&self.uses(), own) {
            return Ok(user.failure(path));
        }
        let mut origins = self.origins().await?.into_iter();
        Ok(match origins.find(|(_, other, _)| own.is_some() && *other == own) {
            Some((.., volume)) => {
                Failure::new(format!("{} is the origin of volume \"{volume}\"", path.display()))
                    .hint(format!("take the volume away first: `forebay volume remove {volume}`"))
            }
            None => failure,
        })
    }
}
