//! What one seed is about: geometry, modes, faults, crashes.
//!
//! Each seed turns features on and off independently, so that rare combinations come up (swarm
//! testing, Groce et al., ISSTA 2012). Geometry is tiny: everything wraps around within a second.

use std::ops::Range;

use forebay_device::Stripe;
use forebay_device::model::world::{Crash, Rng};
use forebay_device::runtime::{MILLISECOND, Nanos};

use forebay_engine::format::DAY_MINUTES;
use forebay_engine::{CUTOFF_NEVER, Hours, Populate, SequentialWhen, Tuning, VolumeSettings};

use crate::subject::Mode;
use crate::workload::Space;

mod themes;
mod trouble;

pub use trouble::{
    AimedCrash, CrashPlan, FaultMix, Loss, Rot, RotKind, SetBack, Strike, StrikeKind, Target,
    WitnessLoss,
};

/// One volume.
#[derive(Clone, Debug)]
pub struct VolumeConfig {
    /// Its size.
    pub size_bytes: u64,
    /// Logical sector of the origin. The volume's is always 512 B.
    pub origin_sector_bytes: u32,
    /// Whether the origin discards.
    pub discard: bool,
    /// What array the origin says that it is.
    pub stripe: Option<Stripe>,
    /// Whether a power cut may take from the origin what has not been flushed. Where it takes
    /// nothing from there and all from the members, the origin is ahead of the log.
    pub write_cache: bool,
    /// Its first mode.
    pub mode: Mode,
    /// When it is destaged, apart from what the tuning says.
    pub settings: VolumeSettings,
    /// Whether the origin holds data (stamp 1) from the start, or zeroes.
    pub filled: bool,
}

/// What the requests of a seed look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Diet {
    /// All sizes.
    Mixed,
    /// Mostly less than a block, in few blocks.
    Crumbs,
    /// Everybody in the same few blocks, and the power goes: what one tier loses, another has.
    Duel,
    /// Long and mostly whole blocks, several times the pool: everything is reclaimed and reused.
    Feast,
}

/// The configuration of one seed.
#[derive(Clone, Debug)]
pub struct Config {
    /// The seed.
    pub seed: u64,
    /// Cache devices.
    pub members: usize,
    /// Size of each cache device.
    pub member_bytes: u64,
    /// Logical sector of each cache device.
    pub member_sector_bytes: Vec<u32>,
    /// Logical sector of each spare: a further device that is no member until one is lost or replaced.
    pub spare_sector_bytes: Vec<u32>,
    /// The controller that each of both is behind, where that is known.
    pub controllers: Vec<Option<u64>>,
    /// Machines that may open the pool; see [`crate::hosts`].
    pub hosts: usize,
    /// Copies of dirty data.
    pub dirty_copies: usize,
    /// Copies of clean data.
    pub clean_copies: usize,
    /// Copies of dirty and of clean data that are asked for, one after the other, while clients are at
    /// work.
    pub copies: Vec<(usize, usize)>,
    /// The member that is taken out while clients are at work.
    pub departs: Option<usize>,
    /// The member whose device becomes larger while clients are at work.
    pub grows: Option<usize>,
    /// Whether write-back with a single copy was agreed to.
    pub agreed: bool,
    /// Size of a segment.
    pub segment_bytes: u64,
    /// Segments on each member.
    pub segment_count: u64,
    /// Unit of population.
    pub cache_block_bytes: u32,
    /// What may be written to members per byte admitted, in percent.
    pub write_amplification_max_percent: u16,
    /// Bytes of RAM tier, at first and then, one after the other, while clients are at work.
    pub ram_bytes: Vec<u64>,
    /// Reactors that clients are spread over; the first one is the pool's.
    pub reactors: usize,
    /// Whether the engine checks what it reads from cache devices before clients see it.
    pub verify_reads: bool,
    /// Bytes a second that a scrub reads, and how many are begun while clients are at work.
    pub scrub_rate: u64,
    /// See `scrub_rate`.
    pub scrubs: u64,
    /// Bytes a day that may be written to the members; 0: as many as come.
    pub write_budget: u64,
    /// A member that stores what it should not.
    pub rot: Option<Rot>,
    /// Paces of the engine.
    pub tuning: Tuning,
    /// The volumes.
    pub volumes: Vec<VolumeConfig>,
    /// What the requests look like.
    pub diet: Diet,
    /// Concurrent clients.
    pub clients: usize,
    /// Requests of each client and run.
    pub operations: u64,
    /// Flushes in 100 requests that do not read.
    pub flush_percent: u64,
    /// One in so many writes has FUA; 0 is none.
    pub fua_one_in: u64,
    /// Whether cache devices take writes that are durable when they end.
    pub durable_writes: bool,
    /// Whether clients change modes.
    pub mode_changes: bool,
    /// Whether clients change reservations, limits and priorities.
    pub space_changes: bool,
    /// Faults while clients are at work.
    pub faults: FaultMix,
    /// One in so many runs has a flush of a cache device fail; 0 is none.
    pub flush_fails_one_in: u64,
    /// Longest delay by a fault.
    pub delay_max: Nanos,
    /// The runs that end with a crash; one more follows them.
    pub crashes: Vec<CrashPlan>,
    /// Those of them that come near a certain write instead of after so many I/Os.
    pub aimed_crashes: Vec<AimedCrash>,
    /// What becomes of the witnesses.
    pub witness_loss: Option<WitnessLoss>,
    /// Whether the file system that they lie on is full now and then.
    pub witness_refuses: bool,
    /// A member that is gone after a crash.
    pub loss: Option<Loss>,
    /// Members in whose places older copies of them are found.
    pub set_back: Option<SetBack>,
    /// A member that fails while clients are at work.
    pub strike: Option<Strike>,
    /// How another one fails once the pool says that everything has its copies again.
    pub second_strike: Option<StrikeKind>,
}

