//! Advisors: volumes are watched for some days, to say how much cache they deserve.
//!
//! * What was seen is kept in memory by the engine, and stored now and then, when a watch ends and when a pool is closed. The
//!   sample begins anew with each start of the pool: what is touched for the first time from then on counts as new.
//! * A day is 24 h in which the volume was watched, wherever it begins: the time without the daemon does not count.
//! * What is stored and cannot be read costs what was seen, and nothing else.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use forebay_control::api::{self, ADVISOR_DAYS_MAX, CurvePoint, Done, Plan};
use forebay_control::error::Code;
use forebay_control::name::{Name, VolumeName};
use forebay_device::Runtime;
use forebay_device::runtime::{Nanos, SECOND};
use forebay_engine::Volume;
use forebay_engine::policy::{ADVISOR_BYTES_MAX, Curve, DISTANCES, Day, WorkingSet};
use serde::{Deserialize, Serialize};

use super::plan::{plan, room};
use super::volumes::BLOCK_BYTES;
use super::{Attached, Daemon, Open, Slot};
use crate::Result;
use crate::failure::Failure;
use crate::text::{self, plural};

const DAY_S: u64 = 86_400;

const _: () = assert!(ADVISOR_DAYS_MAX as usize == forebay_engine::policy::ADVISOR_DAYS_MAX);

/// How often what was seen is stored: a crash costs as much.
const STORE_INTERVAL: Nanos = 600 * SECOND;

/// Sizes of caches that are told, each half of the next one, down from where more helps no more.
const SIZES: usize = 8;

/// The smallest of them: no cache is made that small.
const SIZE_BYTES_MIN: u64 = 1 << 20;

/// Form of what is stored.
const FORM: u32 = 1;

/// What is stored of a pool.
#[derive(Serialize, Deserialize)]
struct Stored {
    form: u32,
    advisors: Vec<Record>,
}

/// A volume that is, or was, watched.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Record {
    volume: Name,
    /// Another volume may have the name later.
    id: u32,
    begun_unix_s: u64,
    ended_unix_s: Option<u64>,
    watched_s: u64,
    days_min: u32,
    /// As far as they were stored, or until the watch ended.
    days: Vec<DayRecord>,
}

/// What comes after some time of a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    SameDay,
    AnotherDay,
    /// It was watched for as long as can be.
    Over,
}

/// A [`Day`], in whole numbers.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct DayRecord {
    read_bytes: u64,
    written_bytes: u64,
    accesses: u64,
    touched: u64,
    cold: u64,
    /// Without the zeroes at the end.
    distances: Vec<u64>,
}

impl DayRecord {
    fn of(day: &Day) -> DayRecord {
        let used = day.distances.iter().rposition(|&count| count > 0.0).map_or(0, |last| last + 1);
        let distances = day.distances[..used].iter().map(|count| count.round() as u64);
        DayRecord {
            read_bytes: day.read_bytes,
            written_bytes: day.written_bytes,
            accesses: day.accesses,
            touched: day.touched.round() as u64,
            cold: day.cold.round() as u64,
            distances: distances.collect(),
        }
    }

    fn day(&self) -> Day {
        let mut distances = [0.0; DISTANCES];
        distances.iter_mut().zip(&self.distances).for_each(|(to, from)| *to = *from as f64);
        Day {
            read_bytes: self.read_bytes,
            written_bytes: self.written_bytes,
            accesses: self.accesses,
            touched: self.touched as f64,
            cold: self.cold as f64,
            distances,
        }
    }
}

impl Record {
    fn days(&self) -> Vec<Day> {
        self.days.iter().map(DayRecord::day).collect()
    }

    fn see(&mut self, days: &[Day]) {
        self.days = days.iter().map(DayRecord::of).collect();
    }

