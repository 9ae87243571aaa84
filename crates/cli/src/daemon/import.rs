//! Pools that are here and not open: found, made the daemon's own, opened as a person has decided.

use std::rc::Rc;

use forebay_control::api;
use forebay_control::error::Code;
use forebay_control::name::Name;
use forebay_engine::OpenOptions;

use super::plan::{self, refuse_partial_take_over};
use super::pools::check_absolute;
use super::scan::{Found, Sight, of_pool, paths_of, refuse_copies};
use super::state::Record;
use super::{Daemon, Slot};
use crate::Result;
use crate::failure::Failure;
use crate::text;

impl Daemon {
    /// Pools on devices that are here and that nobody has imported.
    pub(super) async fn importable(&self) -> Result<Vec<api::Pool>> {
        let found = self.scan(&[]).await?.members;
        let known = self.known_ids();
        let mut ids: Vec<String> = found.iter().map(|f| f.superblock.pool.to_string()).collect();
        ids.sort();
        ids.dedup();
        ids.retain(|id| !known.contains(id));
        Ok(ids.iter().filter_map(|id| self.describe_found(&of_pool(&found, id))).collect())
    }

    pub(super) fn known_ids(&self) -> Vec<String> {
        self.slots.borrow().values().map(|slot| slot.record.borrow().id.clone()).collect()
    }

    /// A pool that the daemon knows by this name or identity, and that is not open.
    pub(super) fn known_closed(&self, wanted: &str) -> Result<Option<Rc<Slot>>> {
        let slots: Vec<_> = self.slots.borrow().values().cloned().collect();
        let known = slots.into_iter().find(|slot| {
            let record = slot.record.borrow();
            record.name.as_str() == wanted || record.id == wanted
        });
        if let Some(failure) = known.as_ref().and_then(|slot| slot.kept_closed()) {
            return Err(failure);
        }
        match known {
            Some(slot) if slot.open().is_some() => {
                let what = format!("pool \"{wanted}\" is open already");
                Err(Failure::coded(Code::Exists, what)
                    .hint(format!("`forebay pool show {}`", slot.record.borrow().name)))
            }
            other => Ok(other),
        }
    }

    /// What an import would open, as its devices are found, and whether it is new here.
    pub(super) async fn look_for_import(
        &self,
        body: &api::ImportPool,
    ) -> Result<(api::Pool, bool)> {
        body.ssds.iter().try_for_each(|path| check_absolute(path))?;
        let sight = self.scan(&body.ssds).await?;
        let known = self.known_closed(&body.pool)?;
        let found = &sight.members;
        let id = match &known {
            Some(slot) => {
                paths_of(&slot.record.borrow(), &sight)?;
                slot.record.borrow().id.clone()
            }
            None => self.find_pool(&body.pool, found)?.0,
        };
        let pool = self.describe_found(&of_pool(found, &id)).ok_or_else(|| {
            Failure::coded(Code::NotFound, format!("no cache device of pool {id} is there"))
        })?;
        Ok((pool, known.is_none()))
    }

    /// Opens a pool that is known and not open, or that is on devices which are here.
    pub(super) async fn import_pool(&self, body: api::ImportPool) -> Result<api::Pool> {
        body.ssds.iter().try_for_each(|path| check_absolute(path))?;
        if body.accept_missing && body.confirm.as_ref() != Some(&body.pool) {
            let what =
                format!("accept_missing: nobody has confirmed what pool \"{}\" loses", body.pool);
            return Err(Failure::coded(Code::BadRequest, what)
                .hint("say what `pool` says once more as `confirm`"));
        }
        if body.take_over {
            // Before anything is tried: the pool is the other host's as before.
            refuse_partial_take_over(&body, &self.look_for_import(&body).await?.0)?;
        }
        let sight = self.scan(&body.ssds).await?;
        let (accept_missing, take_over) = (body.accept_missing, body.take_over);
        let decided = OpenOptions { accept_missing, take_over, ..self.claiming() };
        let (slot, is_new) = match self.known_closed(&body.pool)? {
            Some(slot) => (slot, false),
            None => (self.adopt_found(&body.pool, &sight).await?, true),
        };
        let name = slot.record.borrow().name.to_string();
        // With none of its devices it goes on being looked for.
        paths_of(&slot.record.borrow(), &sight)?;
        let was = self.leave_bypass(&slot, accept_missing).await?;
        let Err(failure) = self.start_pool(&slot, &sight, decided).await else {
            return self.show_pool(&name);
        };
        if is_new {
            // It may be somebody else's; the next start of this daemon must leave it alone.
            let id = slot.record.borrow().id.clone();
            self.slots.borrow_mut().remove(&name);
            self.state.forget(&id, false).await?;
        }
        if let Some(was) = was {
            self.go_back_to_bypass(&slot, &was, &failure).await;
        }
        if failure.code() != Code::NeedsDecision {
            return Err(failure);
        }
        // Where the reason has a hint of its own, `--accept-missing` may not help.
        Err(failure.or_hint(&plan::accept_missing(&body)))
    }

    /// Identity and name of the pool among those found that is called this, and that may be
    /// imported.
    fn find_pool(&self, wanted: &str, found: &[Found]) -> Result<(String, Name)> {
        let mut ids: Vec<(String, String)> = found
            .iter()
            .map(|f| (f.superblock.pool.to_string(), f.superblock.name.clone()))
            .filter(|(id, name)| id == wanted || name == wanted)
            .collect();
        ids.sort();
        ids.dedup_by(|a, b| a.0 == b.0);
        let (id, name) = match ids.as_slice() {
            [one] => one.clone(),
            [] => {
                let what = format!("no cache device of a pool \"{wanted}\" was found");
                let known = found.iter().map(|it| it.superblock.name.as_str());
                let nearest = text::did_you_mean(wanted, known);
                return Err(Failure::coded(Code::NotFound, what).hint(format!(
                    "{nearest}name its devices with --ssd; `forebay pool import` lists what is found",
                )));
            }
            several => {
                let ids: Vec<_> = several.iter().map(|(id, _)| id.as_str()).collect();
                let what = format!("several pools are called \"{wanted}\"");
                return Err(Failure::new(what)
                    .hint(format!("name the one you mean by its identity: {}", ids.join(", "))));
            }
        };
        // By its name it is not known where its record cannot be read.
        self.known_closed(&id)?;
        refuse_copies(&of_pool(found, &id))?;
        self.refuse_taken(&name)?;
        let name = name.parse::<Name>().map_err(|why| {
            Failure::new(why).hint("this pool was not made by `forebay pool create`")
        })?;
        Ok((id, name))
    }

    /// Makes a pool that was found the daemon's own.
    async fn adopt_found(&self, wanted: &str, sight: &Sight) -> Result<Rc<Slot>> {
        let (id, name) = self.find_pool(wanted, &sight.members)?;
        let own = of_pool(&sight.members, &id);
        let ssds = own.iter().map(|found| found.path.clone()).collect();
        let spares = sight.spares_of(&id);
        let spares = spares.map(|s| (s.mark.device.to_string(), s.path.clone())).collect();
        let record = Record { ssds, spares, ..Record::new(name, id) };
        self.state.store(&record).await?;
        Ok(self.add_slot(record))
    }
}
