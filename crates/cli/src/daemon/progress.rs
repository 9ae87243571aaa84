//! How fast dirty data goes to the origins, whether writers wait for that, and what the pool did of late: looked at every
//! second.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use forebay_control::api::{Activity, Destaging, Rebuild};
use forebay_device::Runtime;
use forebay_device::runtime::{Nanos, SECOND};
use forebay_engine::{Delay, Pool};

use super::history::History;
use super::volumes::BLOCK_BYTES;
use super::{Attached, Daemon, Open};

/// How often it is looked at.
const LOOK_INTERVAL: Nanos = SECOND;

/// Looks that a rate is made of: it follows within ten seconds, and one slow second does not count.
const LOOKS: usize = 10;

/// Seconds in a row with writers that were held back, after which that is said, and seconds without one
/// after which it is taken back: it comes and goes by nature.
const DELAYED_LOOKS: u32 = 3;
const FREE_LOOKS: u32 = 10;

/// What there was at a look.
#[derive(Clone, Copy)]
struct Look {
    at: Nanos,
    destaged_bytes: u64,
    /// What origins have to be given; what waits for their flush is not in it, for that goes in steps.
    owed_bytes: u64,
}

/// The last looks at a pool or a volume, oldest first.
#[derive(Default)]
struct Meter(VecDeque<Look>);

impl Meter {
    fn note(&mut self, look: Look) {
        // Counted from zero anew: it was taken away and has come back.
        if self.0.back().is_some_and(|last| last.destaged_bytes > look.destaged_bytes) {
            self.0.clear();
        }
        if self.0.len() > LOOKS {
            self.0.pop_front();
        }
        self.0.push_back(look);
    }

    fn read(&self) -> Destaging {
        let (Some(first), Some(last)) = (self.0.front(), self.0.back()) else {
            return Destaging::default();
        };
        let span = last.at.saturating_sub(first.at);
        if span == 0 {
            return Destaging::default();
        }
        let per_s = |bytes: u64| {
            let rate = u128::from(bytes) * u128::from(SECOND) / u128::from(span);
            u64::try_from(rate).unwrap_or(u64::MAX)
        };
        let less = per_s(first.owed_bytes.saturating_sub(last.owed_bytes));
        Destaging {
            rate_bytes_per_s: per_s(last.destaged_bytes - first.destaged_bytes),
            left_s: (less > 0).then(|| last.owed_bytes.div_ceil(less)),
        }
    }
}

/// An estimate, in seconds, for what is not over yet, whatever the last look saw.
pub(super) fn not_over(left_s: u64) -> u64 {
    left_s.max(1)
}

/// Whether writers are delayed, with what it takes to say so.
#[derive(Default)]
struct Delayed {
    /// How long they had waited in all at the last look.
    waited_ns: u64,
    /// Why, once it is said.
    told: Option<Delay>,
    /// Looks in a row that say the opposite.
    looks: u32,
}

impl Delayed {
    /// Takes a look at how long writers have waited so far, and why they do; what there is to say.
    fn look(&mut self, waited_ns: u64, now: Option<Delay>) -> Option<&'static str> {
        let was = waited_ns > std::mem::replace(&mut self.waited_ns, waited_ns);
        let is_delayed = was || now.is_some();
        if is_delayed == self.told.is_some() {
            self.told = now.or(self.told);
            self.looks = 0;
            return None;
        }
        self.looks += 1;
        if is_delayed && self.looks >= DELAYED_LOOKS {
            let why = now.unwrap_or(Delay::Dirty);
            (self.told, self.looks) = (Some(why), 0);
            return Some(sentence(why));
        }
        if !is_delayed && self.looks >= FREE_LOOKS {
            (self.told, self.looks) = (None, 0);
            return Some("Writers are not delayed any more.");
        }
        None
    }
}

fn sentence(why: Delay) -> &'static str {
    match why {
        Delay::Dirty => {
            "Writers are delayed because dirty data is near its limit; they get what origins take."
        }
        Delay::Room => {
            "Writers are delayed because the cache is full; they get the room that is being made."
        }
    }
}

