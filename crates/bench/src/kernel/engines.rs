//! The caches, as they are set up: a few lines of shell for each.
//!
//! `$NAME` is the name of the run, `$SSD` the cache's slice, `$ORIGIN` the slow disk, `$SSD_NAME` and `$ORIGIN_NAME` what
//! they are called in sysfs, `$SECTORS` the disk's size, `$META` and `$DATA` the parts of the slice in sectors, `$FOREBAY`
//! our program, `$NBD` an nbd device that is free. `$DEVICE` becomes a link to what clients open.

/// Whose figures stand beside each other; the last is no cache.
pub(super) const NAMES: [&str; 5] = ["ours", "bcache", "dm-cache", "dm-writecache", "bare SSD"];

/// The one that is measured beside the others.
pub(super) const OURS: usize = 0;

/// The slice that is no cache.
pub(super) const BARE: usize = 4;

/// One side.
pub(super) struct Engine {
    /// Modules that its kernel needs, if they are not built in, with their parameters.
    pub modules: &'static [&'static str],
    /// Makes it and starts it.
    pub start: &'static str,
    /// What undoes that, in the words of [`Keeper`](super::keeper::Keeper), the last one first.
    pub undo: &'static [&'static str],
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

/// A process that has ended may have left its number to another one, which is not for us to stop.
const FOREBAY: Engine = Engine {
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
sh -c 'echo $$ >nbd; exec nbd-client -unix socket -N dev $NBD'
# Without netlink, the process that has it is another one.
cat /sys/block/$NBD_NAME/pid >nbd
ln -sfn $NBD $DEVICE
END
cat >signal <<'END'
pid=$(cat pid)
grep -qzxF NAME=$NAME /proc/$pid/environ
kill -$1 $pid
END
sh -e serve --create --dirty-copies 1 --accept-data-loss-on-ssd-failure"#,
    undo: &["disconnect $NBD_NAME $RUN/nbd"],
    warm: "",
    pause: "sh -e signal STOP",
    resume: "sh -e signal CONT",
    destage: "",
    stop: "
nbd-client -d $NBD
sh -e signal INT
while grep -q '^State:.[^Z]' /proc/$(cat pid)/status; do sleep 0.02; done",
    again: "sh -e serve",
};

/// Its cutoffs are raised where it is loaded, or a cache that is half dirty takes no write any more. Neither long
/// requests nor a slow moment of the SSD send a request past it.
const BCACHE: Engine = Engine {
    modules: &["bcache bch_cutoff_writeback=70 bch_cutoff_writeback_sync=90"],
    start: r#"
cat >register <<'END'
# Where there is udev, it may have been faster; what was just stopped may have the device for a moment.
register() {
    tries=0
    until [ -e /sys/block/$2/bcache ] || echo $1 >/sys/fs/bcache/register; do
        tries=$((tries + 1))
        [ $tries -lt 250 ] || exit 1
        sleep 0.02
    done
}
register $SSD $SSD_NAME
register $ORIGIN $ORIGIN_NAME
made=/sys/block/$ORIGIN_NAME/bcache/dev
until [ -e $made ] && ln -sfn /dev/$(basename $(readlink $made)) $DEVICE && [ -b $DEVICE ]; do sleep 0.02; done
END
make-bcache --wipe-bcache --writeback -b 512k -w 4k -C $SSD -B $ORIGIN
sh -e register
cd /sys/block/$ORIGIN_NAME/bcache
echo writeback >cache_mode
echo 0 >sequential_cutoff
echo 40 >writeback_percent
for set in cache/congested_*_threshold_us; do echo 0 >$set; done"#,
    undo: &["unregister $ORIGIN_NAME $SSD_NAME"],
    warm: "",
    pause: "echo 0 >/sys/block/$ORIGIN_NAME/bcache/writeback_running",
    resume: "echo 1 >/sys/block/$ORIGIN_NAME/bcache/writeback_running",
    destage: "echo 0 >/sys/block/$ORIGIN_NAME/bcache/writeback_percent",
    stop: "
slow=/sys/block/$ORIGIN_NAME/bcache
fast=/sys/block/$SSD_NAME/bcache
set=$(readlink -f $fast/set)
echo 1 | tee $slow/stop $set/stop
while [ -b $DEVICE ] || [ -e $slow ] || [ -e $fast ] || [ -e $set ]; do sleep 0.02; done",
    again: "sh -e register",
};

