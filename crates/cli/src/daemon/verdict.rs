//! How a pool is: a state, a sentence, and what to do.

use std::path::PathBuf;

use forebay_control::api::{HealthVerdict, Member, PoolHealth, PoolState, Rebuild, VolumeState};
use forebay_control::error::Code;
use forebay_device::Runtime;
use forebay_device::real::open::typed;
use forebay_engine::Redundancy;
use forebay_engine::format::{Superblock, VolumeRecord};

use super::describe::these_ssds;
use super::direct::{on_origins, way_out};
use super::pools::lost_of;
use super::scan::{Unread, newest};
use super::volumes::{BLOCK_BYTES, missing_state};
use super::{Attached, Daemon, Open, Serving, Slot, State};
use crate::failure::Failure;
use crate::text::{self, plural};

/// See the head of the file.
pub(super) struct Verdict {
    pub state: PoolState,
    pub health: PoolHealth,
    /// One sentence, or some short ones.
    pub summary: String,
    /// Empty if nothing is to be done.
    pub action: String,
}

impl Verdict {
    pub(super) fn new(
        state: PoolState,
        summary: impl Into<String>,
        action: impl Into<String>,
    ) -> Verdict {
        Verdict { state, health: state.health(), summary: summary.into(), action: action.into() }
    }

    /// With how many of its volumes are still to be attached, and whose exports are not served.
    fn with_unserved(self, attaching: usize, unserved: &[String]) -> Verdict {
        let attached = match attaching {
            0 => String::new(),
            1 => "1 volume is being attached. ".to_owned(),
            count => format!("{count} volumes are being attached. "),
        };
        let (served, action, health) = match unserved {
            [] if attaching == 0 => return self,
            [] => (String::new(), self.action, PoolHealth::Degraded),
            [first, others @ ..] => {
                let more = match others.len() {
                    0 => String::new(),
                    count => format!(", and {count} more"),
                };
                let advice = "`forebay export list` says why; it is tried again".to_owned();
                let action = if self.action.is_empty() { advice } else { self.action };
                (format!("Not served: \"{first}\"{more}. "), action, PoolHealth::Failed)
            }
        };
        let rest = self.summary.strip_prefix("Healthy. ").unwrap_or(&self.summary);
        let summary = format!("{attached}{served}{rest}");
        Verdict { summary, action, health: self.health.max(health), ..self }
    }

    /// With what the worst of its SSDs says of itself.
    fn with_health(self, members: &[Member], pool: &str) -> Verdict {
        let said = members
            .iter()
            .filter_map(|member| Some((member.path.as_ref()?, member.health.as_ref()?)));
        let bad = said.filter(|(_, health)| health.verdict >= HealthVerdict::Warning);
        let slow = members.iter().find(|member| member.slow).and_then(|slow| slow.path.as_ref());
        let displaced = members.iter().find(|member| !member.displaced.is_empty());
        let displaced = displaced.and_then(|it| Some((it.path.as_ref()?, &it.displaced)));
        let (what, advice) = match (bad.max_by_key(|(_, health)| health.verdict), slow) {
            (Some((path, health)), _) if health.verdict == HealthVerdict::Failing => {
                let advice = format!(
                    "put another one in its place: `forebay pool device replace {pool} {} NEW`",
                    typed(path)
                );
                let path = path.display();
                (format!("SSD {path} is failing: {}", health.summary), advice)
            }
            _ if let Some((path, how)) = displaced => (
                format!("SSD {}: {how}", path.display()),
                "before the daemon ends: `forebay explain member-displaced`".to_owned(),
            ),
            (Some((path, health)), _) => (
                format!("SSD {} needs a look: {}", path.display(), health.summary),
                "`forebay explain ssd-warning`".to_owned(),
            ),
            (None, Some(path)) => (
                format!("SSD {} is much slower than the others", path.display()),
                "`forebay explain member-slow`".to_owned(),
            ),
            (None, None) => return self,
        };
        let rest = self.summary.strip_prefix("Healthy. ").unwrap_or(&self.summary);
        let summary = format!("{what}. {rest}");
        Verdict {
            health: self.health.max(PoolHealth::Degraded),
            summary,
            action: if self.action.is_empty() { advice } else { self.action },
            ..self
        }
    }
}

