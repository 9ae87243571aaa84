//! A volume, as superblocks keep it: 1 KiB.

use super::codec::{
    FormatError, check, get_bytes, get_text, get_u16, get_u32, get_u64, put_bytes, put_u16,
    put_u32, put_u64, structure,
};
use super::entry::VOLUME_BLOCKS_MAX;
use crate::ids::{BLOCK_BYTES, SECTOR_BYTES, VolumeId};
use crate::limits::{NAME_BYTES_MAX, ORIGIN_BYTES_MAX, STRIPE_BYTES};
use crate::policy::Populate;

structure!(at, "Volume record", 1024, {
    ID @ 0: 4,
    CACHE_BLOCK_BYTES @ 4: 4,
    SIZE_BYTES @ 8: 8,
    MODE @ 16: 1,
    FLAGS @ 17: 1,
    NAME_BYTES @ 18: 1,
    ORIGIN_BYTES @ 20: 2,
    DIRTY_AGE_MAX_S @ 24: 4,
    DESTAGE_FROM_MINUTE @ 28: 2,
    DESTAGE_UNTIL_MINUTE @ 30: 2,
    SEQUENTIAL_CUTOFF_BYTES @ 32: 8,
    PROFILE @ 40: 1,
    POPULATE_ON_READ @ 41: 1,
    POPULATE_ON_WRITE @ 42: 1,
    SEQUENTIAL @ 43: 1,
    PRIORITY @ 44: 1,
    RESERVATION_BYTES @ 48: 8,
    LIMIT_BYTES @ 56: 8,
    NAME @ 64: 63,
    ORIGIN @ 128: 511,
    FINGERPRINT @ 640: 304,
});

structure!(print, "Fingerprint", 304, {
    SIZE_BYTES @ 0: 8,
    IDENTITY @ 8: 32,
    TAKEN @ 40: 8,
    HASHES @ 48: 256,
});

const FLAG_MAY_BE_DIRTY: u8 = 1;
const FLAG_ACCEPT_SINGLE_COPY: u8 = 2;
const FLAG_FINGERPRINT: u8 = 4;

const SEQUENTIAL_WRITES: u8 = 1;
const SEQUENTIAL_WHEN_FULL: u8 = 2;
const SEQUENTIAL_ALWAYS: u8 = 4;

const _: () = assert!(at::ORIGIN - at::NAME > NAME_BYTES_MAX);
const _: () = assert!(at::FINGERPRINT - at::ORIGIN > ORIGIN_BYTES_MAX);
const _: () = assert!(at::FINGERPRINT + print::SIZE <= at::SIZE);

/// How a volume's requests are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Mode {
    /// Writes are acknowledged from the log and destaged later.
    Writeback = 1,
    /// Writes go to log and origin.
    Writethrough = 2,
    /// Writes go to the origin only.
    Readonly = 3,
    /// Like writeback, but reads do not populate.
    Writeonly = 4,
    /// Nothing is cached.
    Bypass = 5,
}

impl Mode {
    /// Whether writes are acknowledged from the log, so that dirty data comes into being.
    pub fn writes_back(self) -> bool {
        matches!(self, Mode::Writeback | Mode::Writeonly)
    }

    /// The mode with this number.
    pub fn from_number(number: u8) -> Option<Mode> {
        Some(match number {
            1 => Mode::Writeback,
            2 => Mode::Writethrough,
            3 => Mode::Readonly,
            4 => Mode::Writeonly,
            5 => Mode::Bypass,
            _ => return None,
        })
    }

    pub(super) fn decode(number: u8) -> Result<Mode, FormatError> {
        Mode::from_number(number).ok_or(FormatError::Invalid { field: "volume mode" })
    }
}

/// What the origin looked like at a clean stop, to notice writes behind our back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fingerprint {
    /// Its size in bytes.
    pub size_bytes: u64,
    /// Hash of what names it (serial number, WWN, UUID); zero if it has no such thing.
    pub identity: [u8; 32],
    /// Which of the 64 hashes were taken, one bit each; dirty blocks are left out.
    pub taken: u64,
    /// Hashes of 64 blocks, at places that follow from the size; 0 where not taken.
    pub hashes: [u32; 64],
}

