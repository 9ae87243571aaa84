//! What is tested, and the world it is given.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::future::Future;
use std::ops::Range;
use std::rc::Rc;

use forebay_device::Buf;
use forebay_device::io::Outcome;
use forebay_device::{BlockDevice, Data, IoError, Runtime};

use crate::hosts::Hosts;
use crate::swarm::Config;
use crate::workload::Space;

/// How a volume uses the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Writes are acknowledged from the cache.
    Writeback,
    /// Writes go to origin and cache.
    Writethrough,
    /// Writes go to the origin only.
    Readonly,
    /// Everything goes to the origin.
    Bypass,
    /// Writes are acknowledged from the cache, and reads bring nothing there.
    Writeonly,
}

impl Mode {
    /// All of them.
    pub const ALL: [Mode; 5] =
        [Mode::Writeback, Mode::Writethrough, Mode::Readonly, Mode::Bypass, Mode::Writeonly];

    /// All but the last.
    pub const USUAL: [Mode; 4] =
        [Mode::Writeback, Mode::Writethrough, Mode::Readonly, Mode::Bypass];
}

/// Why a subject could not be created, opened, stopped or reconfigured, for people.
#[derive(Clone, Debug)]
pub struct SubjectError(pub String);

impl std::fmt::Display for SubjectError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<IoError> for SubjectError {
    fn from(error: IoError) -> Self {
        Self(error.to_string())
    }
}

/// Everything around the subject. It stays the same across crashes.
#[derive(Clone)]
pub struct Env {
    /// Clock, timers, tasks, randomness.
    pub runtime: Rc<dyn Runtime>,
    /// The cache devices, and behind them the spares.
    pub members: Vec<Rc<dyn BlockDevice>>,
    /// The one of them that is not there now.
    pub missing: Rc<Cell<Option<usize>>>,
    /// The origin of each volume.
    pub origins: Vec<Rc<dyn BlockDevice>>,
    /// The file for the witness of each machine: survives crashes like any other disk.
    pub witnesses: Vec<Rc<dyn BlockDevice>>,
    /// Which machine opens the subject, and which has it open.
    pub hosts: Rc<Hosts>,
    /// The seed's configuration.
    pub config: Rc<Config>,
    /// The planted bug that is switched on, by name.
    pub bug: Option<String>,
    /// Whether to tell standard error what happens.
    pub trace: bool,
}

impl Env {
    /// The cache devices that are there.
    pub fn offered(&self) -> Vec<Rc<dyn BlockDevice>> {
        let there = |i: &usize| Some(*i) != self.missing.get();
        (0..self.members.len()).filter(there).map(|i| Rc::clone(&self.members[i])).collect()
    }
}