/// What lacks copies; nothing of it is destaged by that.
#[derive(Default)]
struct Short {
    meter: Meter,
    /// The most that did since the last time when nothing did.
    most_bytes: u64,
}

impl Short {
    fn note(&mut self, at: Nanos, bytes: u64) {
        self.most_bytes = if bytes > 0 { self.most_bytes.max(bytes) } else { 0 };
        self.meter.note(Look { at, destaged_bytes: 0, owed_bytes: bytes });
    }

    /// How far it is where so much is left now: the last look is up to a second old.
    fn rebuild(&self, left_bytes: u64) -> Rebuild {
        if left_bytes == 0 {
            return Rebuild::default();
        }
        let total_bytes = self.most_bytes.max(left_bytes);
        let left_s = self.meter.read().left_s.map(not_over);
        Rebuild { total_bytes, left_bytes, left_s }
    }
}

/// What is known of an open pool.
#[derive(Default)]
pub(super) struct Progress {
    pool: Meter,
    /// What is dirty and has fewer copies than asked.
    short: Short,
    /// What is clean and is copied again.
    short_clean: Short,
    volumes: BTreeMap<String, Meter>,
    delayed: Delayed,
    history: History,
}

impl Progress {
    /// The pool's.
    pub(super) fn pool(&self) -> Destaging {
        self.pool.read()
    }

    /// A volume's.
    pub(super) fn volume(&self, name: &str) -> Destaging {
        self.volumes.get(name).map(Meter::read).unwrap_or_default()
    }

    /// What the pool did of late.
    pub(super) fn activity(&self, now: Nanos, pool: &Pool) -> Vec<Activity> {
        self.history.read(now, pool)
    }

    /// Why writers are delayed; empty if they are not.
    pub(super) fn delay(&self) -> &'static str {
        self.delayed.told.map_or("", sentence)
    }
}

impl Open {
    /// How far the copies of dirty data are that are made again.
    pub(super) fn rebuild(&self) -> Rebuild {
        self.progress.borrow().short.rebuild(self.pool.short_bytes().0)
    }

    /// The same of clean data.
    pub(super) fn recopy(&self) -> Rebuild {
        self.progress.borrow().short_clean.rebuild(self.pool.short_clean_bytes(0))
    }

    /// Takes a look; what there is to say of writers.
    fn look(&self, now: Nanos) -> Option<&'static str> {
        let mut progress = self.progress.borrow_mut();
        let counters = self.pool.counters();
        let look = |destaged: u64, blocks: u64| Look {
            at: now,
            destaged_bytes: destaged,
            owed_bytes: blocks * BLOCK_BYTES,
        };
        progress.history.note(now, &self.pool);
        progress.pool.note(look(counters.destage_bytes.get(), self.pool.blocks().1));
        progress.short.note(now, self.pool.short_bytes().0);
        progress.short_clean.note(now, self.pool.short_clean_bytes(0));
        let volumes = self.volumes.borrow();
        progress.volumes.retain(|name, _| volumes.contains_key(name));
        for (name, volume) in volumes.iter() {
            let Attached::Online(volume) = volume else { continue };
            let seen = look(volume.counters().destage_bytes.get(), volume.owed_blocks());
            match progress.volumes.get_mut(name) {
                Some(meter) => meter.note(seen),
                None => progress.volumes.entry(name.clone()).or_default().note(seen),
            }
        }
        progress.delayed.look(counters.throttle_delay_ns.get(), self.pool.delay())
    }
}

