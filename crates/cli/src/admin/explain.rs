//! `forebay explain`: what the codes of events, errors and states mean.

use clap::Args;
use forebay_control::api::Many;
use serde::Serialize;

use super::say_json;
use crate::Result;
use crate::failure::Failure;
use crate::text::{beside, say};

/// See the head of the file.
#[derive(Args)]
pub(crate) struct Options {
    /// A code, as `forebay events`, an error or a state has it; without it all are listed
    code: Option<String>,
    /// Print the answer as JSON, with the version of its form as `schema`
    #[arg(long, display_order = 901)]
    json: bool,
}

/// One code, for `--json`.
#[derive(Serialize)]
struct Explained {
    code: &'static str,
    means: &'static str,
    action: &'static str,
}

/// Every code: what it means, and what to do.
pub(crate) const CODES: &[(&str, &str, &str)] = &[
    ("daemon-started", "The daemon takes requests.", "Nothing."),
    (
        "daemon-memory",
        "What the kernel grants the daemon's memory: to be locked (never swapped out), and to be made free without I/O, which could wait for the daemon itself.",
        "If either is refused: LimitMEMLOCK=infinity or CAP_IPC_LOCK; CAP_SYS_RESOURCE and Linux 5.6. It works without, and may be slow or hang when memory is short.",
    ),
    (
        "socket-unused",
        "The service manager has passed a descriptor that the daemon cannot use, or not yet; the text says which and why.",
        "Mend the socket unit (`FileDescriptorName=control`, or POOL/NAME of the volume that is exported there); or `forebay export add` at that place.",
    ),
    ("daemon-stopping", "The daemon was asked to end.", "Nothing: dirty data stays in the cache."),
    ("pool-created", "A pool was made.", "Add a volume: `forebay volume add`."),
    (
        "pool-not-made",
        "Making a pool ended half way, by a failure or a crash; what it had written was taken off again, or the text says why not.",
        "Make it again. If a device was not there, attach it and restart the daemon.",
    ),
    ("pool-opened", "A pool was found and opened; the text says what its start found.", "Nothing."),
    (
        "pool-waiting",
        "Not all cache devices of a pool are there. The start waits for `devices.wait_s` before it goes on without them, if what is left may do that.",
        "Attach them. A device that the pool went on without is stale for good and must be added anew.",
    ),
    (
        "pool-failed",
        "A pool could not be opened or stopped; the text says why.",
        "Mend the cause, then `forebay pool import NAME`.",
    ),
    (
        "pool-latched",
        "A cache device failed on a write or a flush, or did not answer in time, so what it holds is not certain, and the pool cannot go on without it: it is the last one, its pool was being opened, or the witness cannot be written. The pool has stopped writing; what can be read is served.",
        "See `dmesg` for the device. Mend it, or take it away if dirty data has another copy, then restart the daemon.",
    ),
    (
        "member-failed",
        "A cache device failed on a write or a flush, or did not answer in time, while the pool was in use, and the pool goes on without it for good. The text says whether anything is lost, how much dirty data has fewer copies than asked, and until when.",
        "Leave the other devices in place until `copies-restored`, or until nothing is dirty. Take the failed one away; if it comes back it is stale and is not used.",
    ),
    (
        "ssd-warning",
        "An SSD of a pool says of itself that it is worn, too hot, or could not read what it holds; the text says which. It works.",
        "Cool it, or plan for another one: `forebay pool device replace POOL OLD NEW`. `forebay pool show` has the figures.",
    ),
    (
        "ssd-failing",
        "An SSD of a pool says of itself that it is failing, or takes no writes any more. It is used as long as it answers without errors.",
        "Put another one in its place now: `forebay pool device replace POOL OLD NEW`. Dirty data with one copy may be lost with it: `forebay volume flush`.",
    ),
    (
        "ssd-relieved",
        "An SSD says that it is failing, and a spare takes its place before it does, for `devices.replace_failing` is set. All data has its copies all the time.",
        "Watch the job: `forebay job list`. Take the old SSD away when it is over, and give the pool another spare: `forebay pool device spare`.",
    ),
    ("ssd-well", "What an SSD had to complain of is gone.", "Nothing."),
    (
        "member-added",
        "A cache device was added to a pool, as was asked for. New data goes to it from now on; what has fewer copies than asked is copied there.",
        "Nothing. If one was lost before, wait for `copies-restored`.",
    ),
    (
        "member-grown",
        "A pool uses more of a cache device that has become larger, as was asked for. New data goes there from now on.",
        "Nothing.",
    ),
    (
        "member-larger",
        "A cache device is larger than what its pool uses of it; the text says by how much.",
        "`forebay pool device grow` has the pool use all of it; nothing happens without that.",
    ),
    (
        "member-removed",
        "A cache device was taken out of a pool, as was asked for: the others have all that it held, and its superblock is erased.",
        "It can be taken away, or be added again.",
    ),
    (
        "spare-added",
        "A pool was given a spare: it holds nothing, and takes the place of a cache device that is lost.",
        "Nothing.",
    ),
    ("spare-removed", "A pool has given a spare up, as was asked for.", "It can be taken away."),
    (
        "spare-taken",
        "A cache device was lost, and a spare has taken its place by itself. What was dirty there gets its copies again, and volumes that were written through for want of cache devices are written back again.",
        "Leave the others in place until `copies-restored`. Take the lost one away, and give the pool another spare: `forebay pool device spare`.",
    ),
    (
        "spare-failed",
        "A spare could not be made a cache device; the text says why. The next spare is tried. This one is not tried again before the next start.",
        "See `dmesg` for the device. Replace it: `forebay pool device remove`, then `forebay pool device spare`.",
    ),
    (
        "spare-missing",
        "A spare of a pool is not there, or is not what it was; the text says why. The pool goes on without it, and it is looked for.",
        "Attach it; or take it off the list: `forebay pool device remove`.",
    ),
    ("spare-found", "A spare that was missing is there again.", "Nothing."),
    (
        "spare-waiting",
        "A cache device was lost, and no spare can be taken yet; the text says why. It is tried again every second.",
        "See the text. What is missing can be done by hand: `forebay pool device add`.",
    ),
    (
        "member-hung",
        "A cache device has not answered a request within the pool's device deadline. Whoever waited for it goes on without it; what was sent to it stays with it, and nothing comes of a late answer. `member-failed` or `pool-latched` follows.",
        "See `dmesg` and the cabling; `forebay pool show` tells whether it has answered since. If it is only slow, raise the limit: `forebay pool set NAME device_deadline=30s`.",
    ),
    (
        "member-slow",
        "A cache device answers, and takes at least ten times as long as the others for the slowest hundredth of its requests, for a minute now. Nothing is lost; clients wait for it where it has the only copy, and writes wait for it always.",
        "Look at its temperature, its life used and the kernel's log (`forebay pool show`, `dmesg`): an SSD that is hot throttles, one that is worn or failing retries. See with `forebay pool device can-i-pull` whether it may go, and replace it if it goes on: `forebay pool device replace`.",
    ),
    (
        "member-quick",
        "A cache device that was slow is not any more.",
        "Nothing; if it comes back, see `member-slow`.",
    ),
    (
        "member-missing",
        "The pool was opened without one of its cache devices and goes on without it for good.",
        "Add another one (`forebay pool device add`). One that comes back is stale: it can be added again once it is erased.",
    ),
    (
        "member-stale",
        "A cache device is there that the pool has gone on without; it is not used.",
        "Take it away, or erase it for another use.",
    ),
    (
        "pool-held-elsewhere",
        "A pool was not opened, because another host has it open or did not close it.",
        "Stop it there: `forebay pool export NAME`. If that host is dead: `forebay pool import NAME --take-over`.",
    ),
    (
        "pool-taken-over",
        "A pool was taken from another host that had not closed it and was not heard of for as long as it would have kept it. If it comes back it writes nothing.",
        "Nothing, if that host was dead. If it was not, find out why it could not reach the cache devices.",
    ),
    (
        "lease-lost",
        "Event, and state of a pool: another host has taken it while this one did not keep it, for it stood still or could not reach the cache devices. Nothing is served or written here any more; what was not acknowledged is lost.",
        "Use the pool there. To have it back: `forebay pool export NAME` there, then restart the daemon here.",
    ),
    (
        "pool-unclaimed",
        "It cannot be said on the cache devices who has a pool open: the pool was made by an older version with just no room for it, or this machine has no identity.",
        "Without /etc/machine-id set `host_id` in the configuration. Never let two machines open the pool.",
    ),
    (
        "held-elsewhere",
        "State of a pool, or error 409: another host has it open or did not close it.",
        "Stop it there: `forebay pool export NAME`. If that host is dead: `forebay pool import NAME --take-over`.",
    ),
    (
        "loss-accepted",
        "The pool was opened with --accept-missing although writes that only missing devices held may be lost.",
        "Check what is on the volumes that the text names.",
    ),
    (
        "blocks-lost",
        "Dirty data had its only copy on cache devices that have failed or are gone; the text says how much of which volume. (`damage-unhealed` is the same of devices that serve.) Reading it fails until it is overwritten, over restarts, too; what is older is never read instead. The next FLUSH of each client fails, once. All else is served.",
        "Write it anew through the volume, in whole blocks of 4 KiB: from a backup, or by a repair of the file system. If older data is better than an error, `forebay volume accept-lost`. `forebay volume show` says how much is left.",
    ),
    (
        "lost-accepted",
        "A person has given up what is lost of a volume: reads of it return what the origin has there, which is older than what was written, of another age from block to block.",
        "Check what is on the volume: repair the file system, have the database verify its pages.",
    ),
    (
        "copies-short",
        "Fewer cache devices are left than dirty data has copies; the text says how the volume is served.",
        "Add a cache device (`forebay pool device add`), or bring its data home (`forebay volume flush`).",
    ),
    (
        "protected-clean",
        "After a loss that left fewer cache devices than dirty data has copies, every origin has all of its data. The loss of another one loses none.",
        "Put another one in the place of the lost one: `forebay pool device replace`.",
    ),
    (
        "copies-restored",
        "Dirty data has all its copies again. Volumes that were written through for want of cache devices are written back again.",
        "Nothing.",
    ),
    ("copies-raised", "All dirty data has the copies that were asked for last.", "Nothing."),
    (
        "start-cramped",
        "The last run ended with a crash, perhaps after a failed flush, and the log is too full to write again what nothing proves to be durable.",
        "Bring the data home before anything else: `forebay volume flush`.",
    ),
    (
        "index-damaged",
        "Part of the saved index could not be read and starts empty; nothing of it was dirty.",
        "See `dmesg` for the cache devices. It costs misses only.",
    ),
    (
        "witness-unknown",
        "The witness in the state directory is missing, unreadable, or of another pool; a new one is written.",
        "Nothing, if the pool has just been made or moved here; else check the state directory.",
    ),
    (
        "witness-unwritable",
        "The witness cannot be written. Volumes that are clean cannot be written back meanwhile.",
        "Make room in the state directory, or mend its file system.",
    ),
    (
        "origin-changed",
        "The origin of a volume was changed while its pool was stopped: what was cached of it is dropped.",
        "Use the origin only through the volume, or remove the volume before.",
    ),
    (
        "origin-flush-failed",
        "A flush of an origin failed. Destaged data is written again; clients are told at their next flush if something they wrote may be lost.",
        "See `dmesg` for the origin.",
    ),
    (
        "destage-failed",
        "Dirty data could not be written to its origin; it stays safe in the cache and is tried again once a second. The same failure is told once in ten minutes.",
        "See `dmesg` for the origin.",
    ),
    (
        "ram-refused",
        "There was no memory for a pool's RAM tier when it was opened: it serves without one.",
        "Free memory or raise the limit of locked memory and start again, or `forebay pool set NAME ram=SIZE`.",
    ),
    (
        "damage-found",
        "A cache device could not read data, or has returned data that is not what was written there: its checksum does not fit. The text counts the blocks of 4 KiB since the pool was opened, at the first one, the tenth, the hundredth and so on. Data with another copy is served from that, and is copied again within seconds; clean data without one is served from its origin. Nothing damaged is written to an origin.",
        "One or two blocks a year happen. If it goes on, replace the device: bring its data home first (`forebay volume flush`). `forebay scrub start POOL` looks through all of it; `verify=reads` keeps damaged data from clients.",
    ),
    (
        "damage-unhealed",
        "Dirty data can be read from none of its copies, or is damaged in all of them, and its origin has an older version. The blocks that the text names are lost: reading them fails until they are overwritten, over restarts, too; what is older is never read instead. The next FLUSH of each client fails, once. All else is served.",
        "Write it anew through the volume, in whole blocks of 4 KiB, from a backup; if older data is better than an error, `forebay volume accept-lost`. Replace the device if it goes on: bring its data home first (`forebay volume flush`).",
    ),
    ("scrub-started", "Somebody has started a scrub.", "Nothing."),
    (
        "scrub-stopped",
        "Somebody has ended a scrub before its end.",
        "Nothing: the next one begins when it is due.",
    ),
    (
        "scrub-ended",
        "A scrub has read all copies of what a pool holds; the text says what it found and healed.",
        "If something was damaged, see `damage-found`.",
    ),
    ("pool-set", "A setting of a pool was changed.", "Nothing."),
    ("pool-stopped", "A pool was closed in order.", "Nothing."),
    (
        "pool-exported",
        "A pool was closed and forgotten.",
        "`forebay pool import` brings it back, here or elsewhere.",
    ),
    ("pool-destroyed", "A pool was erased from its cache devices.", "Nothing."),
    (
        "volume-added",
        "A volume was put in front of an origin.",
        "Serve it: `forebay export add`. From now on use the disk only through the volume.",
    ),
    ("volume-online", "The origin of a volume was attached.", "Nothing."),
    (
        "origin-grown",
        "The origin of a volume is larger than the volume.",
        "`forebay volume grow` makes the volume as large; nothing happens without that.",
    ),
    (
        "volume-grown",
        "A volume has become as large as its origin.",
        "Have clients connect again: the NBD protocol has no message for a new size.",
    ),
    (
        "writers-delayed",
        "Writers of a pool have been held back for three seconds, because dirty data is near its limit or the cache is full; nobody is stopped, and reads do not wait.",
        "Nothing, if it is a burst. Else the origins are slower than what is written: a larger cache delays it, faster origins end it.",
    ),
    ("writers-free", "No writer of a pool has been held back for ten seconds.", "Nothing."),
    ("volume-mode", "A volume is served in another way.", "Nothing."),
    ("volume-set", "Settings of a volume were changed; the text names them.", "Nothing."),
    (
        "volume-removed",
        "A volume is gone and its origin is the plain disk with all data.",
        "Nothing.",
    ),
    (
        "origin-missing",
        "The origin of a volume cannot be used. What is cached of it is safe, dirty data too.",
        "Attach it at its path; the daemon looks every second, and if something else is wrong with it every ten. One that does not answer (a dead path, a hung file system) comes online when it does. If it is an export of another server, look there: the text says what is wrong.",
    ),
    (
        "origin-refused",
        "The origin of a volume was changed while the pool was stopped, and dirty data waits for it: written over what is there now, that could destroy it. Nothing is done, and nothing is lost.",
        "If another disk is at its path, attach the right one. If somebody has mounted it or restored a backup onto it, decide which of the two counts: `forebay volume accept-origin POOL/NAME --dirty write` brings the dirty data to the origin as it is (blocks that both have written become the cache's: check the file system afterwards), `--dirty drop` gives the dirty data up. `--dry-run` says how much it is.",
    ),
    (
        "origin-accepted",
        "A person has decided what becomes of dirty data whose origin was changed while the pool was stopped; the text says what. The volume is online.",
        "Check its file system if the dirty data was written.",
    ),
    (
        "origin-failed",
        "The origin of a volume is there, but all reads of it, or all writes and flushes, fail, or it does not answer. What is cached is served; reads of anything else fail exactly there. Dirty data waits safely in the cache, and writes go on as long as there is room.",
        "See `dmesg` for the origin, and mend it: everything goes on by itself then. `forebay volume show` says what fails.",
    ),
    ("export-added", "A volume is served.", "Nothing."),
    ("export-removed", "A volume is not served any more.", "Nothing."),
    (
        "export-failed",
        "A volume cannot be served at its address; the text says why.",
        "Free the address; or `forebay export remove` and `forebay export add` at another one.",
    ),
    (
        "state-unwritable",
        "The state directory cannot be written.",
        "Make room, or mend its file system.",
    ),
    ("online", "State of a pool or volume: it serves.", "Nothing."),
    (
        "degraded",
        "State of a pool: it serves without some of its cache devices, and what is dirty has all its copies, or as many as its owner agreed to.",
        "Put another one in the place of the lost one: `forebay pool device replace`.",
    ),
    (
        "rebuilding",
        "State of a pool: cache devices were lost, and what is dirty gets its copies back. Until then the loss of another one may lose data; the status says how much and how long.",
        "Leave the other devices in place until `copies-restored`.",
    ),
    (
        "protecting",
        "State of a pool: fewer cache devices are left than dirty data has copies. Volumes are written through, what is dirty is brought to its origin as fast as that takes it, and nothing new is cached. Until then the loss of another device may lose data; the status says how much and how long.",
        "Leave the other devices in place until `protected-clean`. Put another one in the place of the lost one: `forebay pool device replace`.",
    ),
    (
        "protected",
        "State of a pool: fewer cache devices are left than dirty data has copies, and every origin has all of its data: the loss of another device loses none. Volumes are written through until there are enough again and everything has its copies.",
        "Put another one in the place of the lost one: `forebay pool device replace`.",
    ),
    (
        "latched",
        "State of a pool: a device error has stopped all writing. What can be read is served.",
        "See `forebay events` for the device; mend it or take it away, then restart the daemon.",
    ),
    (
        "waiting",
        "State of a pool: cache devices are not there.",
        "Attach them; or do not wait: `forebay pool import NAME`.",
    ),
    (
        "needs-decision",
        "State of a pool, or error: going on may lose data, so a person has to say so.",
        "Attach what is missing. Only if it is gone for good: `forebay pool import NAME --accept-missing`.",
    ),
    ("failed", "State of a pool: it cannot be opened.", "`forebay pool show NAME` says why."),
    (
        "exported",
        "State of a pool: its cache devices are here, and nobody has imported it.",
        "`forebay pool import NAME`.",
    ),
    ("offline", "State of a volume: its pool is not open.", "See its pool."),
    ("bad-request", "Error 400: the request makes no sense.", "See the message."),
    ("not-found", "Error 404: there is no such thing.", "`forebay status` lists what there is."),
    ("bad-method", "Error 405: this cannot be done with that.", "See docs/user/reference.md."),
    ("too-large", "Error 413: the body of a request is longer than 64 KiB.", "Send less."),
    ("exists", "Error 409: the name is taken, or it is so already.", "Choose another name."),
    (
        "refused",
        "Error 409: what is asked does not go together with what is there.",
        "See the message.",
    ),
    (
        "busy",
        "Error 409: something is under way, or clients are connected.",
        "Wait, or end that first.",
    ),
    ("io", "Error 500: a device failed.", "See `forebay events` and `dmesg`."),
    ("stopping", "Error 503: the daemon is about to end.", "Start it again."),
];

