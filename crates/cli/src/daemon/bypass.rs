//! Pools that are served without their cache devices, straight from the origins, as a person has asked.
//!
//! * Only volumes whose origins have everything, as the pool's witness knows; the others are withheld, and named.
//! * The order (INV-106) is: what runs of the pool is ended; the witness of an epoch that no cache device knows; the record;
//!   only then clients. Cut off before the witness, nothing has happened. Cut off behind it, the pool waits as before, and
//!   with its devices it needs a decision. Behind the record it is served so at each start, whatever devices are there.
//! * The way back is a person's, too: the record forgets it, then the pool is opened as one whose devices are stale. What
//!   they have of clean data is not believed, for the origins were written to.

use std::rc::Rc;

use forebay_control::api::{self, Plan};
use forebay_control::error::Code;
use forebay_control::name::{Name, VolumeName};
use forebay_engine::format::{VolumeRecord, Witness};
use forebay_engine::witness::{WithoutMembers, without_members};

use super::direct::{Direct, hex, listed};
use super::plan::plan;
use super::scan::{of_pool, refuse_later};
use super::state::{Bypassed, BypassedVolume, Record};
use super::volumes::api_mode;
use super::{Daemon, Open, Serving, Slot, State};
use crate::Result;
use crate::failure::Failure;
use crate::text::plural;

/// What becomes of the cache devices, for who takes them elsewhere.
pub(super) const STALE: &str =
    "its cache devices are stale: erase them before they are used anywhere";

/// The error for what takes the cache.
pub(super) fn without_cache(pool: &str) -> Failure {
    let what = format!("pool \"{pool}\" is served without its cache devices");
    Failure::coded(Code::Refused, what)
        .hint(format!("`forebay pool show {pool}` says how to bring them back"))
}

impl Daemon {
    /// Finds out what could be served of a pool without its cache devices.
    async fn may_bypass(&self, name: &Name) -> Result<(Rc<Slot>, WithoutMembers)> {
        let slot = self.slot(name.as_str())?;
        if let Some(failure) = slot.kept_closed() {
            return Err(failure);
        }
        if slot.direct().is_some() {
            let what = format!("pool \"{name}\" is served without its cache devices already");
            return Err(Failure::coded(Code::Exists, what)
                .hint(format!("`forebay pool show {name}` says how to bring them back")));
        }
        match slot.open() {
            Some(open) => self.may_end(name, &slot, &open).await?,
            None => {
                let sight = self.scan(&[]).await?;
                slot.see(&sight);
                refuse_later(&slot.record.borrow(), &sight)?;
                if let Some(there) = of_pool(&sight.members, &slot.record.borrow().id).first() {
                    let there = there.path.display();
                    let what = format!("cache device {there} of pool \"{name}\" is there");
                    return Err(Failure::coded(Code::Refused, what).hint(format!(
                        "`forebay pool show {name}` says how to open the pool with it; detach it first if it is to be \
                         given up"
                    )));
                }
            }
        }
        let without = self.witness_without(&slot).await?;
        let withheld = without.withheld.iter();
        for volume in without.served.iter().chain(withheld).filter(|_| slot.open().is_some()) {
            let volume = VolumeName {
                pool: name.clone(),
                volume: volume.name.parse().map_err(Failure::new)?,
            };
            self.refuse_displaced(&volume).await?;
        }
        if without.served.is_empty() {
            let what = match without.withheld.is_empty() {
                true => format!("pool \"{name}\" has no volumes"),
                false => format!(
                    "the origins of all volumes of pool \"{name}\" may lack data that only its cache devices have"
                ),
            };
            return Err(Failure::coded(Code::Refused, what).hint(format!(
                "attach them; if they are gone for good, forget the pool, and its origins are plain disks with what \
                 reached them: `forebay pool export {name}`"
            )));
        }
        Ok((slot, without))
    }

    /// Refuses to end a pool that is open, unless it has stopped writing and nothing of it would go on.
    async fn may_end(&self, name: &Name, slot: &Slot, open: &Open) -> Result<()> {
        if let Some(host) = open.pool.lost_to() {
            let what = format!("host \"{host}\" has taken pool \"{name}\" over");
            return Err(Failure::coded(Code::HeldElsewhere, what)
                .hint("use it there: two hosts on its origins would destroy what is on them"));
        }
        if !open.pool.is_latched() {
            let what = format!("pool \"{name}\" works with its cache devices");
            return Err(Failure::coded(Code::Refused, what).hint(format!(
                "to switch the cache of one volume off: `forebay volume set {name}/VOLUME bypass`"
            )));
        }
        if let Some(busy) = self.jobs.busy_with(name.as_str()) {
            return Err(Failure::coded(Code::Busy, format!("pool \"{name}\" is busy: {busy}"))
                .hint("wait until that has ended, or cancel it"));
        }
        self.refuse_silent(slot)?;
        self.refuse_removed(name.as_str()).await
    }