/// Of a short workload, requests before the member fails.
const SHORT_STRIKE: u64 = 20;

/// Room for superblocks and roots in front of the segments of a member.
pub(crate) const MEMBER_HEAD_BYTES: u64 = 1 << 20;

impl Config {
    /// The configuration that `seed` stands for.
    pub fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let diet = match rng.below(10) {
            0..4 => Diet::Mixed,
            4..6 => Diet::Crumbs,
            6..8 => Diet::Duel,
            _ => Diet::Feast,
        };
        let feast = diet == Diet::Feast;
        let crashes = if diet == Diet::Duel { rng.between(1, 3) } else { rng.below(4) };
        let members = rng.between(1, if feast { 2 } else { 4 }) as usize;
        let dirty_copies = rng.between(1, members.min(3) as u64) as usize;
        let clean_copies = rng.between(1, members.min(2) as u64) as usize;
        let segment_bytes = 64 << 10;
        let segment_count = rng.between(40, if feast { 48 } else { 72 });
        let sectors = [512, 4096];
        let strike = Self::strike(seed, members, dirty_copies);
        // Of two members that are lost one after the other the second may have the last copy.
        let loss = Self::loss(seed, members, dirty_copies, crashes).filter(|_| strike.is_none());
        let copies = Self::copies(seed, members, loss.is_some() || strike.is_some());
        let departs = Self::departs(seed, members).filter(|_| loss.is_none());
        // A pool is taken over with all of its members. From numbers of its own, too.
        let shared = loss.is_none() && Rng::new(seed ^ 0x1057).one_in(4);
        // From numbers of its own, too.
        let spare_sector_bytes = Self::spare_sectors(seed, &sectors);
        let mut arrays = Rng::new(seed ^ 0x57F1);
        let mut settings = Rng::new(seed ^ 0xA6E);
        let mut scrub = Rng::new(seed ^ 0x5C2B);
        let mut population = Rng::new(seed ^ 0x909);
        let mut streams = Rng::new(seed ^ 0x57EA);
        let mut space = Rng::new(seed ^ 0x11417);
        let stripe = |(bytes, chunk_bytes, parity)| Stripe { bytes, chunk_bytes, parity };
        let stripes = [
            (12 << 10, 4 << 10, true),
            (128 << 10, 32 << 10, true),
            // A mirrored one.
            (5 << 20, 1 << 20, false),
        ];
        let stripes = stripes.map(stripe);
        Self {
            seed,
            witness_loss: Self::witness_loss(seed, crashes).filter(|_| loss.is_none()),
            // From numbers of its own, too.
            witness_refuses: Rng::new(seed ^ 0xF011).one_in(5),
            loss,
            strike,
            second_strike: Self::second_strike(seed, dirty_copies).filter(|_| strike.is_some()),
            departs,
            grows: Self::grows(seed, members),
            // From numbers of its own, too.
            flush_fails_one_in: if Rng::new(seed ^ 0xF1A5).one_in(4) { 2 } else { 0 },
            ram_bytes: Self::ram(seed),
            members,
            hosts: if shared { 2 } else { 1 },
            member_bytes: MEMBER_HEAD_BYTES + segment_bytes * segment_count,
            member_sector_bytes: (0..members).map(|_| *rng.pick(&sectors)).collect(),
            controllers: Self::controllers(seed, members + spare_sector_bytes.len()),
            spare_sector_bytes,
            dirty_copies,
            clean_copies,
            agreed: dirty_copies < 2
                || copies.iter().any(|(dirty, _)| *dirty < 2)
                || Rng::new(seed ^ 0xA64E).one_in(2),
            copies,
            segment_bytes,
            segment_count,
            cache_block_bytes: *rng.pick(&[4096, 16 << 10, 64 << 10]),
            write_amplification_max_percent: *rng.pick(&[100, 150, 400]),
            volumes: (0..rng.between(1, if feast { 2 } else { 3 }))
                .map(|_| {
                    let volume = VolumeConfig {
                        stripe: arrays.one_in(2).then(|| *arrays.pick(&stripes)),
                        settings: Self::settings(&mut settings),
                        ..Self::volume(&mut rng, diet)
                    };
                    let volume = Self::with_population(volume, &mut population);
                    let volume = Self::with_streams(volume, &mut streams);
                    Self::with_limit(volume, &mut space, segment_bytes)
                })
                .collect(),
            diet,
            clients: rng.between(1, 6) as usize,
            operations: if feast { rng.between(20, 100) } else { rng.between(10, 60) },
            // Where nobody flushes, much is left for a power cut to take.
            flush_percent: *rng.pick(&[0, 1, 5, 15, 30]),
            fua_one_in: *rng.pick(&[0, 0, 30, 8]),
            durable_writes: seed % 32 != 5,
            mode_changes: rng.one_in(4),
            // From numbers of its own, too.
            space_changes: Rng::new(seed ^ 0x5BACE).one_in(3),
            faults: Self::faults(&mut rng),
            delay_max: *rng.pick(&[MILLISECOND, 50 * MILLISECOND, 3_000 * MILLISECOND]),
            crashes: (0..crashes).map(|_| Self::crash(&mut rng, diet)).collect(),
            tuning: Tuning {
                // From numbers of its own, too.
                sequential_cutoff_bytes: *Rng::new(seed ^ 0x5EA0).pick(&[0, 64 << 10, 1 << 20]),
                destage_in_place_blocks: *Rng::new(seed ^ 0x1A_91ACE).pick(&[1, 2, 32]),
                destage_whole_percent: *Rng::new(seed ^ 0xF177).pick(&[1, 50, 200]),
                headers_together: *Rng::new(seed ^ 0x4EAD).pick(&[1, 3, 64]),
                index_memory_most: Self::index_memory(seed),
                clean_noted_after: *Rng::new(seed ^ 0xC1EA).pick(&[50, 500, 300_000]) * MILLISECOND,
                ..Self::tuning(&mut rng)
            },
            verify_reads: rng.one_in(8),
            scrub_rate: *scrub.pick(&[256 << 10, 4 << 20, 1 << 30]),
            write_budget: Self::write_budget(seed),
            scrubs: if scrub.one_in(2) { scrub.between(1, 3) } else { 0 },
            rot: None,
            set_back: None,
            aimed_crashes: Vec::new(),
            reactors: *rng.pick(&[1, 2, 4]),
        }
        .with_rot()
        .with_aimed_crash()
        .with_theme()
        .with_set_back()
    }

    /// Whether the witness is there at every start, and says how things stand.
    pub fn has_sound_witness(&self) -> bool {
        self.witness_loss.is_none() && !self.witness_refuses
    }

    /// From numbers of its own, too, where members do not fail besides. A pool whose members were all set back can tell by its
    /// witness alone.
    fn with_set_back(mut self) -> Self {
        let mut rng = Rng::new(self.seed ^ 0x5E7B);
        let sound = self.loss.is_none() && self.strike.is_none() && self.rot.is_none();
        let crashes = self.crashes.len() as u64;
        if !rng.one_in(3) || !sound || self.hosts > 1 || crashes < 2 {
            return self;
        }
        let one = rng.below(self.members as u64) as usize;
        let members = if rng.one_in(4) { (0..self.members).collect() } else { vec![one] };
        let copied = rng.between(1, crashes - 1);
        let back = rng.between(copied + 1, crashes);
        if members.len() < self.members || self.has_sound_witness() {
            self.set_back = Some(SetBack { members, copied, back });
        }
        self
    }

    /// From numbers of its own, too.
    fn with_aimed_crash(mut self) -> Self {
        use Target::{Direct, Flush, Origin, Root};
        let mut rng = Rng::new(self.seed ^ 0x2007);
        let is_cut = |crash: &usize| self.crashes[*crash].crash == Crash::PowerCut;
        let cuts = (0..self.crashes.len()).filter(is_cut).collect::<Vec<_>>();
        if !cuts.is_empty() {
            let target = *rng.pick(&[Root, Root, Origin, Origin, Direct, Flush]);
            self.aimed_crashes = vec![AimedCrash::at(target, *rng.pick(&cuts), &mut rng)];
        }
        self
    }

    /// From numbers of its own, too, where nothing else is wrong with members: then everything has a
    /// copy on another one.
    fn with_rot(mut self) -> Self {
        let mut rng = Rng::new(self.seed ^ 0x2077);
        let mix = &self.faults;
        let faults = mix.member_write_error + mix.member_read_error + mix.member_flip;
        let sound = faults + self.flush_fails_one_in == 0 && self.copies.is_empty();
        let alone = self.loss.is_none() && self.strike.is_none();
        if self.dirty_copies > 1 && sound && alone {
            let member = rng.below(self.members as u64) as usize;
            let one_in = rng.between(2, 8);
            let kind = *rng.pick(&[RotKind::Flip, RotKind::Lose, RotKind::Misdirect]);
            // A superblock that is damaged in both slots is refused, and told of; lost ones may not be noticed.
            let head_one_in = *Rng::new(self.seed ^ 0x207A).pick(&[0, 0, 1, 2, 3]);
            let head_one_in = if kind == RotKind::Flip { 0 } else { head_one_in };
            self.rot = Some(Rot { member, kind, one_in, alone: false, head_one_in, bad_one_in: 0 });
            self.clean_copies = 2;
            self.verify_reads = true;
            self.scrubs = self.scrubs.max(rng.between(2, 4));
            self.scrub_rate = 1 << 30;
        } else if self.dirty_copies == 1 && sound && alone && rng.one_in(3) {
            let member = rng.below(self.members as u64) as usize;
            let (one_in, bad_one_in) = (rng.between(4, 40), *rng.pick(&[0, 20, 200]));
            self.rot = Some(Rot {
                member,
                kind: RotKind::Flip,
                one_in,
                alone: true,
                head_one_in: 0,
                bad_one_in,
            });
            self.verify_reads = true;
        }
        self
    }

    /// The spares, by where they stand among the devices of the members: behind those.
    pub fn spares(&self) -> Range<usize> {
        self.members..self.members + self.spare_sector_bytes.len()
    }

    /// The session of a client, counted from 0: clients of one reactor share it.
    pub fn session(&self, client: usize) -> usize {
        client % self.reactors
    }

    /// Cuts the workload and the pool down to what can be crashed at every single I/O.
    pub fn shorten(&mut self) {
        self.clients = self.clients.min(2);
        self.operations = self.operations.min(10);
        self.volumes.truncate(1);
        self.volumes[0].size_bytes = self.volumes[0].size_bytes.min(512 << 10);
        self.loss = None;
        self.hosts = 1;
        self.flush_fails_one_in = 0;
        self.rot = None;
        self.set_back = None;
        self.members = self.members.min(2);
        self.dirty_copies = self.dirty_copies.min(self.members);
        self.agreed |= self.dirty_copies < 2;
        self.strike = self
            .strike
            .filter(|strike| strike.member < self.members)
            .map(|strike| Strike { after: strike.after % SHORT_STRIKE, ..strike });
        self.departs = self.departs.filter(|member| *member < self.members);
        self.grows = self.grows.filter(|member| *member < self.members);
        self.clean_copies = self.clean_copies.min(self.members);
        for (dirty, clean) in &mut self.copies {
            (*dirty, *clean) = ((*dirty).min(self.members), (*clean).min(self.members));
        }
        self.member_sector_bytes.truncate(self.members);
        self.faults = FaultMix {
            member_delay: self.faults.member_delay,
            origin_delay: self.faults.origin_delay,
            ..FaultMix::default()
        };
        self.segment_count = 40;
        self.member_bytes = MEMBER_HEAD_BYTES + self.segment_bytes * self.segment_count;
    }

    /// From numbers of its own, too: mostly as much as there is. An index without anything has 10 KiB, of
    /// the largest volumes it would have some 50 KiB more, and 32 KiB are headroom and the largest claim.
    fn index_memory(seed: u64) -> u64 {
        let mut rng = Rng::new(seed ^ 0x1DE8);
        if rng.one_in(5) { 42 << 10 } else { u64::MAX }
    }

    /// From numbers of its own, too. A run writes a few MiB in seconds: the smallest are in debt soon.
    fn write_budget(seed: u64) -> u64 {
        let mut rng = Rng::new(seed ^ 0xDA7);
        if rng.one_in(8) { *rng.pick(&[4 << 20, 32 << 20, 128 << 20]) } else { 0 }
    }

    /// From numbers of its own, too. Without one a pool asks for all members that its epoch names.
    fn witness_loss(seed: u64, crashes: u64) -> Option<WitnessLoss> {
        let mut rng = Rng::new(seed ^ 0x3177);
        let lost = crashes > 0 && rng.one_in(4);
        lost.then(|| WitnessLoss { crash: rng.between(1, crashes), restored: rng.one_in(2) })
    }

    /// From numbers of its own, so that everything else of a seed is as it would be without.
    fn loss(seed: u64, members: usize, copies: usize, crashes: u64) -> Option<Loss> {
        let mut rng = Rng::new(seed ^ 0x1055);
        if copies < 2 || crashes == 0 || !rng.one_in(2) {
            return None;
        }
        Some(Loss {
            member: rng.below(members as u64) as usize,
            crashes: rng.between(1, crashes),
            returns: rng.one_in(2),
        })
    }

    /// From numbers of its own, too. Where a member is lost, one copy is not enough.
    fn copies(seed: u64, members: usize, loses: bool) -> Vec<(usize, usize)> {
        let mut rng = Rng::new(seed ^ 0xC0B1);
        if members < 2 || !rng.one_in(3) {
            return Vec::new();
        }
        let fewest = if loses { 2 } else { 1 };
        let mut change = || {
            let dirty = rng.between(fewest, members.min(3) as u64) as usize;
            (dirty, rng.between(1, members.min(2) as u64) as usize)
        };
        (0..3).map(|_| change()).collect()
    }

    /// From numbers of its own, too.
    fn departs(seed: u64, members: usize) -> Option<usize> {
        let mut rng = Rng::new(seed ^ 0xDE9A);
        (members > 1 && rng.one_in(3)).then(|| rng.below(members as u64) as usize)
    }

    /// From numbers of its own, too.
    fn grows(seed: u64, members: usize) -> Option<usize> {
        let mut rng = Rng::new(seed ^ 0x6120);
        rng.one_in(4).then(|| rng.below(members as u64) as usize)
    }

    /// From numbers of its own, too.
    fn strike(seed: u64, members: usize, copies: usize) -> Option<Strike> {
        use StrikeKind::{All, Flush, Hang, Write, Writes};
        let mut rng = Rng::new(seed ^ 0xFA11);
        // With one copy something is lost, and exactly that.
        let one_in = if copies < 2 { 4 } else { 2 };
        if members < 2 || !rng.one_in(one_in) {
            return None;
        }
        let kind = *rng.pick(&[Flush, Flush, Write, Writes, All, Hang]);
        let most = if kind == Flush { 20 } else { *rng.pick(&[10, 100, 600]) };
        Some(Strike { member: rng.below(members as u64) as usize, kind, after: rng.below(most) })
    }

    /// From numbers of its own, too. Only what has another copy may be struck again without a loss.
    fn second_strike(seed: u64, copies: usize) -> Option<StrikeKind> {
        use StrikeKind::{All, Flush, Hang, Write, Writes};
        let mut rng = Rng::new(seed ^ 0x5EC1);
        let kind = *rng.pick(&[Flush, Write, Writes, All, Hang]);
        (copies > 1 && !rng.one_in(3)).then_some(kind)
    }

    /// From numbers of its own, too.
    fn spare_sectors(seed: u64, sectors: &[u32]) -> Vec<u32> {
        let mut rng = Rng::new(seed ^ 0x57A9E);
        let count = *rng.pick(&[0, 0, 0, 1, 1, 2]);
        (0..count).map(|_| *rng.pick(sectors)).collect()
    }

    /// From numbers of its own: mostly, none is known.
    fn controllers(seed: u64, devices: usize) -> Vec<Option<u64>> {
        let mut rng = Rng::new(seed ^ 0xC0_7701);
        let is_known = rng.one_in(3);
        let choices = [Some(1), Some(1), Some(2), None];
        (0..devices).map(|_| *rng.pick(&choices)).map(|one| one.filter(|_| is_known)).collect()
    }

    /// From numbers of its own: none, a few frames that are always being given up, or room for much
    /// of a volume.
    fn ram(seed: u64) -> Vec<u64> {
        let mut rng = Rng::new(seed ^ 0x4A3);
        if rng.one_in(2) {
            return vec![0];
        }
        let changes = if rng.one_in(2) { rng.between(1, 4) } else { 0 };
        let sizes = [0, 32 << 10, 64 << 10, 256 << 10, 1 << 20, 3 << 20];
        let first = *rng.pick(&sizes[1..]);
        std::iter::once(first).chain((0..changes).map(|_| *rng.pick(&sizes))).collect()
    }

    /// Mostly none. The minute of the day is another one at each start.
    fn settings(rng: &mut Rng) -> VolumeSettings {
        if !rng.one_in(3) {
            return VolumeSettings::default();
        }
        let (from, span) = (rng.below(DAY_MINUTES.into()), rng.between(1, 1000));
        let until = (from + span) % u64::from(DAY_MINUTES) + 1;
        VolumeSettings {
            dirty_age_max_s: rng.below(3) as u32,
            destage_hours: Hours::new(from as u16, until as u16).filter(|_| rng.one_in(2)),
            sequential_cutoff_bytes: *rng.pick(&[0, 32 << 10, CUTOFF_NEVER]),
            sequential_writes: false,
            sequential_when: SequentialWhen::Auto,
            populate: Populate::Auto,
            ..VolumeSettings::default()
        }
    }

    /// Where writes pass by, what is a stream is short: there is little that follows each other.
    fn with_streams(mut volume: VolumeConfig, rng: &mut Rng) -> VolumeConfig {
        let settings = &mut volume.settings;
        settings.sequential_writes = rng.one_in(6);
        let when = [SequentialWhen::Auto, SequentialWhen::Always, SequentialWhen::Full];
        settings.sequential_when = *rng.pick(&when);
        if settings.sequential_writes && rng.one_in(2) {
            settings.sequential_cutoff_bytes = *rng.pick(&[512, 4 << 10, 16 << 10]);
        }
        volume
    }

    /// What is reserved comes while clients are at work: a volume for which too much is, is not added.
    fn with_limit(mut volume: VolumeConfig, rng: &mut Rng, segment_bytes: u64) -> VolumeConfig {
        if rng.one_in(6) {
            let drawn = Space::draw(rng);
            volume.settings.limit_bytes = drawn.limit * segment_bytes;
            volume.settings.priority = drawn.priority;
        }
        volume
    }

    fn volume(rng: &mut Rng, diet: Diet) -> VolumeConfig {
        // Sometimes across stripe borders, sometimes with a tail that is no whole block, or on an
        // origin whose sectors are larger than the volume's.
        let quarters = match diet {
            Diet::Feast => rng.between(16, 40),
            Diet::Duel => 1,
            _ if rng.one_in(3) => rng.between(1, 40),
            _ => rng.between(1, 8),
        };
        let coarse = rng.one_in(4);
        let tail_bytes = if !coarse && rng.one_in(4) { 512 * rng.between(1, 7) } else { 0 };
        VolumeConfig {
            size_bytes: (256 << 10) * quarters + tail_bytes,
            origin_sector_bytes: if coarse { 4096 } else { 512 },
            discard: rng.one_in(2),
            stripe: None,
            write_cache: rng.one_in(2),
            settings: VolumeSettings::default(),
            mode: if rng.one_in(2) { Mode::Writeback } else { *rng.pick(&Mode::USUAL) },
            filled: rng.one_in(2),
        }
    }

    /// What brings blocks into the cache.
    fn with_population(mut volume: VolumeConfig, rng: &mut Rng) -> VolumeConfig {
        let writeonly = rng.one_in(6);
        if volume.mode == Mode::Writeback && writeonly {
            volume.mode = Mode::Writeonly;
        }
        let on_read = *rng.pick(&[None, Some(1), Some(2), Some(4)]);
        let counts = match volume.mode {
            Mode::Readonly | Mode::Writethrough => &[None, Some(0), Some(1), Some(2), Some(3)],
            _ => &[None, Some(1), Some(2), Some(2), Some(4)],
        };
        let custom = Populate::Custom { on_read, on_write: *rng.pick(counts) };
        let profile = *rng.pick(&[Populate::Database, Populate::FileSystem, Populate::Web]);
        volume.settings.populate = match rng.below(12) {
            0..7 => Populate::Auto,
            7..11 => custom,
            _ => profile,
        };
        volume
    }

    fn faults(rng: &mut Rng) -> FaultMix {
        let mut chance = |enabled: u64, often: u64| {
            if rng.one_in(enabled) { rng.between(often / 8, often) } else { 0 }
        };
        // Delays break nothing: they are independent of the faults that may fail requests.
        let (member_delay, origin_delay) = (chance(3, 50), chance(3, 50));
        let delays = FaultMix { member_delay, origin_delay, ..FaultMix::default() };
        if chance(2, 8) == 0 {
            return delays;
        }
        FaultMix {
            member_write_error: chance(8, 1600),
            member_read_error: chance(8, 200),
            origin_write_error: chance(4, 200),
            // An origin none of whose flushes succeed lets nobody go on, and should not.
            origin_flush_error: match chance(2, 8) {
                0 => 0,
                often => often.max(3),
            },
            origin_read_error: chance(4, 100),
            member_flip: chance(8, 100),
            ..delays
        }
    }

    fn crash(rng: &mut Rng, diet: Diet) -> CrashPlan {
        // Mostly amid the workload, now and then in the recovery before it.
        let when_open = !rng.one_in(4);
        let ios_max = *rng.pick(&[20, 100, 400, 1500]);
        CrashPlan {
            crash: match diet {
                Diet::Duel if !rng.one_in(4) => Crash::PowerCut,
                _ => *rng.pick(&[Crash::PowerCut, Crash::ProcessKill]),
            },
            after_ios: rng.between(1, ios_max),
            when_open,
        }
    }

    /// From everything at once to hardly ever: what waits for long is what a crash can take.
    fn tuning(rng: &mut Rng) -> Tuning {
        Tuning {
            flush_interval: *rng.pick(&[5, 20, 500, 5_000]) * MILLISECOND,
            flush_bytes: *rng.pick(&[64 << 10, 256 << 10, 4 << 20]),
            idle_after: *rng.pick(&[0, 0, 5, 1_000]) * MILLISECOND,
            origin_flush_interval: *rng.pick(&[20, 50, 2_000]) * MILLISECOND,
            origin_flush_bytes: *rng.pick(&[64 << 10, 128 << 10, 8 << 20]),
            destage_depth: *rng.pick(&[1, 4, 16]),
            destage_in_place_blocks: 1,
            destage_whole_percent: 50,
            destage_stripes_together: 4,
            owed_segments_percent: *rng.pick(&[20, 40, 60]),
            lap_percent: *rng.pick(&[4, 10, 30]),
            destage_when_idle: !rng.one_in(4),
            sequential_cutoff_bytes: 0,
            space_segments_min: 1,
            hurt_records_max: 4,
            headers_together: 64,
            index_memory_most: u64::MAX,
            clean_noted_after: 300_000 * MILLISECOND,
        }
    }
}

