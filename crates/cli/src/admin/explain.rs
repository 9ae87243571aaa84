//! `forebay explain`: what the codes of events, errors and states mean.

use clap::Args;
use forebay_control::api::Many;
use serde::Serialize;

use super::say_json;
use crate::Result;
use crate::failure::Failure;
use crate::text::{self, prose, say};

/// See the head of the file.
#[derive(Args)]
pub(crate) struct Options {
    /// A code, as `forebay events`, an error or a state has it; without it all are listed
    code: Option<String>,
    /// Print the answer as JSON, with the version of its form as `schema`
    #[arg(long, display_order = 901)]
    json: bool,
}

/// A code of an event, an error or a state.
#[derive(Serialize)]
pub(crate) struct Code {
    pub(crate) code: &'static str,
    /// What has happened, and why.
    pub(crate) means: &'static str,
    /// What may be lost, or does not work, until something is done.
    pub(crate) risk: &'static str,
    /// What to do.
    pub(crate) action: &'static str,
}

const fn risky(
    code: &'static str,
    means: &'static str,
    risk: &'static str,
    action: &'static str,
) -> Code {
    Code { code, means, risk, action }
}

const fn safe(code: &'static str, means: &'static str, action: &'static str) -> Code {
    risky(code, means, "None.", action)
}