impl Daemon {
    /// Looks at all pools until the reactor is closed; whatever else is under way.
    pub(super) async fn keep_looking(self: Rc<Self>) {
        while self.runtime().sleep(LOOK_INTERVAL).await.result.is_ok() {
            let now = self.reactor.now();
            self.jobs.note_pace();
            for (name, slot) in self.slots.borrow().iter() {
                let Some(open) = slot.open() else { continue };
                let Some(what) = open.look(now) else { continue };
                match open.progress.borrow().delay() {
                    "" => self.journal.note("writers-free", name, what),
                    _ => self.journal.warn("writers-delayed", name, what),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn meter(looks: impl Iterator<Item = (u64, u64)>) -> Destaging {
        let mut meter = Meter::default();
        for (second, (destaged, owed)) in looks.enumerate() {
            let at = second as u64 * SECOND;
            meter.note(Look { at, destaged_bytes: destaged * MIB, owed_bytes: owed * MIB });
        }
        meter.read()
    }

    #[test]
    fn rate_and_time_to_clean_are_those_of_the_last_ten_seconds() {
        assert_eq!(meter(std::iter::empty()), Destaging::default());
        assert_eq!(meter([(5, 9)].into_iter()), Destaging::default());
        // 10 MiB/s to the origin, and clients write 6 of them anew.
        let falling = meter((0..=100).map(|s| (10 * s, 1_000 - 4 * s)));
        assert_eq!(falling, Destaging { rate_bytes_per_s: 10 * MIB, left_s: Some(150) });
        let growing = meter((0..=100).map(|s| (10 * s, 1_000 + s)));
        assert_eq!(growing, Destaging { rate_bytes_per_s: 10 * MIB, left_s: None });
        let over = meter((0..=100).map(|s| (10 * s.min(50), 1_000 - 20 * s.min(50))));
        assert_eq!(over, Destaging { rate_bytes_per_s: 0, left_s: None });
        let last_bit = meter([(0, 50), (49, 1)].into_iter());
        assert_eq!(last_bit, Destaging { rate_bytes_per_s: 49 * MIB, left_s: Some(1) });
        let anew = meter([(100, 50), (0, 40), (1, 39)].into_iter());
        assert_eq!(anew, Destaging { rate_bytes_per_s: MIB, left_s: Some(39) });
    }

    #[test]
    fn what_has_all_its_copies_is_not_said_to_lack_them_until_the_next_look() {
        let mut short = Short::default();
        short.note(0, 32 * MIB);
        short.note(SECOND, 24 * MIB);
        let behind = Rebuild { total_bytes: 32 * MIB, left_bytes: 20 * MIB, left_s: Some(3) };
        assert_eq!(short.rebuild(20 * MIB), behind);
        assert_eq!(short.rebuild(0), Rebuild::default());
        short.note(2 * SECOND, 0);
        let anew = Rebuild { total_bytes: MIB, left_bytes: MIB, left_s: Some(1) };
        assert_eq!(short.rebuild(MIB), anew, "the last look saw the end");
        let before = Rebuild { total_bytes: MIB, left_bytes: MIB, left_s: None };
        assert_eq!(Short::default().rebuild(MIB), before, "nobody has looked yet");
    }

    #[test]
    fn delays_are_told_when_they_last_and_taken_back_when_they_are_gone_for_long() {
        let (mut delayed, mut waited, mut told) = (Delayed::default(), 0, Vec::new());
        let mut pass = |looks: u32, waits: bool, why: Option<Delay>| {
            for _ in 0..looks {
                waited += u64::from(waits);
                told.extend(delayed.look(waited, why));
            }
            (told.len(), delayed.told)
        };
        assert_eq!(pass(2, true, Some(Delay::Dirty)), (0, None));
        assert_eq!(pass(1, false, None), (0, None));
        assert_eq!(pass(2, true, Some(Delay::Dirty)), (0, None), "not in a row");
        assert_eq!(pass(1, true, Some(Delay::Dirty)), (1, Some(Delay::Dirty)));
        assert_eq!(pass(9, false, None), (1, Some(Delay::Dirty)));
        assert_eq!(pass(1, true, Some(Delay::Room)), (1, Some(Delay::Room)));
        assert_eq!(pass(9, false, None), (1, Some(Delay::Room)));
        assert_eq!(pass(1, false, None), (2, None));
        assert_eq!(pass(100, false, None), (2, None));
    }
}
