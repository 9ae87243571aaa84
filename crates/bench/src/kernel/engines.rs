//! The caches, as the guest sets them up: a few lines of shell for each.
//!
//! `$SSD` is the cache's slice, `$ORIGIN` the slow disk, `$SECTORS` its size, `$META` and `$DATA` the parts of the slice
//! in sectors, `$FOREBAY` our program.

/// Whose figures stand beside each other; the last is no cache.
pub(super) const NAMES: [&str; 5] = ["ours", "bcache", "dm-cache", "dm-writecache", "bare SSD"];

/// The slice that is no cache.
pub(super) const BARE: usize = 4;

/// One side.
pub(super) struct Engine {
    /// What its client opens.
    pub device: &'static str,
    /// Modules that its kernel needs, if they are not built in.
    pub modules: &'static [&'static str],
    /// Makes it and starts it.
    pub start: &'static str,
    /// What it needs, besides being written twice in order, until it holds what is to be hit.
    pub warm: &'static str,
    /// Keeps it from working in the background, and lets it go on.
    pub pause: &'static str,
    pub resume: &'static str,
    /// Makes it write back as fast as it does.
    pub destage: &'static str,
    /// Ends it in order, with what is dirty left in the cache.
    pub stop: &'static str,
    /// Starts it again.
    pub again: &'static str,
}

const OURS: Engine = Engine {
    device: "/dev/nbd0",
    modules: &["nbd"],
    start: r#"
cat >serve <<'END'
rm -f socket
"$FOREBAY" dev serve "$@" --reactors 1 --cache $SSD --origin $ORIGIN --witness witness --socket socket >ours.log 2>&1 &
echo $! >pid
until grep -q ^serving ours.log; do
    kill -0 $! || { cat ours.log >&2; exit 1; }
    sleep 0.02
done
nbd-client -unix socket -N dev /dev/nbd0
END
sh -e serve --create --dirty-copies 1 --accept-data-loss-on-ssd-failure"#,
    warm: "",
    pause: "kill -STOP $(cat pid)",
    resume: "kill -CONT $(cat pid)",
    destage: "",
    stop: "
nbd-client -d /dev/nbd0
kill -INT $(cat pid)
while grep -q '^State:.[^Z]' /proc/$(cat pid)/status; do sleep 0.02; done",
    again: "sh -e serve",
};

/// Its cutoffs are raised where the kernel is started, or a cache that is half dirty takes no write any more. Neither long
/// requests nor a slow moment of the SSD send a request past it.
const BCACHE: Engine = Engine {
    device: "/dev/bcache0",
    modules: &["bcache"],
    start: r"
make-bcache --wipe-bcache --writeback -b 512k -w 4k -C $SSD -B $ORIGIN
for device in $SSD $ORIGIN; do echo $device >/sys/fs/bcache/register; done
until [ -b /dev/bcache0 ]; do sleep 0.1; done
cd /sys/block/bcache0/bcache
echo writeback >cache_mode
echo 0 >sequential_cutoff
echo 40 >writeback_percent
for set in cache/congested_*_threshold_us; do echo 0 >$set; done",
    warm: "",
    pause: "echo 0 >/sys/block/bcache0/bcache/writeback_running",
    resume: "echo 1 >/sys/block/bcache0/bcache/writeback_running",
    destage: "echo 0 >/sys/block/bcache0/bcache/writeback_percent",
    stop: "
echo 1 | tee /sys/block/bcache0/bcache/stop /sys/fs/bcache/*-*/stop
while [ -b /dev/bcache0 ] || ls /sys/fs/bcache/*-*; do sleep 0.02; done",
    again: "
for device in $SSD $ORIGIN; do echo $device >/sys/fs/bcache/register; done
until [ -b /dev/bcache0 ]; do sleep 0.02; done",
};

/// It promotes little at a time by default, which is set again once it is warm.
const DM_CACHE: Engine = Engine {
    device: "/dev/mapper/dmcache",
    modules: &["dm-cache", "dm-cache-smq"],
    start: r#"
dmsetup create meta --table "0 $META linear $SSD 0"
dmsetup create data --table "0 $DATA linear $SSD $META"
dd if=/dev/zero of=/dev/mapper/meta bs=64k count=1
dmsetup create dmcache --table "0 $SECTORS cache /dev/mapper/meta /dev/mapper/data $ORIGIN \
    128 1 writeback smq 2 migration_threshold 204800""#,
    warm: r"
for rw in randwrite randread; do
    fio --name=warm --filename=/dev/mapper/dmcache --size=$HOT --rw=$rw --bs=4k --direct=1 --ioengine=libaio \
        --iodepth=32 --time_based --runtime=$WARM_S
done
dmsetup message dmcache 0 migration_threshold 2048",
    pause: "dmsetup suspend dmcache",
    resume: "dmsetup resume dmcache",
    destage: "",
    stop: "dmsetup table dmcache >table; dmsetup remove dmcache",
    again: "dmsetup create dmcache <table",
};

/// It writes back from 90 % on, down to 80 %.
const DM_WRITECACHE: Engine = Engine {
    device: "/dev/mapper/writecache",
    modules: &["dm-writecache"],
    start: r#"
dd if=/dev/zero of=$SSD bs=64k count=1
dmsetup create writecache --table "0 $SECTORS writecache s $ORIGIN $SSD 4096 4 \
    high_watermark 90 low_watermark 80""#,
    warm: "",
    pause: "dmsetup suspend writecache",
    resume: "dmsetup resume writecache",
    destage: "dmsetup message writecache 0 cleaner",
    stop: "dmsetup table writecache >table; dmsetup remove writecache",
    again: "dmsetup create writecache <table",
};

/// All sides, in the order of their names.
pub(super) const ALL: [Engine; 5] = [
    OURS,
    BCACHE,
    DM_CACHE,
    DM_WRITECACHE,
    Engine {
        device: "/dev/mapper/ssd4",
        modules: &[],
        start: "",
        warm: "",
        pause: "",
        resume: "",
        destage: "",
        stop: "",
        again: "",
    },
];
