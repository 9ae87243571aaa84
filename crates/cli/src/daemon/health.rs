//! Asking the SSDs of open pools how they are.
//!
//! * One after the other, each once every `devices.health_s`; a new one within a second. What is found is
//!   shown beside the device and said when it gets worse ([`crate::health`]).
//! * A disk that does not answer holds nobody up: its thread is left waiting, and it is not asked anew before
//!   that has returned.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::rc::Rc;

use forebay_control::api::{Health, HealthVerdict, MemberState, SpareState};
use forebay_device::Runtime;
use forebay_device::runtime::{Nanos, SECOND};

use super::Daemon;
use super::describe::members_of;
use crate::blocking::on_thread;
use crate::health::{Answer, Change, Known, Tools, ask};
use crate::patience::Pending;

/// How often it is looked whether an SSD is to be asked.
const LOOK_INTERVAL: Nanos = SECOND;

/// Who is asked.
#[derive(Default)]
pub(super) struct Patients {
    /// By identity.
    known: RefCell<BTreeMap<String, Patient>>,
    pending: Pending<Option<Answer>>,
}

#[derive(Default)]
struct Patient {
    known: Known,
    next: Nanos,
}

/// An SSD of an open pool, or a spare.
struct Ssd {
    kind: &'static str,
    pool: String,
    id: String,
    path: PathBuf,
}

impl Daemon {
    /// Asks SSDs until the reactor is closed; whatever else is under way.
    pub(super) async fn keep_asking(self: Rc<Self>) {
        let interval = self.config.devices.health_s.saturating_mul(SECOND);
        while interval > 0 && self.runtime().sleep(LOOK_INTERVAL).await.result.is_ok() {
            let all = self.ssds();
            self.health.known.borrow_mut().retain(|id, _| all.iter().any(|ssd| ssd.id == *id));
            let now = self.reactor.now();
            for ssd in all {
                let is_due = {
                    let mut known = self.health.known.borrow_mut();
                    let patient = known.entry(ssd.id.clone()).or_default();
                    let is_due = patient.next <= now;
                    if is_due {
                        patient.next = now.saturating_add(interval);
                    }
                    is_due
                };
                if is_due {
                    self.examine(&ssd).await;
                }
            }
        }
    }

    /// What an SSD has said of itself.
    pub(super) fn health_of(&self, id: &str) -> Option<Health> {
        let known = self.health.known.borrow();
        let health = known.get(id)?.known.health();
        (health.asked_unix_s > 0).then(|| health.clone())
    }

    fn ssds(&self) -> Vec<Ssd> {
        let mut all = Vec::new();
        for slot in self.slots.borrow().values() {
            let Some(open) = slot.open() else { continue };
            let (record, seen) = (slot.record.borrow(), slot.seen.borrow());
            let seen: Vec<_> = seen.iter().collect();
            let members = members_of(&open.pool.superblock(), &seen, Some(&record));
            let present = members.into_iter().filter(|it| it.state == MemberState::Present);
            all.extend(present.filter_map(|member| {
                let (pool, path) = (record.name.to_string(), member.path?);
                Some(Ssd { kind: "cache device", pool, id: member.id, path })
            }));
            let spares = slot.describe_spares(Some(&open)).into_iter();
            let ready = spares.filter(|spare| spare.state == SpareState::Ready);
            all.extend(ready.map(|spare| {
                let (pool, id) = (record.name.to_string(), spare.id);
                Ssd { kind: "spare", pool, id, path: spare.path }
            }));
        }
        all
    }

    async fn examine(&self, ssd: &Ssd) {
        let devices = &self.config.devices;
        let tools = Tools { smartctl: devices.smartctl.clone(), nvme: devices.nvme.clone() };
        let path = ssd.path.clone();
        let call = move || async move { on_thread(move || ask(&tools, &path)).await.ok() };
        let asked = self.health.pending.ask(&self.reactor, &ssd.path, call, self.end.wait()).await;
        // Without a thread to ask it is asked next time.
        let Some(answer) = asked.unwrap_or_else(|| Some(Answer::none())) else { return };
        let mut known = self.health.known.borrow_mut();
        let Some(patient) = known.get_mut(&ssd.id) else { return };
        let change = patient.known.learn(answer, self.reactor.unix_seconds());
        let what =
            format!("{} {}: {}", ssd.kind, ssd.path.display(), patient.known.health().summary);
        let subject = (ssd.pool.as_str(), ssd.path.display().to_string());
        match change {
            Some(Change::Worse(HealthVerdict::Failing)) => {
                self.journal.warn("ssd-failing", subject, what);
            }
            Some(Change::Worse(_)) => self.journal.warn("ssd-warning", subject, what),
            Some(Change::Well) => self.journal.note("ssd-well", subject, what),
            None => {}
        }
    }
}