/// Runs the command.
pub(crate) fn run(options: &Options) -> Result<()> {
    let wanted = match &options.code {
        Some(code) => vec![find(code)?],
        None => CODES.iter().collect(),
    };
    if options.json {
        let explain = |&&(code, means, action): &&_| Explained { code, means, action };
        say_json(&Many::of(wanted.iter().map(explain).collect()));
    } else if options.code.is_none() {
        wanted.iter().for_each(|(code, ..)| say(code));
    } else {
        for (code, means, action) in wanted {
            say(code);
            say(beside("  means   ", means));
            say(beside("  action  ", action));
        }
    }
    Ok(())
}

/// The row of a code.
fn find(wanted: &str) -> Result<&'static (&'static str, &'static str, &'static str)> {
    CODES.iter().find(|(code, ..)| *code == wanted).ok_or_else(|| {
        let nearest =
            CODES.iter().min_by_key(|(code, ..)| strsim::damerau_levenshtein(code, wanted));
        let nearest = nearest.map_or("", |(code, ..)| code);
        Failure::new(format!("there is no code \"{wanted}\""))
            .hint(format!("did you mean {nearest}? `forebay explain` lists all"))
    })
}

#[cfg(test)]
mod tests {
    use super::CODES;
    use forebay_control::error;
    use forebay_engine::EventKind;