/// How far copies are that are made again, as a part of a sentence.
fn how_far(rebuild: &Rebuild) -> String {
    let done = rebuild.total_bytes.saturating_sub(rebuild.left_bytes) * 100;
    let Some(done) = done.checked_div(rebuild.total_bytes) else { return String::new() };
    let left = rebuild.left_s.map_or(String::new(), |s| format!(", about {} to go", text::left(s)));
    format!(": {done} % done{left}")
}

/// What of the clean data is copied again since a cache device was lost, as a further sentence.
fn clean_copied_again(open: &Open) -> String {
    match open.pool.short_clean_bytes(0) {
        0 => String::new(),
        short => format!(
            " {} of what is clean are copied again behind a cache device that was lost{}.",
            text::bytes(short),
            how_far(&open.recopy())
        ),
    }
}

/// What of the dirty data lacks copies, and until when, as a further sentence.
fn fewer_copies(open: &Open) -> String {
    match open.pool.short_bytes() {
        (0, _) => clean_copied_again(open),
        (short, true) => format!(
            " {} of it have fewer copies than asked until that is copied again{}.",
            text::bytes(short),
            how_far(&open.rebuild())
        ),
        (short, false) => format!(
            " {} of it have fewer copies than asked until that is destaged.",
            text::bytes(short)
        ),
    }
}

/// Whether some volume is to be written back and is not while there are fewer members than copies.
fn is_held(superblock: &Superblock) -> bool {
    let wants = |v: &VolumeRecord| v.mode.writes_back() && !v.accept_single_copy;
    !superblock.accept_single_copy && superblock.volumes.iter().any(wants)
}

/// How a pool is that is open here and writes.
fn state_of(redundancy: Redundancy, is_held: bool, lost: usize) -> PoolState {
    match redundancy {
        Redundancy::Whole if lost == 0 => PoolState::Online,
        Redundancy::Rebuilding | Redundancy::Returning => PoolState::Rebuilding,
        Redundancy::Protecting if is_held => PoolState::Protecting,
        Redundancy::Protected if is_held => PoolState::Protected,
        Redundancy::Whole | Redundancy::Protecting | Redundancy::Protected => PoolState::Degraded,
    }
}

/// What of a pool is on no origin, or nowhere.
fn held(open: &Open) -> String {
    let progress = open.progress.borrow();
    let mut held = match open.pool.unproven_blocks() * BLOCK_BYTES {
        0 if open.is_any_displaced() => "Nothing is dirty.".to_owned(),
        0 if open.pool.lost_blocks() > 0 => "Every origin has what is left.".to_owned(),
        0 => "Every origin has all of its data.".to_owned(),
        dirty => {
            let ssds = these_ssds(open.pool.superblock().present().count());
            format!("{} exist only on {ssds}; {}.", text::bytes(dirty), open.safe().when)
        }
    };
    if !progress.delay().is_empty() {
        held = format!("{held} {}", progress.delay());
    }
    if open.pool.is_unwitnessed() {
        held = format!("{UNWITNESSED} {held}");
    }
    match open.pool.lost_blocks() * BLOCK_BYTES {
        0 => {}
        bytes => held.push_str(&format!(
            " {} are lost, for no cache device has a good copy: reading them fails until they are overwritten.",
            text::bytes(bytes)
        )),
    }
    held
}

/// A volume whose origin is not what it should be.
struct Troubled {
    volume: String,
    state: VolumeState,
    /// What to do about an origin that is there and was refused; empty if that is not known.
    remedy: String,
}

/// Those of a pool.
fn troubled(open: &Open, pool: &str) -> Vec<Troubled> {
    let volumes = open.volumes.borrow();
    let look = |volume: &str, attached: &Attached| match attached {
        Attached::Missing { why, .. } => {
            let remedy = if why.code() == Code::Refused { why.hint_text() } else { "" };
            Some((missing_state(why), remedy.to_owned()))
        }
        Attached::Online(_) => Some((open.trouble(volume)?.0, String::new())),
    };
    let troubled = volumes.iter().filter_map(|(name, attached)| {
        let (state, remedy) = look(name, attached)?;
        Some(Troubled { volume: format!("{pool}/{name}"), state, remedy })
    });
    troubled.collect()
}