/// Every code.
pub(crate) const CODES: &[Code] = &[
    safe("daemon-started", "The daemon takes requests.", "Nothing."),
    risky(
        "daemon-memory",
        "What the kernel grants the daemon's memory: to be locked (never swapped out), and to be made free without I/O, which could wait for the daemon itself.",
        "None for data. Where either is refused it may be slow, or hang, when memory is short.",
        "If either is refused: LimitMEMLOCK=infinity or CAP_IPC_LOCK; CAP_SYS_RESOURCE and Linux 5.6.",
    ),
    risky(
        "socket-unused",
        "The service manager has passed a descriptor that the daemon cannot use, or not yet; the text says which and why.",
        "The volume is not served at that socket.",
        "Mend the socket unit (`FileDescriptorName=control`, or POOL/NAME of the volume that is exported there); or `forebay export add` at that place.",
    ),
    safe(
        "certificate-refused",
        "Clients that look at the exports' certificate refuse it: it has expired, is not valid yet or not made for servers. Said once a day.",
        "Put another one at `tls.certificate` and start the daemon again; see whether the clock is right.",
    ),
    safe(
        "certificate-expires",
        "The exports' certificate expires within 14 days. Said once a day.",
        "Put another one at `tls.certificate` and start the daemon again.",
    ),
    safe(
        "daemon-stopping",
        "The daemon was asked to end.",
        "Nothing: dirty data stays in the cache.",
    ),
    safe("pool-created", "A pool was made.", "Add a volume: `forebay volume add`."),
    risky(
        "pool-not-made",
        "Making a pool ended half way, by a failure or a crash; what it had written was taken off again, or the text says why not.",
        "None: nothing was in it.",
        "Make it again. If a device was not there, attach it and restart the daemon.",
    ),
    risky(
        "pool-not-destroyed",
        "A pool that is being destroyed could not be erased from one of its cache devices; the text says why. It is tried again, also after a restart.",
        "None: all of its data is on the origins, and it is not opened any more.",
        "Do what the text says: free the device, attach it, or take it out of the machine for good.",
    ),
    safe(
        "pool-opened",
        "A pool was found and opened; the text says what its start found.",
        "Nothing.",
    ),
    risky(
        "pool-waiting",
        "Not all cache devices of a pool are there. The start waits for `devices.wait_s` before it goes on without them, if what is left may do that.",
        "None yet: nothing is served. A device that the pool goes on without is stale for good.",
        "Attach them. One that the pool went on without must be added anew.",
    ),
    risky(
        "member-unreadable",
        "A cache device of a pool that is not open is there, and nobody can read its superblocks: both are damaged, they contradict each other, or a later version of Forebay wrote them. The text says which device and why.",
        "None yet: nothing is served and nothing was changed. Behind `devices.wait_s` the pool goes on for good without one that is damaged, if what is left may do that; one of a later version keeps it closed.",
        "Use the version of Forebay that wrote it, or a later one. One that is damaged: see `forebay inspect PATH`; put back a copy of its first 256 KiB if there is one.",
    ),
    risky(
        "pool-missing",
        "The wait of `devices.wait_s` for the cache devices of a pool is over, and none of them is there, or can be read. They are looked for every ten seconds.",
        "Its volumes are not served. Everything is on the devices as it was, dirty data too.",
        "Attach them: the pool opens by itself. If they are gone for good, what was dirty is lost, and the origins have the rest: `forebay pool bypass NAME` serves those that are whole; they are free for another pool once `forebay pool export NAME` has forgotten this one.",
    ),
    risky(
        "pool-failed",
        "A pool could not be opened or stopped, or what the daemon was told of it (`pool.json` in the state directory) cannot be read; the text says why.",
        "Its volumes are not served. What is cached stays as it is, dirty data too.",
        "Mend the cause, then `forebay pool import NAME`; after a record that cannot be read, restart the daemon. Or `forebay pool export` that pool by its identity, which keeps the file, import it by its name, and add its exports anew.",
    ),
    risky(
        "pool-latched",
        "A cache device failed on a write or a flush, or did not answer in time, so what it holds is not certain, and the pool cannot go on without it: it is the last one, or the witness cannot be written. The pool has stopped writing; what can be read is served.",
        "Writes to its volumes fail until it is opened again. Dirty data that only the failed device has may be lost with it.",
        "See `dmesg` for the device. Mend it, or take it away if dirty data has another copy, then restart the daemon. Volumes whose origins have everything can be served without it: `forebay pool bypass NAME`.",
    ),
    risky(
        "member-failed",
        "A cache device failed on a write or a flush, returned nothing any more, did not answer in time, or was found set back to an earlier state, and the pool goes on without it for good. Where that was in use, the text says whether anything is lost, how much dirty data has fewer copies than asked, and until when. Where the pool was being opened, nothing that is dirty is lost.",
        "The next device that fails may take dirty data, until all of it has its copies again or is destaged; the text says how much and until when.",
        "Leave the other devices in place until `copies-restored`, or until nothing is dirty. Take the failed one away; if it comes back it is stale and is not used.",
    ),
    risky(
        "member-displaced",
        "The file of a cache device, or of a spare, was removed, moved, replaced or shortened while the pool uses it; the text says which. It is used as before.",
        "None while the daemon runs. The next start does not find it: what is dirty on it alone is lost then.",
        "Before the daemon ends: move it back to its path; or, if it was removed, put another one in its place: `forebay pool device replace POOL OLD NEW`.",
    ),
    safe(
        "member-in-place",
        "A cache device that was `member-displaced` is at its path again.",
        "Nothing.",
    ),
    risky(
        "ssd-warning",
        "An SSD of a pool says of itself that it is worn, too hot, or could not read what it holds; the text says which. It works.",
        "None yet. A device that is hot gets slow, one that is worn may fail next.",
        "Cool it, or plan for another one: `forebay pool device replace POOL OLD NEW`. `forebay pool show` has the figures.",
    ),
    risky(
        "ssd-failing",
        "An SSD of a pool says of itself that it is failing, or takes no writes any more. It is used as long as it answers without errors.",
        "Dirty data with one copy may be lost with it.",
        "Put another one in its place now: `forebay pool device replace POOL OLD NEW`; where dirty data has one copy, bring it home first: `forebay volume flush`.",
    ),
    risky(
        "ssd-relieved",
        "An SSD says that it is failing, and a spare takes its place before it does, for `devices.replace_failing` is set.",
        "None: all data has its copies all the time.",
        "Watch the job: `forebay job list`. Take the old SSD away when it is over, and give the pool another spare: `forebay pool device spare`.",
    ),
    safe("ssd-well", "What an SSD had to complain of is gone.", "Nothing."),
    safe(
        "member-added",
        "A cache device was added to a pool, as was asked for. New data goes to it from now on; what has fewer copies than asked is copied there.",
        "Nothing. If one was lost before, wait for `copies-restored`.",
    ),
    safe(
        "member-grown",
        "A pool uses more of a cache device that has become larger, as was asked for. New data goes there from now on.",
        "Nothing.",
    ),
    safe(
        "member-larger",
        "A cache device is larger than what its pool uses of it; the text says by how much.",
        "`forebay pool device grow` has the pool use all of it; nothing happens without that.",
    ),
    safe(
        "member-removed",
        "A cache device was taken out of a pool, as was asked for: the others have all that it held, and its superblock is erased.",
        "It can be taken away, or be added again.",
    ),
    safe(
        "spare-added",
        "A pool was given a spare: it holds nothing, and takes the place of a cache device that is lost.",
        "Nothing.",
    ),
    safe(
        "spare-removed",
        "A pool has given a spare up, as was asked for.",
        "It can be taken away.",
    ),
    risky(
        "spare-taken",
        "A cache device was lost, and a spare has taken its place by itself. What was dirty there gets its copies again, and volumes that were written through for want of cache devices are written back again.",
        "The next device that fails may take dirty data, until `copies-restored`.",
        "Leave the others in place until `copies-restored`. Take the lost one away, and give the pool another spare: `forebay pool device spare`.",
    ),
    risky(
        "spare-failed",
        "A spare could not be made a cache device; the text says why. The next spare is tried. This one is not tried again before the next start.",
        "Dirty data keeps a copy too few as long as no other spare is taken.",
        "See `dmesg` for the device. Replace it: `forebay pool device remove`, then `forebay pool device spare`.",
    ),
    risky(
        "spare-missing",
        "A spare of a pool is not there, or is not what it was; the text says why. The pool goes on without it, and it is looked for.",
        "None yet. The next device that is lost may have nothing to take its place.",
        "Attach it; or take it off the list: `forebay pool device remove`.",
    ),
    safe("spare-found", "A spare that was missing is there again.", "Nothing."),
    risky(
        "spare-waiting",
        "A cache device was lost, and no spare can be taken yet; the text says why. It is tried again every second.",
        "The next device that fails may take dirty data that lacks copies meanwhile.",
        "See the text. What is missing can be done by hand: `forebay pool device add`.",
    ),
    risky(
        "member-hung",
        "A cache device has not answered a request within the pool's device deadline. Whoever waited for it goes on without it; what was sent to it stays with it, and nothing comes of a late answer. `member-failed` or `pool-latched` follows.",
        "None where its data has another copy. Else reads of it fail until it answers.",
        "See `dmesg` and the cabling; `forebay pool show` tells whether it has answered since. If it is only slow, raise the limit: `forebay pool set NAME device_deadline=30s`.",
    ),
    risky(
        "member-slow",
        "A cache device answers, and takes at least ten times as long as the others for the slowest hundredth of its requests, for a minute now.",
        "None for data. Clients wait for it where it has the only copy, and writes wait for it always.",
        "Look at its temperature, its life used and the kernel's log (`forebay pool show`, `dmesg`): an SSD that is hot throttles, one that is worn or failing retries. See with `forebay pool device can-i-pull` whether it may go, and replace it if it goes on: `forebay pool device replace`.",
    ),
    safe(
        "member-quick",
        "A cache device that was slow is not any more.",
        "Nothing; if it comes back, see `member-slow`.",
    ),
    risky(
        "member-missing",
        "The pool was opened without one of its cache devices and goes on without it for good.",
        "The next device that fails may take dirty data, until `copies-restored`. The text says what is lost with this one, if anything is.",
        "Add another one (`forebay pool device add`). One that comes back is stale: it can be added again once it is erased.",
    ),
    risky(
        "member-stale",
        "A cache device is there that the pool has gone on without; it is not used.",
        "None: nothing that it holds is believed.",
        "Take it away, or add it anew: `forebay pool device add POOL DEVICE` prints the line that erases it.",
    ),
    risky(
        "pool-held-elsewhere",
        "A pool was not opened, because another host has it open or did not close it.",
        "None: that two hosts write to one pool is what is prevented. Nothing is served here.",
        "Stop it there: `forebay pool export NAME`. If that host is dead: `forebay pool import NAME --take-over`.",
    ),
    risky(
        "pool-taken-over",
        "A pool was taken from another host that had not closed it and was not heard of for as long as it would have kept it. If it comes back it writes nothing.",
        "None for what was acknowledged. Clients of the other host get errors if it is alive.",
        "Nothing, if that host was dead. If it was not, find out why it could not reach the cache devices.",
    ),
    risky(
        "lease-lost",
        "Event, and state of a pool: another host has taken it while this one did not keep it, for it stood still or could not reach the cache devices. Nothing is served or written here any more; what was not acknowledged is lost.",
        "Clients here get errors. What was acknowledged is there on the other host.",
        "Use the pool there. To have it back: `forebay pool export NAME` there, then restart the daemon here.",
    ),
    risky(
        "pool-unclaimed",
        "It cannot be said on the cache devices who has a pool open: the pool was made by an older version with just no room for it, or this machine has no identity.",
        "Two machines that have the pool open destroy it, and nothing refuses the second one.",
        "Without /etc/machine-id set `host_id` in the configuration. Never let two machines open the pool.",
    ),
    risky(
        "held-elsewhere",
        "State of a pool, or error 409: another host has it open or did not close it, or another process of this machine uses its cache devices.",
        "None: that two hosts write to one pool is what is prevented. Nothing is served here.",
        "Stop it there: `forebay pool export NAME`. If that host is dead: `forebay pool import NAME --take-over`.",
    ),
    risky(
        "loss-accepted",
        "The pool was opened with --accept-missing although writes that only missing devices held may be lost.",
        "What only the missing devices had is lost; where they alone knew of it, what is read is older than what was written.",
        "Check what is on the volumes that the text names.",
    ),
    risky(
        "blocks-lost",
        "Dirty data had its only copy on cache devices that have failed or are gone; the text says how much of which volume. (`damage-unhealed` is the same of devices that serve.) Reading it fails until it is overwritten, over restarts, too; what is older is never read instead. The next FLUSH of each client fails, once. All else is served.",
        "Those blocks are lost; nothing else is.",
        "Write it anew through the volume, in whole blocks of 4 KiB: from a backup, or by a repair of the file system. If older data is better than an error, `forebay volume accept-lost`. `forebay volume show` says how much is left.",
    ),
    risky(
        "lost-accepted",
        "A person has given up what is lost of a volume: reads of it return what the origin has there, which is older than what was written, of another age from block to block.",
        "What was written there last is gone. Old and new blocks lie side by side.",
        "Check what is on the volume: repair the file system, have the database verify its pages.",
    ),
    risky(
        "copies-short",
        "Fewer cache devices are left than dirty data has copies; the text says how the volume is served.",
        "Where a volume is written back with fewer copies, the next device that fails may take dirty data.",
        "Add a cache device (`forebay pool device add`), or bring its data home (`forebay volume flush`).",
    ),
    risky(
        "protected-clean",
        "After a loss that left fewer cache devices than dirty data has copies, every origin has all of its data.",
        "None. There is less cache, and writes take as long as the origins do.",
        "Put another one in the place of the lost one: `forebay pool device replace`.",
    ),
    safe(
        "copies-restored",
        "Dirty data has all its copies again. Volumes that were written through for want of cache devices are written back again.",
        "Nothing.",
    ),
    safe("copies-raised", "All dirty data has the copies that were asked for last.", "Nothing."),
    risky(
        "start-cramped",
        "The last run ended with a crash, perhaps after a failed flush, and the log is too full to write again what nothing proves to be durable. All reads are verified until the next start.",
        "Another crash before that data is home may cost some of it.",
        "Bring the data home before anything else: `forebay volume flush`.",
    ),
    risky(
        "index-damaged",
        "Part of the saved index could not be read and starts empty; nothing of it was dirty.",
        "None: it costs misses.",
        "See `dmesg` for the cache devices.",
    ),
    risky(
        "witness-unknown",
        "The witness in the state directory is missing, unreadable, or of another pool; a new one is written.",
        "None with all cache devices there. Without one of them a start may not know whether there is newer data, and asks.",
        "Nothing, if the pool has just been made or moved here; else check the state directory.",
    ),
    risky(
        "witness-unwritable",
        "The witness cannot be written. Volumes that are clean are written through meanwhile; it is tried again each second.",
        "None yet. If a cache device fails meanwhile, writes wait for the witness for 20 seconds, then the pool latches.",
        "Make room in the state directory, or mend its file system.",
    ),
    safe(
        "witness-written",
        "The witness could not be written for a while, and is up to date again.",
        "Nothing; see what filled the state directory.",
    ),
    risky(
        "origin-changed",
        "The origin of a volume was changed while its pool was stopped, or another disk is at its path: what was cached of it is dropped.",
        "None for what was acknowledged. Whoever changed the origin past its volume may have damaged the file system.",
        "Use the origin only through the volume, or remove the volume before.",
    ),
    risky(
        "origin-flush-failed",
        "A flush of an origin failed. Destaged data is written again; clients are told at their next flush if something they wrote may be lost.",
        "What was written past the cache since the last flush may be lost; whoever wrote it is told at the next flush.",
        "See `dmesg` for the origin.",
    ),
    risky(
        "destage-failed",
        "Dirty data could not be written to its origin; it stays safe in the cache and is tried again once a second. The same failure is told once in ten minutes.",
        "None for data. When the cache is full of what waits, writers wait.",
        "See `dmesg` for the origin.",
    ),
    risky(
        "ram-refused",
        "There was no memory for a pool's RAM tier when it was opened: it serves without one.",
        "None: reads are slower.",
        "Free memory or raise the limit of locked memory and start again, or `forebay pool set NAME ram=SIZE`.",
    ),
    risky(
        "damage-found",
        "A cache device could not read data, or has returned data that is not what was written there: its checksum does not fit. The text counts the blocks of 4 KiB since the pool was opened, at the first one, the tenth, the hundredth and so on. Data with another copy is served from that, and is copied again within seconds; clean data without one is served from its origin. Nothing damaged is written to an origin.",
        "None for what is clean or has another copy. What is dirty and has none is lost: `damage-unhealed` says so.",
        "One or two blocks a year happen. If it goes on, replace the device: bring its data home first (`forebay volume flush`). `forebay scrub start POOL` looks through all of it; `verify=reads` keeps damaged data from clients.",
    ),
    risky(
        "damage-unhealed",
        "Dirty data can be read from none of its copies, or is damaged in all of them, and its origin has an older version. They are lost: reading them fails until they are overwritten, over restarts, too; what is older is never read instead. The text says how much was found in the last ten seconds, and at which bytes, the first 16 places. The next FLUSH of each client fails, once. All else is served.",
        "Those blocks are lost; nothing else is.",
        "Write it anew through the volume, in whole blocks of 4 KiB, from a backup; if older data is better than an error, `forebay volume accept-lost`. Replace the device if it goes on: bring its data home first (`forebay volume flush`).",
    ),
    safe("scrub-started", "Somebody has started a scrub.", "Nothing."),
    risky(
        "scrub-stopped",
        "Somebody has ended a scrub before its end.",
        "What is damaged in the rest is found later.",
        "Nothing: the next one begins when it is due.",
    ),
    safe(
        "scrub-ended",
        "A scrub has gone through all copies of what a pool holds; the text says what it found and healed, and what could not be read.",
        "If something was damaged, see `damage-found`.",
    ),
    safe(
        "advisor-started",
        "A volume is watched, to say how much cache it deserves.",
        "Nothing: `forebay advisor show` says what was seen so far.",
    ),
    safe(
        "advisor-ended",
        "A volume is not watched any more: somebody has stopped it, or it was watched for 30 days.",
        "See `forebay advisor show`.",
    ),
    safe(
        "advisors-lost",
        "What was seen of the volumes of a pool that are watched cannot be read in the state directory; the text says why. None is watched any more.",
        "Watch them anew: `forebay advisor start`.",
    ),
    safe("pool-set", "A setting of a pool was changed.", "Nothing."),
    safe("pool-stopped", "A pool was closed in order.", "Nothing."),
    safe(
        "pool-exported",
        "A pool was closed and forgotten.",
        "`forebay pool import` brings it back, here or elsewhere.",
    ),
    risky(
        "pool-bypassed",
        "A person has a pool served straight from its origins, without its cache devices. The text names volumes that are not served, for their origins may lack what only those have.",
        "None for the volumes that are served. The devices are stale: on another machine, which cannot know it, they would be believed.",
        "Erase the devices before they are used elsewhere; `forebay pool show NAME` says how to come back.",
    ),
    safe("pool-destroyed", "A pool was erased from its cache devices.", "Nothing."),
    safe(
        "volume-added",
        "A volume was put in front of an origin.",
        "Serve it: `forebay export add`. From now on use the disk only through the volume.",
    ),
    safe("volume-online", "The origin of a volume was attached.", "Nothing."),
    safe(
        "origin-grown",
        "The origin of a volume is larger than the volume.",
        "`forebay volume grow` makes the volume as large; nothing happens without that.",
    ),
    safe(
        "volume-grown",
        "A volume has become as large as its origin.",
        "Have clients connect again: the NBD protocol has no message for a new size.",
    ),
    risky(
        "writers-delayed",
        "Writers of a pool have been held back for three seconds, because dirty data is near its limit or the cache is full; nobody is stopped, and reads do not wait.",
        "None for data: writes take longer.",
        "Nothing, if it is a burst. Else the origins are slower than what is written: a larger cache delays it, faster origins end it.",
    ),
    safe("writers-free", "No writer of a pool has been held back for ten seconds.", "Nothing."),
    safe("volume-mode", "A volume is served in another way.", "Nothing."),
    safe("volume-set", "Settings of a volume were changed; the text names them.", "Nothing."),
    safe(
        "volume-removed",
        "A volume is gone and its origin is the plain disk with all data.",
        "Nothing.",
    ),
    risky(
        "origin-missing",
        "The origin of a volume cannot be used; or it is in use, and not at its path any more: somebody has removed, moved, replaced or shortened its file.",
        "None for data that is dirty: it is as safe as the cache devices. The volume is not served meanwhile; one whose origin is behind NBD is, as far as it is cached, and one that was moved or removed is as before. A file that was removed is gone when the daemon ends, and what was cut off of one is gone already: nothing more is written to either, what clients write stays dirty, and what is not to be cached fails.",
        "Attach it at its path; the daemon looks every second, and if something else is wrong with it every ten. One that does not answer (a dead path, a hung file system) comes online when it does. If it is an export of another server, look there: the text says what is wrong. One that was moved: move it back. One that was cut off: give it its size and what it had there back, then restart the daemon. One that was removed: leave the daemon running, end its clients, find the file with `ls -l /proc/$(pidof forebay)/fd | grep deleted`, copy it back with `cp --sparse=always /proc/$(pidof forebay)/fd/NUMBER PATH`, then restart the daemon.",
    ),
    risky(
        "origin-refused",
        "The origin of a volume was changed while the pool was stopped, or another disk is at its path, and dirty data waits for it: written over what is there now, that could destroy it. Nothing is done, and nothing is lost.",
        "None as it stands. Either decision gives something up: what the cache has, or what was changed at the origin.",
        "If another disk is at its path, attach the right one. If somebody has mounted it or restored a backup onto it, decide which of the two counts: `forebay volume accept-origin POOL/NAME --dirty write` brings the dirty data to the origin as it is (blocks that both have written become the cache's: check the file system afterwards), `--dirty drop` gives the dirty data up. `--dry-run` says how much it is.",
    ),
    risky(
        "origin-accepted",
        "A person has decided what becomes of dirty data whose origin was changed while the pool was stopped; the text says what. The volume is online.",
        "What was given up is gone. Where dirty data was written, the file system may be of two minds.",
        "Check its file system if the dirty data was written.",
    ),
    risky(
        "origin-failed",
        "The origin of a volume is there, but all reads of it, or all writes and flushes, fail, or it does not answer. What is cached is served; reads of anything else fail exactly there. Writes go on as long as there is room.",
        "None for data: what is dirty is as safe as the cache devices. Reads of what is not cached fail, and writes wait when the cache is full.",
        "See `dmesg` for the origin, and mend it: everything goes on by itself then. `forebay volume show` says what fails.",
    ),
    safe("export-added", "A volume is served.", "Nothing."),
    safe("export-removed", "A volume is not served any more.", "Nothing."),
    risky(
        "export-failed",
        "A volume cannot be served at its address; the text says why.",
        "Its clients are not served at that address.",
        "Free the address; or `forebay export remove` and `forebay export add` at another one.",
    ),
    risky(
        "state-unwritable",
        "The state directory cannot be written.",
        "None for data. What was changed last may not be known after a restart.",
        "Make room, or mend its file system.",
    ),
    safe("online", "State of a pool or volume: it serves.", "Nothing."),
    risky(
        "degraded",
        "State of a pool: it serves without some of its cache devices, and what is dirty has all its copies, or as many as its owner agreed to. Health of a pool: everything is served, with fewer copies or less speed than was asked for.",
        "None: no dirty data lacks a copy. With `dirty_copies` 1, and where fewer copies were agreed to, what is dirty on a device is lost with it.",
        "Put another one in the place of the lost one: `forebay pool device replace`.",
    ),
    risky(
        "rebuilding",
        "State of a pool: cache devices were lost, and what is dirty gets its copies back.",
        "The next device that fails may take dirty data; the status says how much and for how long.",
        "Leave the other devices in place until `copies-restored`.",
    ),
    risky(
        "protecting",
        "State of a pool: fewer cache devices are left than dirty data has copies. Volumes are written through, what is dirty is brought to its origin as fast as that takes it, and nothing new is cached.",
        "The next device that fails may take dirty data; the status says how much and for how long.",
        "Leave the other devices in place until `protected-clean`. Put another one in the place of the lost one: `forebay pool device replace`.",
    ),
    risky(
        "protected",
        "State of a pool: fewer cache devices are left than dirty data has copies, and nothing is dirty any more. Volumes are written through until there are enough again and everything has its copies.",
        "None: every origin has all of its data.",
        "Put another one in the place of the lost one: `forebay pool device replace`.",
    ),
    risky(
        "latched",
        "State of a pool: a device error has stopped all writing. What can be read is served.",
        "Writes fail until it is opened again. Dirty data that only the failed device has may be lost with it.",
        "See `forebay events` for the device; mend it or take it away, then restart the daemon. If it was the last one: `forebay pool bypass NAME`.",
    ),
    risky(
        "waiting",
        "State of a pool: cache devices are not there, or it is being opened.",
        "None yet: nothing is served, and everything is as it was.",
        "Attach them; or, if one is there, do not wait: `forebay pool import NAME`; if none will come: `forebay pool bypass NAME`.",
    ),
    risky(
        "bypassed",
        "State of a pool, and of its volumes: a person has it served straight from the origins, without its cache devices (`forebay pool bypass`). These are stale from then on.",
        "None for data: everything goes to the origins, at their speed. The devices must not be used on another machine, which could not know that they are stale.",
        "To have the cache back: `forebay pool import NAME --accept-missing` once its devices are there; or another pool on other SSDs, after `forebay pool export NAME`.",
    ),
    risky(
        "withheld",
        "State of a volume: its pool is served without its cache devices, and its origin may lack what only they have. It is not served.",
        "What only those devices have is lost if they do not come back.",
        "Bring them back: `forebay pool import NAME --accept-missing` keeps what they have of it. If they are gone, the origin has older data: `forebay pool export NAME`, then use it as it is.",
    ),
    risky(
        "needs-decision",
        "State of a pool, or error: cache devices are missing that may have the only copy, or the newest, of dirty data. A person has to say whether it goes on without them.",
        "None as it stands: nothing is served, and everything is as it was. With `--accept-missing`, what only the missing devices had is lost, and where they alone knew of it older data is read in its place. Volumes of which nothing was dirty are safe.",
        "Attach what is missing. Only if it is gone for good: `forebay pool import NAME --accept-missing`.",
    ),
    risky(
        "failed",
        "State of a pool: it cannot be opened. Health of a pool: data is lost, or something is not served or not written. State of a spare: it could not be taken, and is not tried again before the next start.",
        "Of a pool that cannot be opened: its volumes are not served, and what is cached stays as it is, dirty data too.",
        "`forebay pool show NAME` says why, and what to do.",
    ),
    risky(
        "exported",
        "State of a pool: its cache devices are here, and nobody has imported it.",
        "None: everything is as it was.",
        "`forebay pool import NAME`.",
    ),
    risky(
        "offline",
        "State of a volume: its pool is not open.",
        "The volume is not served. What is cached of it is as safe as the cache devices.",
        "See its pool.",
    ),
    safe("planned", "State of a volume in a dry run: it is not there yet.", "Nothing."),
    safe("present", "State of a cache device: it is there, and is used.", "Nothing."),
    safe(
        "flushing",
        "State of a cache device: it is being taken out, and what it holds goes to the others.",
        "Wait for the job (`forebay job list`), or cancel it.",
    ),
    risky(
        "missing",
        "State of a cache device: it belongs to the pool and is not there. Of a spare: it is not there, or cannot be used at present.",
        "None yet. If the pool goes on without a cache device, the next one that fails may take dirty data; without a spare nothing takes the place of one.",
        "Attach it; the daemon looks for it.",
    ),
    risky(
        "lost",
        "State of a cache device: the pool has gone on without it, for good.",
        "The state of the pool says it: `rebuilding` or `protecting` until dirty data has its copies, or is destaged.",
        "Put another one in its place: `forebay pool device replace`. One that comes back is stale and is not used.",
    ),
    safe("ready", "State of a spare: it is taken when a cache device is lost.", "Nothing."),
    safe("good", "Health of a pool, or of an SSD: as it should be.", "Nothing."),
    safe(
        "unknown",
        "Health of an SSD: it does not say, or nobody can ask it.",
        "Install smartmontools or nvme-cli, if the device can be asked.",
    ),
    risky(
        "warning",
        "Health of an SSD: it says that it is worn, too hot, or could not read what it holds. It works.",
        "None yet. A device that is hot gets slow, one that is worn may fail next.",
        "Cool it, or plan for another one: `forebay pool device replace POOL OLD NEW`.",
    ),
    risky(
        "failing",
        "Health of an SSD: it says that it is failing, or takes no writes any more. It is used as long as it answers without errors.",
        "Dirty data with one copy may be lost with it.",
        "Put another one in its place now: `forebay pool device replace POOL OLD NEW`.",
    ),
    risky(
        "bad-request",
        "Error 400: the request makes no sense.",
        "None: nothing was changed.",
        "See the message.",
    ),
    risky(
        "not-found",
        "Error 404: there is no such thing.",
        "None: nothing was changed.",
        "`forebay status` lists what there is.",
    ),
    risky(
        "bad-method",
        "Error 405: this cannot be done with that.",
        "None: nothing was changed.",
        "See docs/user/reference.md.",
    ),
    risky(
        "too-large",
        "Error 413: the body of a request is longer than 64 KiB.",
        "None: nothing was changed.",
        "Send less.",
    ),
    risky(
        "exists",
        "Error 409: the name is taken, or it is so already.",
        "None: nothing was changed.",
        "Choose another name.",
    ),
    risky(
        "refused",
        "Error 409: what is asked does not go together with what is there.",
        "None: nothing was changed.",
        "See the message.",
    ),
    risky(
        "busy",
        "Error 409: something is under way, or clients are connected.",
        "None: nothing was changed.",
        "Wait, or end that first.",
    ),
    risky(
        "io",
        "Error 500: a device failed.",
        "See the message; what was acknowledged before is not concerned by the error itself.",
        "See `forebay events` and `dmesg`.",
    ),
    risky(
        "stopping",
        "Error 503: the daemon is about to end.",
        "None: nothing was changed.",
        "Start it again.",
    ),
];