    #[test]
    fn every_error_code_is_explained_with_its_status() {
        for (_, status, name) in error::CODES {
            let explained = CODES.iter().find(|(code, ..)| *code == name);
            let is_right = explained.is_some_and(|(_, means, _)| {
                means.contains(&status.to_string()) || name == "needs-decision"
            });
            assert!(is_right, "{name}");
        }
    }

    #[test]
    fn every_kind_of_a_pools_events_is_explained_under_a_code_of_its_own() {
        let mut codes: Vec<_> = EventKind::ALL.iter().map(|kind| kind.code()).collect();
        for code in &codes {
            assert!(CODES.iter().any(|(known, ..)| known == code), "{code}");
        }
        codes.sort_unstable();
        codes.dedup();
        assert_eq!(codes.len(), EventKind::ALL.len());
    }

    #[test]
    fn every_critical_code_is_explained() {
        for code in crate::daemon::journal::CRITICAL {
            assert!(CODES.iter().any(|(known, ..)| *known == code), "{code}");
        }
    }

    #[test]
    fn every_code_that_the_daemon_notes_is_explained() {
        let sources = [
            include_str!("../daemon/mod.rs"),
            include_str!("../daemon/creation.rs"),
            include_str!("../daemon/ending.rs"),
            include_str!("../daemon/memory.rs"),
            include_str!("../daemon/pools.rs"),
            include_str!("../daemon/spares.rs"),
            include_str!("../daemon/volumes.rs"),
            include_str!("../daemon/exports.rs"),
            include_str!("../daemon/health.rs"),
        ];
        let mut noted = 0;
        for source in sources {
            for call in ["journal.note(\"", "journal.warn(\""] {
                for rest in source.split(call).skip(1) {
                    let code = rest.split('"').next().unwrap_or_default();
                    assert!(CODES.iter().any(|(known, ..)| *known == code), "{code}");
                    noted += 1;
                }
            }
        }
        assert!(noted >= 15, "{noted}");
    }
}