    /// What the witness of a pool says can be served, and the one to be stored before.
    async fn witness_without(&self, slot: &Slot) -> Result<WithoutMembers> {
        let (name, id) = (slot.record.borrow().name.clone(), slot.record.borrow().id.clone());
        let unknown = |what: String| {
            Failure::coded(Code::Refused, what).hint(
                "attach the cache devices; nobody else knows which origins have all of their data",
            )
        };
        let bytes = self.state.read_witness(&id).await?;
        let bytes = bytes.ok_or_else(|| unknown(format!("pool \"{name}\" has no witness")))?;
        let without = without_members(&bytes)?;
        match without.pool.to_string() == id {
            true => Ok(without),
            false => Err(unknown(format!("the witness of pool \"{name}\" is another pool's"))),
        }
    }

    /// What it would be to serve a pool without its cache devices.
    pub(super) async fn plan_bypass(&self, name: &Name) -> Result<Plan> {
        let (slot, without) = self.may_bypass(name).await?;
        let mut steps = Vec::new();
        if slot.open().is_some() {
            let clients = self.clients_of(&slot);
            let clients = plural(clients, "client");
            steps.push(format!(
                "what is left of the pool here is ended, and {clients} disconnected; they may connect again at once"
            ));
        }
        steps.push(
            "it is noted durably, first, that its cache devices are stale: what they hold is not read again, also \
             if they come back"
                .to_owned(),
        );
        let record = slot.record.borrow().clone();
        for volume in &without.served {
            let is_exported = record.exports.iter().any(|it| it.volume.as_str() == volume.name);
            let clients = if is_exported { ", where its clients know it" } else { "" };
            steps.push(format!(
                "volume \"{name}/{}\" is served straight from {}{clients}: that has to be its origin still",
                volume.name, volume.origin
            ));
        }
        for volume in &without.withheld {
            steps.push(format!(
                "volume \"{name}/{}\" is not served: {} may lack what only the cache devices have, which \
                 stays there",
                volume.name, volume.origin
            ));
        }
        steps.push(format!(
            "that holds over restarts, until `forebay pool import {name} --accept-missing` brings the devices back, \
             without their clean data"
        ));
        steps.push(
            "no other machine may have these SSDs, or use them ever after unless they are erased"
                .to_owned(),
        );
        Ok(plan(format!("pool \"{name}\" would be served without its cache devices"), steps))
    }

    fn clients_of(&self, slot: &Slot) -> usize {
        let count = |serving: &Serving| match serving {
            Serving::Live(host) => host.clients(),
            Serving::Failed { .. } => 0,
        };
        slot.of_exports(|exports| exports.values().map(count).sum()).unwrap_or(0)
    }

    /// Serves a pool without its cache devices from now on; the caller holds `changing`.
    pub(super) async fn bypass_pool(&self, name: &Name, body: &api::Confirm) -> Result<api::Pool> {
        if body.confirm != name.as_str() {
            let what = format!(
                "\"{}\" does not confirm that pool \"{name}\" is served without its cache devices",
                body.confirm
            );
            return Err(Failure::coded(Code::BadRequest, what).hint("say its name as `confirm`"));
        }
        let (slot, _) = self.may_bypass(name).await?;
        let known = slot.open().map_or_else(Vec::new, |open| known_of(&open));
        // Nothing of it writes its witness, or to an origin, from here on.
        match self.close(name.as_str(), &slot).await {
            Err(failure) if failure.code() == Code::Busy => return Err(failure),
            // As it cannot write, it has ended as in a crash.
            Err(_) | Ok(()) => {}
        }
        self.begin_bypass(&slot, &known).await?;
        self.show_pool(name.as_str())
    }