/// Runs the command.
pub(crate) fn run(options: &Options) -> Result<()> {
    let wanted = match &options.code {
        Some(code) => vec![find(code)?],
        None => CODES.iter().collect(),
    };
    if options.json {
        say_json(&Many::of(wanted));
    } else if options.code.is_none() {
        wanted.iter().for_each(|known| say(known.code));
    } else {
        for Code { code, means, risk, action } in wanted {
            say(code);
            say(prose("  means   ", means));
            say(prose("  risk    ", risk));
            say(prose("  action  ", action));
        }
    }
    Ok(())
}

/// The row of a code.
fn find(wanted: &str) -> Result<&'static Code> {
    CODES.iter().find(|known| known.code == wanted).ok_or_else(|| {
        // Codes are in small letters and have hyphens.
        let plain = wanted.to_lowercase().replace('_', "-");
        let nearest = text::did_you_mean(&plain, CODES.iter().map(|known| known.code));
        Failure::new(format!("there is no code \"{wanted}\""))
            .hint(format!("{nearest}`forebay explain` lists all"))
    })
}

#[cfg(test)]
mod tests {
    use super::{CODES, find};
    use forebay_control::{api, error};
    use forebay_engine::EventKind;
    use serde_json::json;

    #[test]
    fn a_code_that_is_like_one_is_known_again_and_nothing_is_guessed() {
        let hint = |wanted: &str| find(wanted).err().unwrap().hint_text().to_owned();
        for like in ["ORIGIN-MISSING", "origin_missing", "orign-missing", "Origin-mis"] {
            assert!(hint(like).starts_with("did you mean origin-missing? "), "{}", hint(like));
        }
        for unlike in ["nope", "x", "everything"] {
            assert_eq!(hint(unlike), "`forebay explain` lists all", "{unlike}");
        }
    }