/// The volumes whose exports could not be served although they are there.
fn unserved(slot: &Slot, open: &Open) -> Vec<String> {
    let (volumes, exports) = (open.volumes.borrow(), open.exports.borrow());
    let is_online = |name: &String| matches!(volumes.get(name), Some(Attached::Online(_)));
    let failed = exports
        .iter()
        .filter(|(name, serving)| is_online(name) && matches!(serving, Serving::Failed { .. }));
    let pool = &slot.record.borrow().name;
    failed.map(|(name, _)| format!("{pool}/{name}")).collect()
}

/// How many volumes lack their origin, and how, as sentences.
fn without(troubled: &[Troubled]) -> String {
    let of_state = |state| troubled.iter().filter(|one| one.state == state).count();
    let counts = [
        (of_state(VolumeState::OriginMissing), "without origin"),
        (of_state(VolumeState::OriginRefused), "with an origin that was changed"),
        (of_state(VolumeState::OriginFailed), "with an origin that fails"),
    ];
    let some = counts.into_iter().filter(|(count, _)| *count > 0);
    some.map(|(count, how)| format!("{} {how}. ", plural(count, "volume"))).collect()
}

/// What it means that the daemon's own file of a pool cannot be written.
const UNWITNESSED: &str = "Its witness, in `state_dir`, cannot be written: clean volumes are written through until it can.";

impl Daemon {
    /// How a pool is, whose devices these are.
    pub(super) fn verdict(&self, slot: &Slot, name: &str, members: &[Member]) -> Verdict {
        let verdict = match &*slot.state.borrow() {
            State::Waiting { until } => {
                let (seen, unread) = (slot.seen.borrow(), slot.unread.borrow());
                let own: Vec<_> = seen.iter().collect();
                match newest(&own) {
                    _ if !slot.has_looked.get() && self.reactor.now() < *until => looked_for(),
                    Some(superblock) if slot.opening.get() => {
                        let lease_s = superblock.lease_ms().div_ceil(1_000).into();
                        being_opened(self.awaits_lease(&own).then_some(lease_s))
                    }
                    _ => {
                        let witnessed = slot.witnessed.borrow();
                        let volumes = witnessed
                            .iter()
                            .map(|it| (format!("{name}/{}", it.name), it.may_be_dirty));
                        let known = on_origins(volumes);
                        waiting(seen.len(), &unread, &slot.record.borrow().ssds, name, known)
                    }
                }
            }
            State::Failed(failure) => not_open(failure, name),
            State::Open(open) => self.judge(slot, open, name),
            State::Bypassed(direct) => self.judge_direct(slot, direct, name),
        };
        verdict.with_health(members, name)
    }

    fn judge(&self, slot: &Slot, open: &Open, name: &str) -> Verdict {
        if let Some(host) = open.pool.lost_to() {
            return Verdict::new(
                PoolState::LeaseLost,
                format!("Host \"{host}\" has taken it over; nothing is served or written here."),
                "use it there; to have it back, export it there, then restart the daemon here",
            );
        }
        if open.pool.is_latched() {
            return latched(&open.pool.superblock(), name);
        }
        let superblock = open.pool.superblock();
        let lost: Vec<_> = lost_of(&superblock, &slot.record.borrow().replaced).collect();
        let (redundancy, troubled) = (open.pool.redundancy(), troubled(open, name));
        let state = state_of(redundancy, is_held(&superblock), lost.len());
        let (without, held, risk) = (without(&troubled), held(open), fewer_copies(open));
        let is_amiss = open.pool.lost_blocks() > 0;
        let how = match (state, redundancy) {
            (PoolState::Protecting | PoolState::Protected, _) => {
                " Volumes are written through until there are enough again."
            }
            (_, Redundancy::Returning) => {
                " Volumes are written through until everything has its copies again."
            }
            _ => "",
        };
        let clean = if state == PoolState::Protected { "Protected, clean. " } else { "" };
        let ids: Vec<_> = lost.iter().map(ToString::to_string).collect();
        let action = self.action(slot, open, name, &ids, troubled.first());
        let summary = match lost.len() {
            0 if state != PoolState::Online => format!(
                "{without}{clean}Another cache device is in the place of one that was lost.{how} {held}{risk}"
            ),
            0 if !troubled.is_empty() || is_amiss => format!("{without}{held}"),
            0 if open.pool.is_unwitnessed() => format!("{held}{risk}"),
            0 if !action.is_empty() => {
                format!("It works, and there is something to do. {held}{risk}")
            }
            0 => format!("Healthy. {held}{risk}"),
            count => {
                let spare = match open.spares.are_ready() && open.spares.obstacle().is_empty() {
                    true => " A spare is about to take its place.",
                    false => "",
                };
                let count = plural(count, "cache device");
                format!("{without}{clean}It has gone on without {count}.{spare}{how} {held}{risk}")
            }
        };
        let mut verdict = Verdict::new(state, summary, action);
        if open.pool.is_unwitnessed() {
            verdict.health = verdict.health.max(PoolHealth::Degraded);
            if verdict.action.is_empty() {
                verdict.action =
                    "make room in `state_dir`, or mend its file system: `forebay explain \
                                  witness-unwritable`"
                        .to_owned();
            }
        }
        if !troubled.is_empty() || is_amiss {
            verdict.health = PoolHealth::Failed;
        }
        let is_attached = |v: &&VolumeRecord| open.volumes.borrow().contains_key(&v.name);
        let attaching =
            superblock.volumes.len() - superblock.volumes.iter().filter(is_attached).count();
        verdict.with_unserved(attaching, &unserved(slot, open))
    }