    /// Counts time in which it was watched.
    fn count(&mut self, seconds: u64) -> Then {
        let (before, most) = (self.watched_s, u64::from(ADVISOR_DAYS_MAX) * DAY_S);
        self.watched_s = before.saturating_add(seconds).min(most);
        match self.watched_s {
            all if all == most => Then::Over,
            all if all / DAY_S > before / DAY_S => Then::AnotherDay,
            _ => Then::SameDay,
        }
    }

    fn is_watching(&self) -> bool {
        self.ended_unix_s.is_none()
    }

    /// Whether it can be what was stored: sums of it are made, and none of it may be larger than a daemon could have seen.
    fn is_sound(&self) -> bool {
        const COUNT_MAX: u64 = 1 << 56;
        let days = self.days.iter().all(|day| {
            let counts = [day.read_bytes, day.written_bytes, day.accesses, day.touched, day.cold];
            day.distances.len() <= DISTANCES
                && counts.iter().chain(&day.distances).all(|&count| count <= COUNT_MAX)
        });
        days && self.days.len() <= ADVISOR_DAYS_MAX as usize
            && (1..=ADVISOR_DAYS_MAX).contains(&self.days_min)
            && self.watched_s <= u64::from(ADVISOR_DAYS_MAX) * DAY_S
    }
}

/// What the bytes say that were stored of a pool.
fn read(bytes: &[u8]) -> std::result::Result<Vec<Record>, String> {
    let stored: Stored = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    match stored {
        Stored { form: FORM, advisors } if advisors.iter().all(Record::is_sound) => Ok(advisors),
        Stored { form: FORM, .. } => Err("its numbers make no sense".to_owned()),
        Stored { form, .. } => Err(format!("it has form {form}, not {FORM}")),
    }
}

/// The advisors of an open pool, by volume.
#[derive(Default)]
pub(super) struct Advisors {
    known: RefCell<BTreeMap<String, Record>>,
    /// Up to when time is counted, and when it is stored the next time.
    counted_to: Cell<Nanos>,
    store_at: Cell<Nanos>,
    /// Whether it was told that it could not be stored.
    is_told: Cell<bool>,
}

impl Advisors {
    fn is_any_watching(&self) -> bool {
        self.known.borrow().values().any(Record::is_watching)
    }

    /// Whole seconds since this was asked last.
    fn elapsed_s(&self, now: Nanos) -> u64 {
        let seconds = now.saturating_sub(self.counted_to.get()) / SECOND;
        self.counted_to.set(self.counted_to.get() + seconds * SECOND);
        seconds
    }
}

impl Open {
    fn online(&self, volume: &str) -> Option<Rc<Volume>> {
        match self.volumes.borrow().get(volume) {
            Some(Attached::Online(volume)) => Some(Rc::clone(volume)),
            _ => None,
        }
    }

    /// Ends a watch; what was seen stays.
    fn end_watch(&self, record: &mut Record, unix_s: u64) {
        if let Some(volume) = self.online(record.volume.as_str()) {
            if let Some(days) = volume.advisor_days() {
                record.see(&days);
            }
            volume.stop_advisor();
        }
        record.ended_unix_s = Some(unix_s);
    }

    /// Counts the time, begins days, and ends what has been watched for long enough: the volumes of that.
    fn watch_on(&self, seconds: u64, unix_s: u64) -> Vec<Name> {
        let mut ended = Vec::new();
        for record in self.advisors.known.borrow_mut().values_mut().filter(|it| it.is_watching()) {
            let Some(volume) = self.online(record.volume.as_str()) else { continue };
            match record.count(seconds) {
                Then::SameDay => {}
                Then::AnotherDay => {
                    volume.begin_advisor_day();
                }
                Then::Over => {
                    self.end_watch(record, unix_s);
                    ended.push(record.volume.clone());
                }
            }
        }
        ended
    }