    #[test]
    fn every_error_code_is_explained_with_its_status() {
        for (_, status, name) in error::CODES {
            let explained = CODES.iter().find(|known| known.code == name);
            let is_right = explained.is_some_and(|known| {
                known.means.contains(&status.to_string()) || name == "needs-decision"
            });
            assert!(is_right, "{name}");
        }
    }

    #[test]
    fn every_kind_of_a_pools_events_is_explained_under_a_code_of_its_own() {
        let mut codes: Vec<_> = EventKind::ALL.iter().map(|kind| kind.code()).collect();
        for code in &codes {
            assert!(CODES.iter().any(|known| known.code == *code), "{code}");
        }
        codes.sort_unstable();
        codes.dedup();
        assert_eq!(codes.len(), EventKind::ALL.len());
    }

    #[test]
    fn every_state_is_explained() {
        use api::{HealthVerdict as Health, MemberState as Member, PoolHealth, PoolState as Pool};
        use api::{SpareState as Spare, VolumeState as Volume};
        let words = [
            json!([Pool::Online, Pool::Degraded, Pool::Rebuilding, Pool::Protecting]),
            json!([Pool::Protected, Pool::Latched, Pool::Waiting, Pool::NeedsDecision]),
            json!([Pool::HeldElsewhere, Pool::LeaseLost, Pool::Failed, Pool::Exported]),
            json!([Pool::Bypassed, Volume::Bypassed, Volume::Withheld]),
            json!([PoolHealth::Good, PoolHealth::Degraded, PoolHealth::Failed]),
            json!([Volume::Online, Volume::OriginMissing, Volume::OriginRefused]),
            json!([Volume::OriginFailed, Volume::Offline, Volume::Planned]),
            json!([Member::Present, Member::Flushing, Member::Missing, Member::Lost]),
            json!([Spare::Ready, Spare::Missing, Spare::Failed]),
            json!([Health::Unknown, Health::Good, Health::Warning, Health::Failing]),
        ];
        for word in words.iter().flat_map(|words| words.as_array().unwrap()) {
            assert!(CODES.iter().any(|known| word == known.code), "{word}");
        }
    }