    /// Stores that a pool which is not open is served without its cache devices, then does it. Of volumes that are known
    /// already, it is these that are served.
    async fn begin_bypass(&self, slot: &Slot, known: &[BypassedVolume]) -> Result<()> {
        // As it is now: only what has ended tells nobody any more.
        let without = self.witness_without(slot).await?;
        let (name, id) = (slot.record.borrow().name.clone(), slot.record.borrow().id.clone());
        let mut volumes = Vec::new();
        for volume in without.served.iter().chain(&without.withheld) {
            let before = known
                .iter()
                .find(|known| known.name.as_str() == volume.name && known.origin == volume.origin);
            volumes.push(BypassedVolume {
                name: volume.name.parse().map_err(Failure::new)?,
                origin: volume.origin.clone(),
                mode: api_mode(volume.mode),
                withheld: volume.may_be_dirty,
                size_bytes: before
                    .and_then(|known| known.size_bytes)
                    .or(Some(volume.size_bytes).filter(|size_bytes| *size_bytes > 0)),
                identity: before.and_then(|known| known.identity.clone()),
            });
        }
        self.state.store_witness(&id, without.witness).await?;
        let bypassed = Some(Bypassed { epoch: without.epoch, volumes });
        let record = Record { bypassed, ..slot.record.borrow().clone() };
        self.state.store(&record).await?;
        *slot.record.borrow_mut() = record;
        let direct = Rc::new(Direct::default());
        slot.transition(State::Bypassed(Rc::clone(&direct)));
        let withheld: Vec<_> =
            without.withheld.iter().map(|it| format!("{name}/{}", it.name)).collect();
        let but = match withheld.as_slice() {
            [] => String::new(),
            some => format!(
                "; not served: {}, whose origins may lack what only those have",
                listed(some)
            ),
        };
        let what = format!(
            "pool \"{name}\" is served straight from its origins, without its cache devices{but}"
        );
        self.journal.warn("pool-bypassed", &name, what);
        self.serve_directly(slot, &direct).await;
        Ok(())
    }

    /// Makes a pool that is served without its cache devices one that is to be opened with them, if that is `accepted`;
    /// how it was served, if so.
    ///
    /// # Errors
    /// If it is not to be opened so; it is served as before then.
    pub(super) async fn leave_bypass(
        &self,
        slot: &Slot,
        accepted: bool,
    ) -> Result<Option<Bypassed>> {
        if slot.direct().is_none() {
            return Ok(None);
        }
        self.may_leave_bypass(slot, accepted).await?;
        let mut record = slot.record.borrow().clone();
        let was = record.bypassed.take();
        self.end_direct(slot).await?;
        if let Err(failure) = self.state.store(&record).await {
            slot.transition(State::Bypassed(Rc::default()));
            return Err(failure);
        }
        *slot.record.borrow_mut() = record;
        Ok(was)
    }

    /// Refuses unless it was `accepted` that nothing clean of the devices is kept, and the pool's opening would know that.
    pub(super) async fn may_leave_bypass(&self, slot: &Slot, accepted: bool) -> Result<()> {
        let (name, id) = (slot.record.borrow().name.clone(), slot.record.borrow().id.clone());
        let Some(epoch) = slot.record.borrow().bypassed.as_ref().map(|bypassed| bypassed.epoch)
        else {
            return Ok(());
        };
        if !accepted {
            let what = format!(
                "pool \"{name}\" is served without its cache devices, and these are stale: its origins may have been \
                 written to since"
            );
            return Err(Failure::coded(Code::NeedsDecision, what).hint(format!(
                "to have the pool with them again, without what they have of clean data: `forebay pool import {name} \
                 --accept-missing`"
            )));
        }
        let bytes = self.state.read_witness(&id).await?;
        let known = bytes.and_then(|bytes| Witness::decode(&bytes).ok());
        if known.is_some_and(|it| it.pool.to_string() == id && it.epoch >= epoch) {
            return Ok(());
        }
        let what =
            format!("the witness of pool \"{name}\" does not say that its cache devices are stale");
        Err(Failure::coded(Code::Refused, what).hint(format!(
            "never open the pool with them: erase them, forget it with `forebay pool export {name}`, and make another pool"
        )))
    }

    /// Has a pool served as before that was to be opened with its devices, and could not be. What that attempt may have
    /// told them is older than the epoch that begins now.
    pub(super) async fn go_back_to_bypass(&self, slot: &Slot, was: &Bypassed, why: &Failure) {
        // Another host has its devices, and so perhaps its origins; or something of it goes on.
        if matches!(why.code(), Code::HeldElsewhere | Code::Busy) {
            return;
        }
        if let Err(failure) = self.begin_bypass(slot, &was.volumes).await {
            let name = slot.record.borrow().name.to_string();
            self.journal.warn("pool-failed", &name, failure.what());
        }
    }
}

/// What an open pool knows of its volumes and their origins.
fn known_of(open: &Open) -> Vec<BypassedVolume> {
    let origins = open.origins.borrow();
    let known = |volume: &VolumeRecord| {
        let identity = origins.get(&volume.name).and_then(|origin| hex(origin.device().identity()));
        Some(BypassedVolume {
            name: volume.name.parse().ok()?,
            origin: volume.origin.clone(),
            mode: api_mode(volume.mode),
            withheld: volume.may_be_dirty,
            size_bytes: origins.contains_key(&volume.name).then_some(volume.size_bytes),
            identity,
        })
    };
    open.pool.superblock().volumes.iter().filter_map(known).collect()
}