    /// What was seen so far of a volume, and what comes of it.
    fn describe_advisor(&self, pool: &Name, record: &Record) -> api::Advisor {
        let live = self.online(record.volume.as_str()).and_then(|volume| volume.advisor_days());
        let days = live.unwrap_or_else(|| record.days());
        let superblock = self.pool.superblock();
        let volumes = &superblock.volumes;
        let own = volumes.iter().find(|volume| volume.name == record.volume.as_str());
        let limit_bytes = own.map_or(0, |volume| volume.settings.limit_bytes);
        let mut cache_bytes = room(&superblock, None).clean_bytes;
        if limit_bytes > 0 {
            cache_bytes = cache_bytes.min(limit_bytes);
        }
        let others = if limit_bytes > 0 { 0 } else { volumes.len().saturating_sub(1) };
        let size_bytes = own.map_or(u64::MAX, |volume| volume.size_bytes);
        let (curve, set) = (Curve::of(&days), WorkingSet::of(&days));
        let bytes_of = |blocks: f64| ((blocks * BLOCK_BYTES as f64) as u64).min(size_bytes);
        let hits = |bytes: u64| curve.hits(bytes / BLOCK_BYTES);
        let advised_bytes = curve.blocks_wanted().map(|blocks| blocks * BLOCK_BYTES);
        let sizes = sizes(cache_bytes, curve.blocks_for_all().saturating_mul(BLOCK_BYTES));
        let point = |cache_bytes| CurvePoint { cache_bytes, hit_ratio: hits(cache_bytes) };
        let mut advisor = api::Advisor {
            volume: VolumeName { pool: pool.clone(), volume: record.volume.clone() },
            watching: record.is_watching(),
            begun_unix_s: record.begun_unix_s,
            ended_unix_s: record.ended_unix_s,
            watched_s: record.watched_s,
            days_min: record.days_min,
            sure: record.watched_s >= u64::from(record.days_min) * DAY_S,
            read_bytes: days.iter().map(|day| day.read_bytes).sum(),
            written_bytes: days.iter().map(|day| day.written_bytes).sum(),
            day_bytes: bytes_of(set.usual),
            day_bytes_max: bytes_of(set.most),
            days: set.days as u64,
            days_left_out: curve.outbursts as u64,
            cache_bytes,
            cache_hit_ratio: hits(cache_bytes),
            endless_hit_ratio: curve.hits_endless(),
            advised_bytes,
            advised_hit_ratio: advised_bytes.map(hits),
            curve: sizes.into_iter().map(point).collect(),
            advice: String::new(),
        };
        advisor.advice = advice(&advisor, others);
        advisor
    }
}