#[cfg(test)]
mod tests {
    use forebay_device::runtime::SECOND;

    use super::*;

    #[test]
    fn a_seed_stands_for_one_configuration() {
        assert_eq!(format!("{:?}", Config::new(5)), format!("{:?}", Config::new(5)));
    }

    #[test]
    fn every_configuration_is_possible_and_all_sizes_occur() {
        let configs: Vec<Config> = (0..500).map(Config::new).collect();
        for config in &configs {
            assert!((1..=config.members).contains(&config.dirty_copies));
            assert!((1..=config.members.min(2)).contains(&config.clean_copies));
            assert_eq!(config.member_sector_bytes.len(), config.members);
        }
        for members in 1..=4 {
            for copies in 1..=members.min(3) {
                let fits = |c: &&Config| c.members == members && c.dirty_copies == copies;
                assert!(configs.iter().any(|c| fits(&c)), "{members}/{copies}");
            }
        }
        assert!(configs.iter().any(|c| c.crashes.is_empty()));
        assert!(configs.iter().any(|c| c.crashes.len() == 3));
        let first = |c: &Config| c.aimed_crashes.first().copied();
        let aimed = |c: &Config| first(c).map(|at| c.crashes[at.crash]);
        for (when_open, target) in
            [(true, Target::Root), (false, Target::Root), (true, Target::Origin)]
        {
            let is_it = |c: &Config| first(c).is_some_and(|at| at.target == target);
            let cut = |c: &&Config| aimed(c).is_some_and(|plan| plan.when_open == when_open);
            assert!(configs.iter().any(|c| is_it(c) && cut(&c)));
        }
        assert!(configs.iter().filter_map(aimed).all(|plan| plan.crash == Crash::PowerCut));
        assert!(configs.iter().any(|c| c.faults.origin_write_error > 0));
        let hurries = |c: &&Config| c.flush_percent == 0 && c.tuning.flush_interval > SECOND;
        let is_aimed = |c: &Config| first(c).is_some_and(|at| at.target == Target::Origin);
        assert!(configs.iter().filter(hurries).any(is_aimed));
        assert!(configs.iter().any(|c| c.diet == Diet::Feast));
        for reactors in [1, 2, 4] {
            assert!(configs.iter().any(|c| c.reactors == reactors));
        }
        assert!(configs.iter().any(|c| c.clean_copies > c.dirty_copies));
        let asked = |c: &Config, dirty| c.copies.iter().any(|copies| copies.0 == dirty);
        for dirty in 1..=3 {
            assert!(configs.iter().any(|c| c.loss.is_none() && asked(c, dirty)));
        }
        assert!(configs.iter().all(|c| c.loss.is_none() || !asked(c, 1)));
        assert!(configs.iter().any(|c| c.ram_bytes == [0]));
        assert!(configs.iter().any(|c| c.ram_bytes.len() > 3));
        assert!(configs.iter().any(|c| c.loss.is_some_and(|loss| loss.returns)));
        for mode in Mode::ALL {
            assert!(configs.iter().any(|c| c.volumes.iter().any(|v| v.mode == mode)));
        }
        for kind in [RotKind::Flip, RotKind::Lose, RotKind::Misdirect] {
            let lies = |c: &Config| c.rot.is_some_and(|rot| rot.kind == kind);
            assert!(configs.iter().any(|c| lies(c) && c.scrubs > 1));
        }
        assert!(configs.iter().any(|c| c.rot.is_some_and(|rot| rot.alone && rot.bad_one_in > 0)));
        assert!(configs.iter().any(|c| c.rot.is_none() && c.scrubs > 1));
        let restored = |c: &Config| c.witness_loss.map(|loss| loss.restored);
        assert!([true, false].iter().all(|is| configs.iter().any(|c| restored(c) == Some(*is))));
        assert!(configs.iter().all(|c| c.witness_loss.is_none() || c.loss.is_none()));
        assert!(configs.iter().any(|c| c.witness_refuses && c.strike.is_some()));
        assert!(configs.iter().any(|c| c.hosts > 1 && c.strike.is_some()));
        assert!(configs.iter().all(|c| c.hosts < 2 || c.loss.is_none()));
        let set_back = |c: &Config| c.set_back.as_ref().map(|it| it.members.len() == c.members);
        assert!([true, false].iter().all(|is| configs.iter().any(|c| set_back(c) == Some(*is))));
    }
}