/// Minutes of a day.
pub const DAY_MINUTES: u16 = 24 * 60;

/// A part of each day, to the minute; it may go on past midnight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hours {
    from: u16,
    until: u16,
}

impl Hours {
    /// From minute `from` of the day, 0..=1439, up to and without minute `until`, 1..=1440; `None` if
    /// that is no part of a day.
    pub fn new(from: u16, until: u16) -> Option<Hours> {
        let fits = from < DAY_MINUTES && (1..=DAY_MINUTES).contains(&until) && from != until;
        fits.then_some(Hours { from, until })
    }

    /// Its first minute, and the one behind its last.
    pub fn minutes(self) -> (u16, u16) {
        (self.from, self.until)
    }

    /// Whether a minute of the day lies in it.
    pub fn contains(self, minute: u16) -> bool {
        match self.from < self.until {
            true => (self.from..self.until).contains(&minute),
            false => minute >= self.from || minute < self.until,
        }
    }
}

/// Which of several volumes gets more where there is not enough for all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// Half of what a normal one gets.
    Low,
    /// As much as any other normal one.
    #[default]
    Normal,
    /// Twice as much as a normal one.
    High,
}

impl Priority {
    /// All of them, the lowest first.
    pub const ALL: [Priority; 3] = [Priority::Low, Priority::Normal, Priority::High];

    /// Shares of what several volumes have together. 1 : 2 : 4 are the steps that virtual machines have
    /// for their disks: an order that shows, and nobody is starved.
    pub fn weight(self) -> u64 {
        match self {
            Priority::Low => 1,
            Priority::Normal => 2,
            Priority::High => 4,
        }
    }

    /// 0 is what older versions wrote.
    fn number(self) -> u8 {
        match self {
            Priority::Normal => 0,
            Priority::Low => 1,
            Priority::High => 2,
        }
    }

    fn decode(number: u8) -> Result<Priority, FormatError> {
        let found = Priority::ALL.into_iter().find(|priority| priority.number() == number);
        found.ok_or(FormatError::Invalid { field: "volume priority" })
    }
}

/// When what follows each other for more than a volume's cutoff is not cached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SequentialWhen {
    /// Reads as long as hardly any of what streams read is read again ([`crate::policy::Reread`]), and writes at any time.
    #[default]
    Auto,
    /// At any time.
    Always,
    /// Only while the cache has no free room.
    Full,
}

/// What may be changed of a volume at any time. The default is what every volume had before there
/// were settings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VolumeSettings {
    /// Seconds after which dirty data is destaged although nothing else asks for it; 0: never.
    pub dirty_age_max_s: u32,
    /// When it is destaged in the background; `None`: whenever it is idle.
    pub destage_hours: Option<Hours>,
    /// Bytes of a stream after which what follows is not cached; 0: what the tuning says,
    /// [`CUTOFF_NEVER`]: all of it is.
    pub sequential_cutoff_bytes: u64,
    /// Whether what is written one after the other is not cached from there on, too.
    pub sequential_writes: bool,
    /// When streams are not cached behind the cutoff.
    pub sequential_when: SequentialWhen,
    /// What brings blocks into the cache.
    pub populate: Populate,
    /// Bytes of the cache that other volumes do not take from it; 0: none.
    pub reservation_bytes: u64,
    /// Bytes of the cache that it holds at the most; 0: as many as there are.
    pub limit_bytes: u64,
    /// What it gets where there is not enough for all.
    pub priority: Priority,
}

/// No stream is this long.
pub const CUTOFF_NEVER: u64 = u64::MAX;

/// One volume of the pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeRecord {
    /// Its number, from 1, never reused.
    pub id: VolumeId,
    /// Its name, 1..=63 bytes.
    pub name: String,
    /// Path or URL of the origin, 1..=511 bytes.
    pub origin: String,
    /// Bytes of the volume, a multiple of 512, up to 4 PiB.
    pub size_bytes: u64,
    /// How it is served.
    pub mode: Mode,
    /// Whether the log may hold what the origin lacks; durable before the first such record.
    pub may_be_dirty: bool,
    /// Whether dirty data with fewer copies than the pool asks was agreed to.
    pub accept_single_copy: bool,
    /// Bytes of a cache block, a power of two from 4 KiB to 4 MiB.
    pub cache_block_bytes: u32,
    /// What may be changed at any time.
    pub settings: VolumeSettings,
    /// The origin at the last clean stop.
    pub fingerprint: Option<Fingerprint>,
}