/// The sizes that are told: powers of two, down from one that hits `all` that can be hit, and what there is now.
fn sizes(cache_bytes: u64, all_bytes: u64) -> Vec<u64> {
    let all = all_bytes.max(SIZE_BYTES_MIN);
    let largest = all.checked_next_power_of_two().unwrap_or(1 << 63);
    let halves = (0..SIZES).map(|halving| largest >> halving);
    let mut sizes: Vec<u64> =
        halves.filter(|&size| size >= SIZE_BYTES_MIN).chain([cache_bytes]).collect();
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

/// What to do, in a few sentences; so many other volumes have the same cache.
fn advice(seen: &api::Advisor, others: usize) -> String {
    if seen.read_bytes + seen.written_bytes == 0 {
        return "Nothing was asked for yet.".to_owned();
    }
    let endless = text::percent(seen.endless_hit_ratio);
    let mut said = match seen.advised_bytes.zip(seen.advised_hit_ratio) {
        None => format!(
            "No cache would help much: one that never lets go of anything would have hit {endless}."
        ),
        Some((bytes, ratio)) => {
            let now = text::bytes(seen.cache_bytes);
            let others = (others > 0).then(|| plural(others, "other volume"));
            let now = match (seen.cache_bytes >= bytes, others) {
                (true, None) => format!("It may have {now} now: more would hardly help."),
                (true, Some(others)) => format!("The pool has {now} for it and {others}."),
                (false, others) => format!(
                    "The {now} that it may have now would have hit {}{}.",
                    text::percent(seen.cache_hit_ratio),
                    others.map_or(String::new(), |it| format!(", without {it}"))
                ),
            };
            format!(
                "{} are enough: an LRU cache of that size would have hit {}, one that never lets go of anything {endless}. \
                 {now}",
                text::bytes(bytes),
                text::percent(ratio)
            )
        }
    };
    if seen.days_left_out > 0 {
        let days = plural(seen.days_left_out as usize, "day");
        said.push_str(&format!(" Left out: {days} with more than twice what is usual."));
    }
    if !seen.sure {
        let watched = text::left(seen.watched_s);
        let days = plural(seen.days_min as usize, "day");
        said.push_str(&format!(
            " That is not sure yet: it was watched for {watched}, not for {days}."
        ));
    }
    said
}

fn unwatched(name: &VolumeName) -> Failure {
    Failure::coded(Code::NotFound, format!("volume \"{name}\" has no advisor"))
        .hint(format!("`forebay advisor start {name}` begins to watch it"))
}

impl Daemon {
    /// Takes over what is stored of a pool that is being opened.
    pub(super) async fn recall_advisors(&self, slot: &Slot, open: &Open) {
        let now = self.reactor.now();
        open.advisors.counted_to.set(now);
        open.advisors.store_at.set(now + STORE_INTERVAL);
        let (id, pool) = (slot.record.borrow().id.clone(), slot.record.borrow().name.clone());
        let bytes = match self.state.advisors(&id).await {
            Ok(None) => return,
            Ok(Some(bytes)) => bytes,
            Err(failure) => {
                let what = format!("what advisors have seen is lost: {}", failure.what());
                return self.journal.warn("advisors-lost", pool.as_str(), what);
            }
        };
        match read(&bytes) {
            Ok(records) => {
                let volumes = open.pool.superblock().volumes;
                let is_there = |record: &Record| {
                    let mut volumes = volumes.iter();
                    volumes.any(|v| v.name == record.volume.as_str() && v.id.0 == record.id)
                };
                let there = records.into_iter().filter(is_there);
                *open.advisors.known.borrow_mut() =
                    there.map(|record| (record.volume.to_string(), record)).collect();
            }
            Err(why) => {
                let path = self.state.advisors_path(&id);
                let what = format!(
                    "what advisors have seen is lost, for {} cannot be read: {why}",
                    path.display()
                );
                self.journal.warn("advisors-lost", pool.as_str(), what);
            }
        }
    }

    /// A volume has come online: it is watched again, if it was.
    pub(super) fn resume_advisor(open: &Open, name: &str, volume: &Volume) {
        let known = open.advisors.known.borrow();
        if let Some(record) = known.get(name).filter(|record| record.is_watching()) {
            volume.start_advisor(&record.days());
        }
    }

    /// Stores what was seen of a pool's volumes. The caller holds `changing`: the state directory does one thing at a time.
    pub(super) async fn store_advisors(&self, slot: &Slot, open: &Open) {
        open.advisors.store_at.set(self.reactor.now() + STORE_INTERVAL);
        let (id, pool) = (slot.record.borrow().id.clone(), slot.record.borrow().name.clone());
        let records = {
            let mut known = open.advisors.known.borrow_mut();
            for record in known.values_mut().filter(|record| record.is_watching()) {
                let volume = open.online(record.volume.as_str());
                if let Some(days) = volume.and_then(|volume| volume.advisor_days()) {
                    record.see(&days);
                }
            }
            known.values().cloned().collect()
        };
        match self.state.store_advisors(&id, &Stored { form: FORM, advisors: records }).await {
            Ok(()) => open.advisors.is_told.set(false),
            Err(failure) => {
                if !open.advisors.is_told.replace(true) {
                    self.journal.warn("state-unwritable", pool.as_str(), failure.what());
                }
            }
        }
    }

    /// Stores it if it has become more: before a pool is closed.
    pub(super) async fn keep_advisors(&self, slot: &Slot) {
        if let Some(open) = slot.open().filter(|open| open.advisors.is_any_watching()) {
            self.store_advisors(slot, &open).await;
        }
    }

    /// Looks after the advisors of an open pool, once a second or so.
    pub(super) async fn look_at_advisors(&self, slot: &Slot, open: &Open) {
        let now = self.reactor.now();
        let seconds = open.advisors.elapsed_s(now);
        if !open.advisors.is_any_watching() {
            return;
        }
        let ended = open.watch_on(seconds, self.reactor.unix_seconds());
        let pool = slot.record.borrow().name.clone();
        for volume in &ended {
            let name = VolumeName { pool: pool.clone(), volume: volume.clone() };
            let what = format!(
                "volume \"{name}\" was watched for {ADVISOR_DAYS_MAX} days: `forebay advisor show {name}`"
            );
            self.journal.note("advisor-ended", &name, what);
        }
        if !ended.is_empty() || now >= open.advisors.store_at.get() {
            self.store_advisors(slot, open).await;
        }
    }

    /// The volume of an open pool that somebody asks about.
    fn advised(&self, name: &VolumeName) -> Result<(Rc<Slot>, Rc<Open>)> {
        let (slot, open) = self.open(name.pool.as_str())?;
        let volumes = open.pool.superblock().volumes;
        match volumes.iter().any(|volume| volume.name == name.volume.as_str()) {
            true => Ok((slot, open)),
            false => Err(open.no_volume(name)),
        }
    }

    /// What was seen of a volume.
    pub(super) fn describe_advisor(&self, name: &VolumeName) -> Result<api::Advisor> {
        let (_, open) = self.advised(name)?;
        let known = open.advisors.known.borrow();
        let record = known.get(name.volume.as_str()).ok_or_else(|| unwatched(name))?;
        Ok(open.describe_advisor(&name.pool, record))
    }

    /// The same of all volumes of open pools that are or were watched.
    pub(super) fn describe_advisors(&self) -> Vec<api::Advisor> {
        let mut all = Vec::new();
        for (slot, open) in self.open_pools() {
            let pool = slot.record.borrow().name.clone();
            let known = open.advisors.known.borrow();
            all.extend(known.values().map(|record| open.describe_advisor(&pool, record)));
        }
        all
    }

    /// The volume that can be watched, and whether something is known of it by an earlier watch.
    fn may_start_advisor(&self, name: &VolumeName, days: u32) -> Result<(Rc<Volume>, bool)> {
        if !(1..=ADVISOR_DAYS_MAX).contains(&days) {
            let what = format!("a watch of {} cannot be asked for", plural(days as usize, "day"));
            return Err(Failure::coded(Code::BadRequest, what)
                .hint(format!("use 1 to {ADVISOR_DAYS_MAX}; it ends by itself after that many")));
        }
        let (_, open) = self.advised(name)?;
        let volume = open.volume(name)?;
        let was = open.advisors.known.borrow().get(name.volume.as_str()).map(Record::is_watching);
        if was == Some(true) {
            let what = format!("volume \"{name}\" is watched already");
            return Err(Failure::coded(Code::Exists, what).hint(format!(
                "`forebay advisor show {name}` says what was seen; to begin anew, `forebay advisor stop {name}` first"
            )));
        }
        Ok((volume, was.is_some()))
    }

    /// Begins to watch a volume; what was seen of it before is forgotten.
    pub(super) async fn start_advisor(&self, name: &VolumeName, days: u32) -> Result<api::Advisor> {
        let (volume, _) = self.may_start_advisor(name, days)?;
        let (slot, open) = self.advised(name)?;
        let record = Record {
            volume: name.volume.clone(),
            id: volume.id().0,
            begun_unix_s: self.reactor.unix_seconds(),
            ended_unix_s: None,
            watched_s: 0,
            days_min: days,
            days: Vec::new(),
        };
        volume.start_advisor(&[]);
        open.advisors.known.borrow_mut().insert(name.volume.to_string(), record);
        self.store_advisors(&slot, &open).await;
        self.journal.note("advisor-started", name, format!("volume \"{name}\" is watched"));
        self.describe_advisor(name)
    }

    pub(super) fn plan_start_advisor(&self, name: &VolumeName, days: u32) -> Result<Plan> {
        let (_, knows) = self.may_start_advisor(name, days)?;
        let mut steps = vec![format!(
            "what clients read and write is watched, until it is stopped or for {ADVISOR_DAYS_MAX} days; its advice is sure \
             after {}",
            plural(days as usize, "day")
        )];
        steps.push(format!(
            "it takes {} of memory; nothing that is cached changes",
            text::bytes(ADVISOR_BYTES_MAX as u64)
        ));
        if knows {
            steps.push("what an earlier watch has seen is forgotten".to_owned());
        }
        Ok(plan(format!("volume \"{name}\" would be watched"), steps))
    }

    /// Ends a watch; what was seen can be shown until the next one.
    pub(super) async fn stop_advisor(&self, name: &VolumeName) -> Result<Done> {
        let (slot, open) = self.advised(name)?;
        {
            let mut known = open.advisors.known.borrow_mut();
            let record = known.get_mut(name.volume.as_str()).ok_or_else(|| unwatched(name))?;
            if !record.is_watching() {
                return Ok(Done::of(format!("volume \"{name}\" is not watched any more")));
            }
            open.end_watch(record, self.reactor.unix_seconds());
        }
        self.store_advisors(&slot, &open).await;
        let what = format!("volume \"{name}\" is not watched any more");
        self.journal.note("advisor-ended", name, &what);
        Ok(Done::of(format!("{what}; `forebay advisor show {name}` has what was seen")))
    }

    pub(super) fn plan_stop_advisor(&self, name: &VolumeName) -> Result<Plan> {
        let seen = self.describe_advisor(name)?;
        if !seen.watching {
            return Ok(plan(format!("volume \"{name}\" is not watched any more"), Vec::new()));
        }
        let steps = vec!["what was seen stays until it is watched anew".to_owned()];
        Ok(plan(format!("volume \"{name}\" would be watched no more"), steps))
    }

    /// A volume is gone.
    pub(super) async fn forget_advisor(&self, slot: &Slot, open: &Open, volume: &Name) {
        if open.advisors.known.borrow_mut().remove(volume.as_str()).is_some() {
            self.store_advisors(slot, open).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn sizes_end_where_more_helps_no_more_and_have_the_one_there_is() {
        let gib =
            |sizes: Vec<u64>| sizes.iter().map(|s| *s as f64 / GIB as f64).collect::<Vec<_>>();
        assert_eq!(gib(sizes(8 * GIB, 30 * GIB)), [0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0]);
        assert_eq!(
            gib(sizes(3 * GIB, 4 * GIB)),
            [0.03125, 0.0625, 0.125, 0.25, 0.5, 1.0, 2.0, 3.0, 4.0]
        );
        assert_eq!(sizes(GIB, 3 << 20), [1 << 20, 2 << 20, 4 << 20, GIB]);
        for (now, all) in [(0, 0), (u64::MAX, u64::MAX), (0, u64::MAX), (u64::MAX, 0)] {
            let sizes = sizes(now, all);
            assert!((1..=SIZES + 1).contains(&sizes.len()), "{sizes:?}");
        }
    }

    fn seen() -> api::Advisor {
        api::Advisor {
            volume: "fast/vm".parse().unwrap(),
            watching: true,
            begun_unix_s: 0,
            ended_unix_s: None,
            watched_s: 8 * DAY_S,
            days_min: 7,
            sure: true,
            read_bytes: 1,
            written_bytes: 0,
            day_bytes: 0,
            day_bytes_max: 0,
            days: 8,
            days_left_out: 0,
            cache_bytes: 8 * GIB,
            cache_hit_ratio: 0.5,
            endless_hit_ratio: 0.9,
            advised_bytes: Some(20 * GIB),
            advised_hit_ratio: Some(0.86),
            curve: Vec::new(),
            advice: String::new(),
        }
    }

    #[test]
    fn advice_says_what_is_enough_and_what_there_is() {
        let enough = "20 GiB are enough: an LRU cache of that size would have hit 86.0 %, one that never lets go of anything \
                      90.0 %.";
        let said = advice(&seen(), 0);
        assert_eq!(said, format!("{enough} The 8 GiB that it may have now would have hit 50.0 %."));
        let has = api::Advisor { cache_bytes: 20 * GIB, days_left_out: 1, ..seen() };
        let said = advice(&has, 2);
        let shared = "The pool has 20 GiB for it and 2 other volumes.";
        let left_out = "Left out: 1 day with more than twice what is usual.";
        assert_eq!(said, format!("{enough} {shared} {left_out}"));
        assert!(
            advice(&api::Advisor { cache_bytes: 20 * GIB, ..seen() }, 0).contains("hardly help")
        );
        assert!(advice(&seen(), 1).ends_with("would have hit 50.0 %, without 1 other volume."));
        let none = api::Advisor { advised_bytes: None, endless_hit_ratio: 0.01, ..seen() };
        let said = advice(&api::Advisor { sure: false, watched_s: 7_200, ..none }, 0);
        assert!(
            said.starts_with("No cache would help much") && said.contains("hit 1.0 %"),
            "{said}"
        );
        assert!(said.ends_with("not sure yet: it was watched for 2 h, not for 7 days."), "{said}");
        assert_eq!(
            advice(&api::Advisor { read_bytes: 0, ..seen() }, 0),
            "Nothing was asked for yet."
        );
    }

    fn record() -> Record {
        Record {
            volume: "vm".parse().unwrap(),
            id: 3,
            begun_unix_s: 1,
            ended_unix_s: None,
            watched_s: 0,
            days_min: 7,
            days: Vec::new(),
        }
    }

    #[test]
    fn a_watch_has_thirty_days_of_the_time_in_which_it_watched() {
        let mut record = record();
        let mut after = |seconds| record.count(seconds);
        assert_eq!((after(DAY_S - 1), after(0)), (Then::SameDay, Then::SameDay));
        assert_eq!((after(1), after(5)), (Then::AnotherDay, Then::SameDay));
        assert_eq!((after(28 * DAY_S), after(DAY_S - 6)), (Then::AnotherDay, Then::SameDay));
        assert_eq!((after(1), after(u64::MAX)), (Then::Over, Then::Over));
    }

    #[test]
    fn what_is_stored_is_what_was_seen_and_nonsense_is_refused() {
        let mut day = Day { accesses: 9, touched: 3.4, cold: 3.4, read_bytes: 7, ..Day::default() };
        day.distances[5] = 2.0;
        let days = vec![DayRecord::of(&day); 2];
        let record = Record { watched_s: 90_000, days, ..record() };
        let bytes = |form, record: &Record| {
            serde_json::to_vec(&Stored { form, advisors: vec![record.clone()] }).unwrap()
        };
        let known = read(&bytes(FORM, &record)).unwrap();
        let whole = Day { touched: 3.0, cold: 3.0, ..day };
        assert_eq!((known[0].days(), known[0].watched_s), (vec![whole; 2], 90_000));
        assert!(read(&bytes(2, &record)).unwrap_err().contains("form 2"));
        let wrong = [
            Record { days: vec![record.days[0].clone(); 31], ..record.clone() },
            Record { days_min: 0, ..record.clone() },
            Record { watched_s: u64::MAX, ..record.clone() },
            Record {
                days: vec![DayRecord { accesses: u64::MAX, ..record.days[0].clone() }],
                ..record.clone()
            },
            Record {
                days: vec![DayRecord { distances: vec![1; 999], ..record.days[0].clone() }],
                ..record
            },
        ];
        for record in wrong {
            assert!(read(&bytes(FORM, &record)).unwrap_err().contains("no sense"), "{record:?}");
        }
        for bytes in [&b""[..], b"[]", b"{}", b"null", &[0xff; 99]] {
            assert!(read(bytes).is_err());
        }
    }
}