/// It promotes little at a time by default, which is set again once it is warm.
const DM_CACHE: Engine = Engine {
    modules: &["dm-cache", "dm-cache-smq"],
    start: r#"
dmsetup create $NAME-meta --table "0 $META linear $SSD 0"
dmsetup create $NAME-data --table "0 $DATA linear $SSD $META"
dd if=/dev/zero of=/dev/mapper/$NAME-meta bs=64k count=1
dmsetup create $NAME-cache --table "0 $SECTORS cache /dev/mapper/$NAME-meta /dev/mapper/$NAME-data $ORIGIN \
    128 1 writeback smq 2 migration_threshold 204800"
ln -s /dev/mapper/$NAME-cache $DEVICE"#,
    undo: &["remove $NAME-meta", "remove $NAME-data", "remove $NAME-cache"],
    warm: r"
for rw in randwrite randread; do
    fio --name=warm --filename=$DEVICE --size=$HOT --rw=$rw --bs=4k --direct=1 --ioengine=libaio \
        --iodepth=32 --time_based --runtime=$WARM_S
done
dmsetup message $NAME-cache 0 migration_threshold 2048",
    pause: "dmsetup suspend $NAME-cache",
    resume: "dmsetup resume $NAME-cache",
    destage: "",
    stop: "dmsetup table $NAME-cache >table; dmsetup remove --retry $NAME-cache",
    again: "dmsetup create $NAME-cache <table",
};

/// It writes back from 90 % on, down to 80 %.
const DM_WRITECACHE: Engine = Engine {
    modules: &["dm-writecache"],
    start: r#"
dd if=/dev/zero of=$SSD bs=64k count=1
dmsetup create $NAME-writecache --table "0 $SECTORS writecache s $ORIGIN $SSD 4096 4 \
    high_watermark 90 low_watermark 80"
ln -s /dev/mapper/$NAME-writecache $DEVICE"#,
    undo: &["remove $NAME-writecache"],
    warm: "",
    pause: "dmsetup suspend $NAME-writecache",
    resume: "dmsetup resume $NAME-writecache",
    destage: "dmsetup message $NAME-writecache 0 cleaner",
    stop: "dmsetup table $NAME-writecache >table; dmsetup remove --retry $NAME-writecache",
    again: "dmsetup create $NAME-writecache <table",
};

/// All sides, in the order of their names.
pub(super) const ALL: [Engine; 5] = [
    FOREBAY,
    BCACHE,
    DM_CACHE,
    DM_WRITECACHE,
    Engine {
        modules: &[],
        start: "ln -s $SSD $DEVICE",
        undo: &[],
        warm: "",
        pause: "",
        resume: "",
        destage: "",
        stop: "",
        again: "",
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_device_is_named_that_others_may_have() {
        for engine in &ALL {
            let Engine { start, warm, pause, resume, destage, stop, again, .. } = engine;
            let steps = [start, warm, pause, resume, destage, stop, again];
            for text in steps.into_iter().chain(engine.undo) {
                for found in ["nbd", "bcache", "loop", "dm-", "/dev/mapper/"] {
                    let rests = text.split(found).skip(1);
                    let mut firsts = rests.filter_map(|rest| rest.chars().next());
                    let is_named = match found {
                        "/dev/mapper/" => firsts.any(|first| first != '$'),
                        _ => firsts.any(|first| first.is_ascii_digit() || first == '*'),
                    };
                    assert!(!is_named, "{found} in {text}");
                }
                let created = text.split("dmsetup ").skip(1);
                let mut names = created.filter_map(|rest| rest.split_whitespace().nth(1));
                assert!(
                    names.all(|name| name.starts_with("$NAME-") || name == "--retry"),
                    "{text}"
                );
            }
        }
    }
}