/// Whether a name is 1..=63 bytes without control characters.
pub(super) fn name_valid(name: &str) -> bool {
    (1..=NAME_BYTES_MAX).contains(&name.len()) && !name.chars().any(char::is_control)
}

/// Whether an origin's designation is 1..=511 bytes without control characters.
pub(super) fn origin_valid(origin: &str) -> bool {
    (1..=ORIGIN_BYTES_MAX).contains(&origin.len()) && !origin.chars().any(char::is_control)
}

impl VolumeRecord {
    pub(super) fn encode(&self, out: &mut [u8]) {
        put_u32(out, at::ID, self.id.0);
        put_u32(out, at::CACHE_BLOCK_BYTES, self.cache_block_bytes);
        put_u64(out, at::SIZE_BYTES, self.size_bytes);
        out[at::MODE] = self.mode as u8;
        out[at::FLAGS] = if self.may_be_dirty { FLAG_MAY_BE_DIRTY } else { 0 }
            | if self.accept_single_copy { FLAG_ACCEPT_SINGLE_COPY } else { 0 }
            | if self.fingerprint.is_some() { FLAG_FINGERPRINT } else { 0 };
        out[at::NAME_BYTES] = self.name.len() as u8;
        put_u16(out, at::ORIGIN_BYTES, self.origin.len() as u16);
        let settings = &self.settings;
        let (from, until) = settings.destage_hours.map_or((0, 0), Hours::minutes);
        put_u32(out, at::DIRTY_AGE_MAX_S, settings.dirty_age_max_s);
        put_u16(out, at::DESTAGE_FROM_MINUTE, from);
        put_u16(out, at::DESTAGE_UNTIL_MINUTE, until);
        put_u64(out, at::SEQUENTIAL_CUTOFF_BYTES, settings.sequential_cutoff_bytes);
        let (profile, on_read, on_write) = encode_populate(settings.populate);
        out[at::PROFILE] = profile;
        out[at::POPULATE_ON_READ] = on_read;
        out[at::POPULATE_ON_WRITE] = on_write;
        out[at::SEQUENTIAL] = if settings.sequential_writes { SEQUENTIAL_WRITES } else { 0 }
            | match settings.sequential_when {
                SequentialWhen::Auto => 0,
                SequentialWhen::Always => SEQUENTIAL_ALWAYS,
                SequentialWhen::Full => SEQUENTIAL_WHEN_FULL,
            };
        out[at::PRIORITY] = settings.priority.number();
        put_u64(out, at::RESERVATION_BYTES, settings.reservation_bytes);
        put_u64(out, at::LIMIT_BYTES, settings.limit_bytes);
        put_bytes(out, at::NAME, self.name.as_bytes());
        put_bytes(out, at::ORIGIN, self.origin.as_bytes());
        if let Some(fingerprint) = &self.fingerprint {
            fingerprint.encode(&mut out[at::FINGERPRINT..]);
        }
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<VolumeRecord, FormatError> {
        let flags = bytes[at::FLAGS];
        let known = FLAG_MAY_BE_DIRTY | FLAG_ACCEPT_SINGLE_COPY | FLAG_FINGERPRINT;
        check(flags & !known == 0, "volume flags")?;
        let sequential = bytes[at::SEQUENTIAL];
        let sequential_when = match sequential & !SEQUENTIAL_WRITES {
            0 => SequentialWhen::Auto,
            SEQUENTIAL_ALWAYS => SequentialWhen::Always,
            SEQUENTIAL_WHEN_FULL => SequentialWhen::Full,
            _ => return Err(FormatError::Invalid { field: "volume sequential" }),
        };
        let name_bytes = usize::from(bytes[at::NAME_BYTES]);
        let origin_bytes = usize::from(get_u16(bytes, at::ORIGIN_BYTES));
        let volume = VolumeRecord {
            id: VolumeId(get_u32(bytes, at::ID)),
            name: get_text(bytes, at::NAME, name_bytes, NAME_BYTES_MAX, "volume name")?,
            origin: get_text(bytes, at::ORIGIN, origin_bytes, ORIGIN_BYTES_MAX, "volume origin")?,
            size_bytes: get_u64(bytes, at::SIZE_BYTES),
            mode: Mode::decode(bytes[at::MODE])?,
            may_be_dirty: flags & FLAG_MAY_BE_DIRTY != 0,
            accept_single_copy: flags & FLAG_ACCEPT_SINGLE_COPY != 0,
            cache_block_bytes: get_u32(bytes, at::CACHE_BLOCK_BYTES),
            settings: VolumeSettings {
                dirty_age_max_s: get_u32(bytes, at::DIRTY_AGE_MAX_S),
                destage_hours: decode_hours(bytes)?,
                sequential_cutoff_bytes: get_u64(bytes, at::SEQUENTIAL_CUTOFF_BYTES),
                sequential_writes: sequential & SEQUENTIAL_WRITES != 0,
                sequential_when,
                populate: decode_populate(bytes)?,
                reservation_bytes: get_u64(bytes, at::RESERVATION_BYTES),
                limit_bytes: get_u64(bytes, at::LIMIT_BYTES),
                priority: Priority::decode(bytes[at::PRIORITY])?,
            },
            fingerprint: (flags & FLAG_FINGERPRINT != 0)
                .then(|| Fingerprint::decode(&bytes[at::FINGERPRINT..])),
        };
        volume.validate()?;
        Ok(volume)
    }

    pub(super) fn validate(&self) -> Result<(), FormatError> {
        check(self.id.0 != 0, "volume id")?;
        check(name_valid(&self.name), "volume name")?;
        check(origin_valid(&self.origin), "volume origin")?;
        let sizes = SECTOR_BYTES..=VOLUME_BLOCKS_MAX * BLOCK_BYTES;
        let whole = self.size_bytes.is_multiple_of(SECTOR_BYTES);
        check(sizes.contains(&self.size_bytes) && whole, "volume size_bytes")?;
        let cache_block = u64::from(self.cache_block_bytes);
        let fits = (BLOCK_BYTES..=STRIPE_BYTES).contains(&cache_block);
        check(fits && cache_block.is_power_of_two(), "volume cache_block_bytes")?;
        let VolumeSettings { reservation_bytes, limit_bytes, .. } = self.settings;
        let ordered = limit_bytes == 0 || reservation_bytes <= limit_bytes;
        check(ordered, "volume reservation_bytes")?;
        check(self.settings.populate.fits(self.mode), "volume populate")
    }
}

fn decode_hours(bytes: &[u8]) -> Result<Option<Hours>, FormatError> {
    let minutes =
        (get_u16(bytes, at::DESTAGE_FROM_MINUTE), get_u16(bytes, at::DESTAGE_UNTIL_MINUTE));
    if minutes == (0, 0) {
        return Ok(None);
    }
    let hours = Hours::new(minutes.0, minutes.1);
    hours.map(Some).ok_or(FormatError::Invalid { field: "volume destage hours" })
}

/// Number of the profile, and its two numbers, each one more than it is; 0: automatic.
fn encode_populate(populate: Populate) -> (u8, u8, u8) {
    let number = |count: Option<u8>| count.map_or(0, |count| count + 1);
    match populate {
        Populate::Auto => (0, 0, 0),
        Populate::Database => (1, 0, 0),
        Populate::FileSystem => (2, 0, 0),
        Populate::Web => (3, 0, 0),
        Populate::Custom { on_read, on_write } => (4, number(on_read), number(on_write)),
    }
}

fn decode_populate(bytes: &[u8]) -> Result<Populate, FormatError> {
    let (on_read, on_write) = (bytes[at::POPULATE_ON_READ], bytes[at::POPULATE_ON_WRITE]);
    let populate = match bytes[at::PROFILE] {
        0 => Populate::Auto,
        1 => Populate::Database,
        2 => Populate::FileSystem,
        3 => Populate::Web,
        4 => {
            Populate::Custom { on_read: on_read.checked_sub(1), on_write: on_write.checked_sub(1) }
        }
        _ => return Err(FormatError::Invalid { field: "volume profile" }),
    };
    let alone = matches!(populate, Populate::Custom { .. }) || (on_read, on_write) == (0, 0);
    check(alone, "volume populate")?;
    Ok(populate)
}

impl Fingerprint {
    fn encode(&self, out: &mut [u8]) {
        put_u64(out, print::SIZE_BYTES, self.size_bytes);
        put_bytes(out, print::IDENTITY, &self.identity);
        put_u64(out, print::TAKEN, self.taken);
        for (index, hash) in self.hashes.iter().enumerate() {
            put_u32(out, print::HASHES + 4 * index, *hash);
        }
    }