    /// What to do about a pool that has lost these cache devices, and whose volume is in such a state.
    fn action(
        &self,
        slot: &Slot,
        open: &Open,
        name: &str,
        lost: &[String],
        troubled: Option<&Troubled>,
    ) -> String {
        match troubled {
            Some(first) => return for_origin(first, open.is_any_displaced()),
            None if open.pool.lost_blocks() > 0 && lost.is_empty() => {
                return "restore what is lost through the volume; `forebay events` says where: `forebay explain \
                        blocks-lost`"
                    .to_owned();
            }
            None => {}
        }
        match (self.unfinished(slot, name), lost) {
            (Some(unfinished), _) => unfinished,
            (None, []) => slot.mend_spare(open, name),
            (None, _) if open.spares.are_ready() => open.spares.obstacle(),
            (None, [id, others @ ..]) => for_lost(name, id, others),
        }
    }
}

/// What to do about the origin of a volume that fails.
pub(super) fn mend_origin(volume: &str) -> String {
    format!("mend the origin, see `dmesg`; `forebay volume show {volume}` says what fails")
}

/// What to do about the origin of a volume; some origin in use may not be at its path.
fn for_origin(troubled: &Troubled, is_any_displaced: bool) -> String {
    let Troubled { volume, state, remedy } = troubled;
    match state {
        VolumeState::OriginFailed => mend_origin(volume),
        VolumeState::OriginRefused => format!(
            "attach the right origin; or decide what becomes of the dirty data: `forebay volume accept-origin {volume} \
             --dirty write` puts it over what the origin has now, `forebay volume accept-origin {volume} --dirty drop` \
             gives it up"
        ),
        _ if is_any_displaced => format!(
            "keep the daemon running: `forebay volume show {volume}`, then `forebay explain origin-missing`"
        ),
        _ if !remedy.is_empty() => format!("{remedy}: `forebay volume show {volume}`"),
        _ => format!("attach the origin; `forebay volume show {volume}` says why"),
    }
}

/// What to do about a cache device that was lost, and others.
fn for_lost(pool: &str, id: &str, others: &[String]) -> String {
    let (another, its, then) = match others {
        [] => ("another one", "its", String::new()),
        _ => ("others", "their", format!(", then the same for {}", others.join(" and "))),
    };
    format!(
        "put {another} in {its} place: `forebay pool device replace {pool} {id} PATH`{then}; one \
         that is back is stale, and must be erased first"
    )
}

/// A pool whose devices have not been looked for yet.
fn looked_for() -> Verdict {
    Verdict::new(PoolState::Waiting, "Its cache devices are being looked for.", "")
}

/// A pool that is being opened, which takes a lease of so many seconds if one is waited for.
fn being_opened(lease_s: Option<u64>) -> Verdict {
    let lease = lease_s.map_or(String::new(), |lease_s| {
        let lease = text::left(lease_s);
        format!(" Behind a start that was cut off, or another host, that takes the lease of the pool, {lease}.")
    });
    Verdict::new(PoolState::Waiting, format!("It is being opened.{lease}"), "")
}

/// A pool that has stopped writing.
fn latched(superblock: &Superblock, name: &str) -> Verdict {
    let volumes = superblock.volumes.iter();
    let (known, is_some_clean) =
        on_origins(volumes.map(|v| (format!("{name}/{}", v.name), v.may_be_dirty)));
    let summary =
        format!("A device error has stopped all writing; what can be read is served. {known}");
    let out = way_out(name, is_some_clean);
    let action =
        format!("see `forebay events`; mend the cache devices, then restart the daemon{out}");
    Verdict::new(PoolState::Latched, summary.trim_end(), action)
}