    #[test]
    fn every_critical_code_is_explained() {
        for code in crate::daemon::journal::CRITICAL {
            assert!(CODES.iter().any(|known| known.code == code), "{code}");
        }
    }

    /// What a source says is quoted, of the form of a code.
    fn codes_in(source: &str) -> Vec<&str> {
        let quoted = source.split('"').skip(1).step_by(2);
        let is_code =
            |it: &&str| it.contains('-') && it.chars().all(|c| c.is_ascii_lowercase() || c == '-');
        quoted.filter(is_code).collect()
    }

    /// The codes that calls of the journal in a source note: the first argument, also if it is on the next line,
    /// or, where that is `code`, what this was set to before.
    fn noted_in(source: &str) -> Vec<&str> {
        let mut noted = Vec::new();
        for call in ["journal.note(", "journal.warn("] {
            for (at, _) in source.match_indices(call) {
                let rest = source[at + call.len()..].trim_start();
                if let Some(literal) = rest.strip_prefix('"') {
                    noted.push(literal.split('"').next().unwrap_or_default());
                    continue;
                }
                assert!(
                    rest.starts_with("code,"),
                    "who can read {}?",
                    rest.lines().next().unwrap()
                );
                let before = &source[..at];
                let set = before.rfind("let code =").or(before.rfind("let (code,")).unwrap();
                noted.extend(codes_in(&before[set..]));
            }
        }
        noted
    }

    #[test]
    fn every_code_that_the_daemon_notes_is_explained() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/daemon");
        let mut calls = 0;
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let whole = std::fs::read_to_string(&path).unwrap();
            let (source, _) = whole.split_once("#[cfg(test)]").unwrap_or((&whole, ""));
            let noted = noted_in(source);
            for code in &noted {
                let is_known = CODES.iter().any(|known| known.code == *code);
                assert!(is_known, "{}: {code}", path.display());
            }
            calls += source.matches("journal.note(").count();
            calls += source.matches("journal.warn(").count();
        }
        assert!(calls >= 45, "{calls}");
    }

    #[test]
    fn calls_of_the_journal_are_found_however_they_are_broken() {
        let source = "journal.note(\n    \"a-b\", x);\n\
                      let code = match it { A => \"c-d\", _ => \"e-f\" };\n\
                      self.journal.warn(code, x, \"Not a code\"); journal.warn(\"g\", x);";
        assert_eq!(noted_in(source), ["a-b", "c-d", "e-f", "g"]);
    }
}