    fn decode(bytes: &[u8]) -> Fingerprint {
        Fingerprint {
            size_bytes: get_u64(bytes, print::SIZE_BYTES),
            identity: get_bytes(bytes, print::IDENTITY),
            taken: get_u64(bytes, print::TAKEN),
            hashes: std::array::from_fn(|index| get_u32(bytes, print::HASHES + 4 * index)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hours_are_a_part_of_the_day_and_may_go_past_midnight() {
        let night = Hours::new(22 * 60, 6 * 60).unwrap();
        let inside = [22 * 60, 23 * 60 + 59, 0, 5 * 60 + 59];
        assert!(inside.into_iter().all(|minute| night.contains(minute)));
        assert!(!night.contains(6 * 60) && !night.contains(22 * 60 - 1));
        let day = Hours::new(0, DAY_MINUTES).unwrap();
        assert!((0..DAY_MINUTES).all(|minute| day.contains(minute)));
        let late = Hours::new(23 * 60, DAY_MINUTES).unwrap();
        assert!(late.contains(DAY_MINUTES - 1) && !late.contains(0));
        for (from, until) in [(0, 0), (60, 60), (DAY_MINUTES, 60), (0, DAY_MINUTES + 1), (60, 0)] {
            assert_eq!(Hours::new(from, until), None);
        }
    }

    fn record(settings: VolumeSettings) -> VolumeRecord {
        VolumeRecord {
            id: VolumeId(1),
            name: "v".into(),
            origin: "/dev/sdb".into(),
            size_bytes: 1 << 30,
            mode: Mode::Writeback,
            may_be_dirty: false,
            accept_single_copy: false,
            cache_block_bytes: 4096,
            settings,
            fingerprint: None,
        }
    }

    #[test]
    fn hours_that_are_none_are_refused() {
        let record = record(VolumeSettings::default());
        let mut bytes = [0; at::SIZE];
        record.encode(&mut bytes);
        assert_eq!(VolumeRecord::decode(&bytes), Ok(record));
        for (from, until) in [(DAY_MINUTES, 60), (60, 60), (60, 0), (0, DAY_MINUTES + 1)] {
            put_u16(&mut bytes, at::DESTAGE_FROM_MINUTE, from);
            put_u16(&mut bytes, at::DESTAGE_UNTIL_MINUTE, until);
            let refused = FormatError::Invalid { field: "volume destage hours" };
            assert_eq!(VolumeRecord::decode(&bytes), Err(refused));
        }
    }

    #[test]
    fn what_becomes_of_streams_is_kept_and_other_bits_are_refused() {
        let all = [SequentialWhen::Auto, SequentialWhen::Always, SequentialWhen::Full];
        for (bits, writes, when) in all
            .into_iter()
            .zip([0, 4, 2])
            .flat_map(|(when, bits)| [(bits, false, when), (bits | SEQUENTIAL_WRITES, true, when)])
        {
            let settings = VolumeSettings {
                sequential_writes: writes,
                sequential_when: when,
                ..VolumeSettings::default()
            };
            let mut bytes = [0; at::SIZE];
            record(settings).encode(&mut bytes);
            assert_eq!(bytes[at::SEQUENTIAL], bits);
            assert_eq!(VolumeRecord::decode(&bytes).map(|record| record.settings), Ok(settings));
            for wrong in [8, SEQUENTIAL_ALWAYS | SEQUENTIAL_WHEN_FULL] {
                bytes[at::SEQUENTIAL] |= wrong;
                let refused = FormatError::Invalid { field: "volume sequential" };
                assert_eq!(VolumeRecord::decode(&bytes), Err(refused));
                bytes[at::SEQUENTIAL] = bits;
            }
        }
    }
}