/// A pool of whose cache devices so many are there, and these cannot be read, and not all are; they were last at these
/// places. With none of them it cannot be opened, whoever asks for it.
fn waiting(
    seen: usize,
    unread: &[Unread],
    ssds: &[PathBuf],
    name: &str,
    (known, is_some_clean): (String, bool),
) -> Verdict {
    let out = way_out(name, is_some_clean);
    let (what, action) = match (seen, unread) {
        (0, []) => {
            let last: Vec<_> = ssds.iter().map(|path| path.display().to_string()).collect();
            let places = match last.is_empty() {
                true => String::new(),
                false => format!("; they were last at {}", last.join(", ")),
            };
            let what = format!("It waits for its cache devices, of which none is there. {known}");
            (what, format!("attach them{places}{out}"))
        }
        (0, [first, ..]) => (
            format!("It waits for its cache devices, of which none can be read. {known}"),
            format!("{}{out}", first.advice()),
        ),
        (_, []) => (
            "It waits for cache devices that are not there.".to_owned(),
            format!("attach them; or do not wait: `forebay pool import {name}`"),
        ),
        (_, [first, ..]) => (
            "It waits for cache devices that are not there, or cannot be read.".to_owned(),
            format!("{}; or do not wait: `forebay pool import {name}`", first.advice()),
        ),
    };
    let unread: String = unread.iter().map(|unread| format!(" {}.", unread.said())).collect();
    Verdict::new(PoolState::Waiting, format!("{}{unread}", what.trim_end()), action)
}