/// A block cache under test. Dropping it is no clean stop.
pub trait Subject: Sized + 'static {
    /// Names of the bugs that can be planted.
    const BUGS: &'static [&'static str];

    /// Prepares the members for the first start: a new pool with all volumes of the configuration.
    fn create(env: &Env) -> impl Future<Output = Result<(), SubjectError>>;

    /// Starts, after a clean stop or a crash, up to the point where requests are served.
    fn open(env: &Env) -> impl Future<Output = Result<Self, SubjectError>>;

    /// Reads from a volume, counted from 0, for a client, counted from 0. The outcome carries the
    /// buffer.
    fn read(
        &self,
        client: usize,
        volume: usize,
        offset: u64,
        buf: Buf,
    ) -> impl Future<Output = Outcome>;

    /// Writes; with `fua` it is durable when it succeeds.
    fn write(
        &self,
        client: usize,
        volume: usize,
        offset: u64,
        data: Data,
        fua: bool,
    ) -> impl Future<Output = Result<(), IoError>>;

    /// Makes what completed on this volume durable.
    fn flush(&self, client: usize, volume: usize) -> impl Future<Output = Result<(), IoError>>;

    /// Discards: afterwards each sector is old or zero.
    fn trim(
        &self,
        client: usize,
        volume: usize,
        offset: u64,
        len: u64,
    ) -> impl Future<Output = Result<(), IoError>>;

    /// Zeroes.
    fn write_zeroes(
        &self,
        client: usize,
        volume: usize,
        offset: u64,
        len: u64,
    ) -> impl Future<Output = Result<(), IoError>>;

    /// The parts of a range, in sectors of the volume, that are said to read as zeroes at this
    /// moment.
    fn zeroes(&self, _volume: usize, _range: Range<u64>) -> Vec<Range<u64>> {
        Vec::new()
    }

    /// The parts of a range, in sectors of the volume, that died with cache devices: reads of them fail.
    fn lost(&self, _volume: usize, _range: Range<u64>) -> Vec<Range<u64>> {
        Vec::new()
    }

    /// Changes a volume's mode.
    fn set_mode(&self, volume: usize, mode: Mode)
    -> impl Future<Output = Result<(), SubjectError>>;

    /// Changes what a volume has of the cache.
    fn set_space(
        &self,
        _volume: usize,
        _space: Space,
    ) -> impl Future<Output = Result<(), SubjectError>> {
        async { Ok(()) }
    }

    /// Changes the size of the RAM tier.
    fn set_ram(&self, _bytes: u64) -> impl Future<Output = Result<(), SubjectError>> {
        async { Ok(()) }
    }

    /// Changes the copies that new dirty and clean data gets.
    fn set_copies(
        &self,
        _dirty: usize,
        _clean: usize,
    ) -> impl Future<Output = Result<(), SubjectError>> {
        async { Ok(()) }
    }

    /// Takes a member out if that can be done within some time; whether it could.
    fn remove_member(
        &self,
        _env: &Env,
        _member: usize,
    ) -> impl Future<Output = Result<bool, SubjectError>> {
        async { Ok(false) }
    }

    /// Adds a device that is no member any more.
    fn add_member(
        &self,
        _env: &Env,
        _member: usize,
    ) -> impl Future<Output = Result<(), SubjectError>> {
        async { Ok(()) }
    }

    /// Has a spare take the place of a member that was lost, if one was; whether it did.
    fn take_spare(
        &self,
        _env: &Env,
        _spare: usize,
    ) -> impl Future<Output = Result<bool, SubjectError>> {
        async { Ok(false) }
    }

    /// Whether a device is a member now.
    fn uses_member(&self, _member: usize) -> bool {
        false
    }

    /// Whether everything that origins lack has its copies, more than one: then nothing is lost with any one member.
    fn has_all_copies(&self) -> bool {
        false
    }

    /// Whether nothing is still to be done about members that were lost, as far as it can be with those that are left.
    fn has_recovered(&self) -> bool {
        true
    }

    /// Uses all of a member's device, which has become larger.
    fn grow_member(
        &self,
        _env: &Env,
        _member: usize,
    ) -> impl Future<Output = Result<(), SubjectError>> {
        async { Ok(()) }
    }

    /// Begins to go through all copies of what is cached, behind the clients.
    ///
    /// # Errors
    /// If that is refused.
    fn start_scrub(&self) -> Result<(), SubjectError> {
        Ok(())
    }

    /// Waits until every volume's origin is complete, current and flushed. Nobody writes meanwhile.
    fn destage(&self) -> impl Future<Output = Result<(), SubjectError>>;

    /// Whether a volume's origin could be served for it if no member were left, by what a host's witness has on its disk.
    fn is_served_alone(_witness: &[u8], _volume: usize) -> bool {
        false
    }

    /// Changes what the subject cannot do.
    fn adapt(_: &mut Config) {}

    /// What its parts have noted on this thread since the last call, and how often.
    fn take_seen() -> BTreeMap<&'static str, u64> {
        BTreeMap::new()
    }

    /// Whether it has stopped working after a device error, by design, until it is started again.
    fn has_given_up(&self) -> bool {
        false
    }

    /// Stops cleanly, without destaging. No request is in flight.
    fn stop(self) -> impl Future<Output = Result<(), SubjectError>>;
}