/// A pool that could not be opened, and why.
fn not_open(failure: &Failure, name: &str) -> Verdict {
    let state = match failure.code() {
        Code::NeedsDecision => PoolState::NeedsDecision,
        Code::HeldElsewhere => PoolState::HeldElsewhere,
        _ => PoolState::Failed,
    };
    let hint = failure.hint_text().trim_end_matches('.');
    let action = match state {
        PoolState::HeldElsewhere => hint.to_owned(),
        // Where something is to be accepted, the bare command would be refused again.
        _ if hint.contains("`forebay pool import ") => hint.to_owned(),
        _ if hint.is_empty() => format!("mend that; then `forebay pool import {name}`"),
        _ => format!("{hint}; then `forebay pool import {name}`"),
    };
    Verdict::new(state, format!("It is not open: {}.", failure.what()), action)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[test]
    fn with_fewer_copies_by_agreement_a_pool_is_degraded_and_protects_nothing() {
        use Redundancy::{Protected, Protecting, Rebuilding, Returning, Whole};
        assert_eq!(state_of(Whole, true, 0), PoolState::Online);
        assert_eq!(state_of(Whole, true, 1), PoolState::Degraded);
        assert_eq!(state_of(Rebuilding, true, 0), PoolState::Rebuilding);
        assert_eq!(state_of(Returning, true, 0), PoolState::Rebuilding);
        assert_eq!(state_of(Protecting, true, 1), PoolState::Protecting);
        assert_eq!(state_of(Protected, true, 1), PoolState::Protected);
        for redundancy in [Protecting, Protected] {
            assert_eq!(state_of(redundancy, false, 1), PoolState::Degraded);
        }
    }

    #[test]
    fn what_is_not_served_is_not_called_healthy() {
        let well =
            || Verdict::new(PoolState::Online, "Healthy. Every origin has all of its data.", "");
        let same = well().with_unserved(0, &[]);
        assert!(same.summary.starts_with("Healthy. ") && same.health == PoolHealth::Good);
        let begun = well().with_unserved(1, &[]);
        assert_eq!(begun.summary, "1 volume is being attached. Every origin has all of its data.");
        assert!(begun.health == PoolHealth::Degraded && begun.action.is_empty());
        let failed = well().with_unserved(2, &["fast/a".into(), "fast/b".into()]);
        let said = "2 volumes are being attached. Not served: \"fast/a\", and 1 more. ";
        assert!(failed.summary.starts_with(said), "{}", failed.summary);
        assert!(failed.health == PoolHealth::Failed && failed.action.contains("export list"));
    }

    #[test]
    fn what_is_being_opened_is_not_said_to_lack_anything() {
        let opened = being_opened(Some(24));
        assert!(
            opened.summary.ends_with("takes the lease of the pool, 24 s."),
            "{}",
            opened.summary
        );
        assert!(opened.action.is_empty() && !opened.summary.contains("  "), "{}", opened.summary);
        assert_eq!(being_opened(None).summary, "It is being opened.");
        let waits = waiting(1, &[], &[], "fast", on_origins([].into_iter()));
        assert!(waits.summary.contains("not there") && waits.action.contains("import fast"));
    }

    /// With none of its devices it cannot be imported.
    #[test]
    fn a_pool_without_any_cache_device_is_not_to_be_imported() {
        let known = |volumes: &[(&str, bool)]| {
            on_origins(volumes.iter().map(|(name, is_dirty)| ((*name).to_owned(), *is_dirty)))
        };
        let at = ["/dev/a".into(), "/dev/b".into()];
        let gone = waiting(0, &[], &at, "fast", known(&[("fast/a", true)]));
        assert_eq!(gone.action, "attach them; they were last at /dev/a, /dev/b");
        assert!(
            gone.summary.ends_with("may lack data that only its cache devices have: \"fast/a\".")
        );
        let nothing = waiting(0, &[], &[], "fast", known(&[]));
        assert_eq!(nothing.action, "attach them");
        assert_eq!(nothing.summary, "It waits for its cache devices, of which none is there.");
        let some = waiting(0, &[], &[], "fast", known(&[("fast/a", true), ("fast/b", false)]));
        assert!(
            some.summary.contains("The origins of \"fast/b\" have all of their data; those of")
        );
        assert!(some.action.ends_with("`forebay pool bypass fast`"), "{}", some.action);
        let whole = waiting(0, &[], &[], "fast", known(&[("fast/b", false)]));
        assert!(whole.summary.ends_with(" Every origin has all of its data."), "{}", whole.summary);
    }

    /// The commands that a text quotes.
    fn commands(text: &str) -> Vec<&str> {
        let quoted = text.split('`').skip(1).step_by(2);
        quoted.filter(|quoted| quoted.starts_with("forebay ")).collect()
    }

    #[test]
    fn a_command_that_an_action_names_is_a_whole_one() {
        use VolumeState::{OriginFailed, OriginMissing, OriginRefused};
        let failed =
            |code, hint: &str| not_open(&Failure::coded(code, "it").hint(hint), "fast").action;
        let accept = "attach it; or accept it: `forebay pool import fast --accept-missing`.";
        let origins = [
            (OriginFailed, ""),
            (OriginRefused, ""),
            (OriginMissing, ""),
            (OriginMissing, "make it larger"),
        ];
        let troubled = |(state, remedy): (_, &str)| {
            let (volume, remedy) = ("fast/vm".to_owned(), remedy.to_owned());
            Troubled { volume, state, remedy }
        };
        let mut actions: Vec<_> = origins.map(|origin| for_origin(&troubled(origin), false)).into();
        actions.push(for_origin(&troubled(origins[2]), true));
        actions.extend([
            for_lost("fast", "bbbb", &[]),
            for_lost("fast", "bbbb", &["cccc".to_owned()]),
            waiting(1, &[], &[], "fast", on_origins([].into_iter())).action,
            waiting(0, &[], &[], "fast", (String::new(), true)).action,
            failed(Code::NeedsDecision, accept),
            failed(Code::NeedsDecision, ""),
            failed(Code::Io, "mend the device"),
        ]);
        for action in &actions {
            let commands = commands(action);
            assert!(!commands.is_empty(), "{action}");
            for command in commands {
                let words = shlex::split(command).unwrap();
                let parsed = crate::Cli::try_parse_from(words);
                assert!(parsed.is_ok(), "{command}: {}", parsed.err().unwrap());
            }
        }
    }

    #[test]
    fn what_has_to_be_accepted_is_not_asked_for_without_that() {
        let hint = "attach it; or accept it: `forebay pool import fast --accept-missing`";
        let failure = Failure::coded(Code::NeedsDecision, "it lacks one").hint(hint);
        assert_eq!(not_open(&failure, "fast").action, hint);
        let other = Failure::coded(Code::Io, "it fails").hint("mend it");
        assert_eq!(not_open(&other, "fast").action, "mend it; then `forebay pool import fast`");
    }
}
