//! From paths to a pool: cache devices are opened, looked at, and handed to the engine.

use std::cell::Cell;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use forebay_device::real::extents::unwritten_bytes;
use forebay_device::real::file::{FileDevice, Reader};
use forebay_device::real::hardware::on_one_ssd;
use forebay_device::real::open::{OpenError, OpenOptions, open, typed};
pub(crate) use forebay_device::real::place::Identity;
use forebay_device::real::probe::{probe, probe_with};
use forebay_device::real::reactor::Reactor;
use forebay_device::runtime::{MILLISECOND, Nanos, Runtime, SECOND};
use forebay_device::{BlockDevice, Buf};
use forebay_engine::format::{FormatError, Layout, MEMBER_BYTES_MIN, SUPERBLOCK_BYTES, Superblock};
use forebay_engine::ids::{DeviceId, PoolId};
use forebay_engine::{CreateOptions, ErrorKind, Pool, Tuning, read_spare, read_superblock};
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

use crate::Result;
use crate::blocking::on_thread;
use crate::crew::Crew;
use crate::failure::Failure;
use crate::front::set_reader;
use crate::notes::Notes;
use crate::patience::{Pending, no_answer};
use crate::text::{self, tell};
use crate::witness::FileWitness;

/// How long a device in use is tried again: the kernel gives up the claim of a killed process a
/// moment after it is gone.
pub(crate) const PATIENCE: Nanos = 3 * SECOND;

/// How often: a claim that ends by itself ends in milliseconds.
const IN_USE_INTERVAL: Nanos = 20 * MILLISECOND;

/// What a device is looked at for.
const CREATE: &str = "create a pool on";

/// Bytes of a file with holes that are looked through at the most: a slow disk reads as many before it is taken for one
/// that does not answer.
const LOOK_BYTES_MAX: u64 = 512 << 20;

/// What to do about a file with holes whose content somebody may want.
pub(crate) const ANOTHER: &str = "use another one: make a new file, written in full; or, only if its data is not needed, remove it";

/// Cache devices on their way to another reactor, by number.
pub(crate) type Readers = Vec<Option<Reader>>;

/// An open cache device.
#[derive(Clone)]
pub(crate) struct Member {
    file: Rc<FileDevice>,
    identity: Identity,
    /// Which of a pool's cache devices it is, if one; a path may have been another one's before.
    device: Option<DeviceId>,
    /// Whether it has answered since it was asked for the last time; none if it was not.
    has_answered: Rc<Cell<Option<bool>>>,
}

impl Member {
    /// Whether it answers a read, whatever it says; false until it does.
    fn answers(&self, runtime: &dyn Runtime) -> bool {
        if self.has_answered.get().is_none() {
            self.has_answered.set(Some(false));
            let file = Rc::clone(&self.file) as Rc<dyn BlockDevice>;
            let has_answered = Rc::clone(&self.has_answered);
            runtime.spawn(Box::pin(async move {
                let _ = file.read(0, Buf::new(SUPERBLOCK_BYTES)).await;
                has_answered.set(Some(true));
            }));
        }
        self.has_answered.get() == Some(true)
    }
}

fn refuse_twice(path: &Path, known: &[(PathBuf, Identity)]) -> Result<()> {
    let Some(own) = Identity::of(path) else { return Ok(()) };
    let Some((first, _)) = known.iter().find(|(_, other)| *other == own) else { return Ok(()) };
    let (first, second) = (first.display(), path.display());
    Err(Failure::new(format!("a cache device is given twice: {first} and {second}"))
        .hint("name each device once"))
}

/// Refuses a second part of one SSD: both copies of a block could lie on it, and die with it. Blocks.
pub(crate) fn refuse_one_ssd(path: &Path, others: &[PathBuf]) -> Result<()> {
    let Some((other, ssd)) = on_one_ssd(path, others) else { return Ok(()) };
    let (path, other) = (path.display(), other.display());
    Err(Failure::new(format!("{path} and {other} are on one SSD ({ssd}), and would die with it"))
        .hint("give the pool one part of each SSD, as large as you like"))
}

/// Opens a device and has it answer a read: one that hangs is found out here. While it is in use, it is
/// tried again for [`PATIENCE`].
async fn open_member(
    reactor: Rc<Reactor>,
    path: PathBuf,
    look: impl Fn(&Path) -> Result<()> + Send + Clone + 'static,
) -> Result<Member> {
    let runtime: &dyn Runtime = &*reactor;
    let give_up = runtime.now().saturating_add(PATIENCE);
    let opened = loop {
        let (at, look) = (path.clone(), look.clone());
        let call = move || {
            look(&at)?;
            let opened = open(&at, &OpenOptions::default());
            Ok::<_, Failure>((opened, Identity::of(&at)))
        };
        let answer = on_thread(call).await;
        match answer.map_err(|error| Failure::system("start a thread", &error))?? {
            (Err(OpenError::InUse { .. }), _) if runtime.now() < give_up => {
                let _ = runtime.sleep(IN_USE_INTERVAL).await;
            }
            (Ok(opened), Some(identity)) => break (opened, identity),
            (Ok(_), None) => return Err(OpenError::NotFound { path }.into()),
            (Err(error), _) => return Err(error.into()),
        }
    };
    let (opened, identity) = opened;
    let file = Rc::new(FileDevice::of(&reactor, opened));
    // What is on it is for the caller to judge.
    let device = read_superblock(&*file).await.ok().map(|superblock| superblock.device);
    Ok(Member { file, identity, device, has_answered: Rc::default() })
}

/// Open cache devices.
#[derive(Clone)]
pub(crate) struct Members {
    paths: Vec<PathBuf>,
    /// In the order in which the pool was given them; none where one has been let go of.
    members: Vec<Option<Member>>,
}

impl Members {
    /// Opens all of `paths` for ourselves alone.
    ///
    /// # Errors
    /// If one cannot be opened, does not answer or is given twice.
    pub(crate) async fn open(reactor: &Rc<Reactor>, paths: &[PathBuf]) -> Result<Members> {
        Members::open_with(reactor, &Pending::default(), paths, |_| Ok(())).await
    }

    /// The same; what does not answer stays in `pending`. `check`, which may block, looks at each
    /// device before it is opened.
    pub(crate) async fn open_with(
        reactor: &Rc<Reactor>,
        pending: &Pending<Result<Member>>,
        paths: &[PathBuf],
        check: impl Fn(&Path) -> Result<()> + Send + Clone + 'static,
    ) -> Result<Members> {
        let mut members = Members { paths: paths.to_vec(), members: Vec::new() };
        for path in paths {
            let known: Vec<_> = paths.iter().cloned().zip(members.identities()).collect();
            let check = check.clone();
            let look = move |path: &Path| {
                refuse_twice(path, &known)?;
                check(path)
            };
            let call = || open_member(Rc::clone(reactor), path.clone(), look);
            let never = std::future::pending();
            let found = pending.ask(reactor, path, call, never).await;
            members.members.push(Some(found.ok_or_else(|| no_answer(path.display()))??));
        }
        Ok(members)
    }

    /// Which files and devices they are, for the check that an origin is none of them.
    pub(crate) fn identities(&self) -> Vec<Identity> {
        self.members.iter().flatten().map(|member| member.identity).collect()
    }

    /// The devices for each reactor of a crew, by the numbers that the pool knows them by.
    ///
    /// # Errors
    /// If there are no descriptors left.
    pub(crate) fn readers_for(&self, crew: &Crew) -> Result<Vec<Readers>> {
        crew.hands().iter().map(|_| self.readers()).collect()
    }

    fn readers(&self) -> Result<Readers> {
        let reader = |member: &Option<Member>| {
            member.as_ref().map(|member| member.file.reader()).transpose()
        };
        let readers: std::io::Result<_> = self.members.iter().map(reader).collect();
        readers.map_err(|error| Failure::system("open the cache devices again", &error))
    }

    /// The one that was opened.
    ///
    /// # Panics
    /// If there are none.
    pub(crate) fn only(&self) -> Rc<dyn BlockDevice> {
        self.devices().next().expect("one was opened")
    }

    /// Puts one that the pool was given since behind the others, which is at `path` by the name that it was given.
    pub(crate) fn append(&mut self, joined: Members, path: &Path, device: DeviceId) {
        let joined = joined.members.into_iter().flatten().next().expect("one was opened");
        self.paths.push(path.to_owned());
        self.members.push(Some(Member { device: Some(device), ..joined }));
    }

    /// Has a crew read one of them, too, as large as it is now. What cannot be read there the pool
    /// reads.
    pub(crate) fn share(&self, device: DeviceId, pool: PoolId, crew: &Crew) {
        let Some((number, member)) = self.at(device) else { return };
        for hand in crew.hands() {
            set_reader(hand, pool, number, member.file.reader().ok());
        }
    }

    /// One of them, by the number that the pool knows it by.
    fn at(&self, device: DeviceId) -> Option<(usize, &Member)> {
        let mut open = self.members.iter().enumerate();
        open.find_map(|(number, member)| {
            member.as_ref().filter(|it| it.device == Some(device)).map(|member| (number, member))
        })
    }

    /// Those that the pool does not have any more, as `has` says, and that answer: to close one that hangs could take
    /// as long as it does.
    pub(crate) fn gone(
        &self,
        runtime: &dyn Runtime,
        has: impl Fn(DeviceId) -> bool,
    ) -> Vec<DeviceId> {
        let gone = self.members.iter().flatten().filter_map(|member| {
            member.device.filter(|device| !has(*device) && member.answers(runtime))
        });
        gone.collect()
    }

    /// All that are open, with their paths.
    pub(crate) fn files(&self) -> impl Iterator<Item = (&Path, &Rc<FileDevice>)> {
        let there = self.paths.iter().zip(&self.members);
        there.filter_map(|(path, member)| Some((path.as_path(), &member.as_ref()?.file)))
    }

    /// The open file of one of them.
    pub(crate) fn file(&self, device: DeviceId) -> Option<Rc<FileDevice>> {
        self.at(device).map(|(_, member)| Rc::clone(&member.file))
    }

    /// Which file or block device one of them was when it was opened.
    pub(crate) fn identity(&self, device: DeviceId) -> Option<Identity> {
        self.at(device).map(|(_, member)| member.identity)
    }

    /// Lets go of one that has left the pool, on all reactors; the others keep their numbers. Where it was.
    pub(crate) fn release(
        &mut self,
        device: DeviceId,
        pool: PoolId,
        crew: &Crew,
    ) -> Option<PathBuf> {
        let (number, _) = self.at(device)?;
        self.members[number] = None;
        crew.hands().iter().for_each(|hand| set_reader(hand, pool, number, None));
        Some(self.paths[number].clone())
    }

    fn devices(&self) -> impl Iterator<Item = Rc<dyn BlockDevice>> {
        self.members.iter().flatten().map(|m| Rc::clone(&m.file) as Rc<dyn BlockDevice>)
    }

    /// Writes a new pool onto the members.
    ///
    /// # Errors
    /// If a member holds anything that somebody may want to keep, or the engine refuses.
    pub(crate) async fn create(
        &self,
        reactor: &Rc<Reactor>,
        witness: &FileWitness,
        options: &CreateOptions,
    ) -> Result<PoolId> {
        self.refuse_used(CREATE, None).await?;
        let runtime: &dyn Runtime = &**reactor;
        let devices: Vec<_> = self.devices().collect();
        Ok(forebay_engine::create(runtime, &devices, witness, options).await?)
    }

    /// What [`Members::create`] would make; its identities are other ones.
    ///
    /// # Errors
    /// Those of [`Members::create`]; nothing is written.
    pub(crate) async fn plan(
        &self,
        reactor: &Rc<Reactor>,
        options: &CreateOptions,
    ) -> Result<Superblock> {
        self.refuse_used(CREATE, None).await?;
        let runtime: &dyn Runtime = &**reactor;
        let devices: Vec<_> = self.devices().collect();
        Ok(forebay_engine::plan(runtime, &devices, options)?)
    }

    /// Refuses devices that hold anything that somebody may want to keep; `doing` says what for. A spare of
    /// the pool `own`, which is open, holds nothing.
    pub(crate) async fn refuse_used(&self, doing: &str, own: Option<&Superblock>) -> Result<()> {
        for (path, device) in self.list() {
            refuse_used(path, &*device, doing, own).await?;
        }
        Ok(())
    }

    /// The devices with their paths.
    pub(crate) fn list(&self) -> impl Iterator<Item = (&Path, Rc<dyn BlockDevice>)> {
        self.files().map(|(path, file)| (path, Rc::clone(file) as Rc<dyn BlockDevice>))
    }

    /// Opens the pool on the members, with what a person has decided.
    ///
    /// # Errors
    /// See [`forebay_engine::open`].
    pub(crate) async fn open_pool(
        self,
        reactor: &Rc<Reactor>,
        witness: FileWitness,
        tuning: Tuning,
        decided: forebay_engine::OpenOptions,
    ) -> Result<Opened> {
        let started = reactor.now();
        for (path, device) in self.list() {
            let found = read_superblock(&*device).await;
            found.map_err(|error| {
                Failure::from(error)
                    .on(format!("cache device {}", path.display()))
                    .or_hint("check the path; a pool is made before it is opened")
            })?;
            note_slots(path, &*device).await;
        }
        let runtime = Rc::clone(reactor) as Rc<dyn Runtime>;
        let devices = self.devices().collect();
        let witness = Rc::new(witness);
        let pool = forebay_engine::open_with(runtime, devices, witness, tuning, decided).await?;
        let notes = Notes::default();
        Ok(Opened { pool, members: self, notes, took: reactor.now() - started })
    }
}

/// A pool that has been opened.
pub(crate) struct Opened {
    /// The pool.
    pub(crate) pool: Pool,
    /// What it is on.
    pub(crate) members: Members,
    /// What of its events has been told.
    pub(crate) notes: Notes,
    took: Nanos,
}

impl Opened {
    /// One line on what the start found.
    pub(crate) fn summary(&self) -> String {
        let report = self.pool.recovery();
        let superblock = self.pool.superblock();
        format!(
            "pool \"{}\" ({}): {}, {} blocks cached, {} dirty, recovery read {} in {}",
            superblock.name,
            superblock.pool,
            if report.clean_stop { "clean stop" } else { "after a crash" },
            report.blocks,
            report.owed_blocks,
            text::bytes(report.bytes_read),
            text::span(self.took),
        )
    }
}

/// How to erase what makes a device one of a pool: both of its superblocks.
pub(crate) fn erase(path: &Path) -> String {
    format!("`dd if=/dev/zero of={} bs=128K count=2 conv=notrunc,fsync`", typed(path))
}

/// Refuses a device that holds a pool, or anything else known.
async fn refuse_used(
    path: &Path,
    device: &dyn BlockDevice,
    doing: &str,
    own: Option<&Superblock>,
) -> Result<()> {
    let subject = format!("cannot {doing} {}", path.display());
    let refused = |what: String, hint: String| Err(Failure::new(what).on(&subject).hint(hint));
    match read_superblock(device).await {
        Ok(superblock) => {
            let pool = format!("pool \"{}\" ({})", superblock.name, superblock.pool);
            let is_stale = |own: &Superblock| {
                own.pool == superblock.pool
                    && own.present().all(|member| member.device != superblock.device)
            };
            if own.is_some_and(is_stale) {
                return refused(
                    format!("it is stale: {pool} has gone on without it"),
                    format!(
                        "nothing that it holds is believed; erase it, then try again: {}",
                        erase(path)
                    ),
                );
            }
            refused(
                format!("it belongs to {pool}"),
                format!(
                    "open that pool (`forebay pool import`); or, if its data is not needed: {}",
                    erase(path)
                ),
            )
        }
        Err(error) if error.kind == ErrorKind::Future => refused(error.what, error.hint),
        Err(error) => {
            let spare = read_spare(device).await?;
            if let Some(spare) =
                spare.as_ref().filter(|spare| own.map(|own| own.pool) != Some(spare.pool))
            {
                let (name, at) = (&spare.name, typed(path));
                return refused(
                    format!("it is a spare of pool \"{name}\" ({})", spare.pool),
                    format!(
                        "take it from there: `forebay pool device remove {name} {at}`; or, if that pool is \
                         no more: {}",
                        erase(path)
                    ),
                );
            }
            let found = probe(device)
                .await
                .map_err(|error| Failure::io(format!("read {}", path.display()), error))?;
            match found.first() {
                Some(first) => refused(
                    format!("it holds: {} (at byte {})", first.what, first.offset),
                    "use another one; or, if its data is not needed, `wipefs` it".to_owned(),
                ),
                // Both superblocks of a pool whose log is whole may look like this.
                None if error.kind != ErrorKind::NotFound && spare.is_none() => refused(
                    error.what,
                    format!(
                        "a pool may be there that can still be saved, with data that is nowhere \
                         else; only if not: {}",
                        erase(path)
                    ),
                ),
                None => Ok(()),
            }
        }
    }
}

/// How to write a file in full that has so many bytes: what was smaller than any cache device becomes one.
pub(crate) fn fill(path: &Path, bytes: u64) -> String {
    let count = bytes.max(MEMBER_BYTES_MIN).div_ceil(1 << 20);
    format!("write it in full: `dd if=/dev/zero of={} bs=1M count={count}`", typed(path))
}

/// How to fill the holes of a file that has so many bytes, and is in use or holds what is needed.
pub(crate) fn set_aside(path: &Path, bytes: u64) -> String {
    format!("`fallocate -l {bytes} {}` sets it aside, and keeps what is there", typed(path))
}

/// Refuses a file with holes. Blocks.
///
/// # Errors
/// If less space is allocated than the file has bytes; `remedy` says what to do about one of so many.
pub(crate) fn refuse_holes(path: &Path, remedy: impl Fn(u64) -> String) -> Result<()> {
    let Ok(meta) = std::fs::metadata(path) else { return Ok(()) };
    let (allocated, size) = (meta.blocks() * 512, meta.len());
    if !meta.is_file() || allocated >= size {
        return Ok(());
    }
    let (allocated, all) = (text::bytes(allocated), text::bytes(size));
    let what = format!("{} has holes: {allocated} of {all} are allocated", path.display());
    Err(Failure::new(what).hint(remedy(size)))
}

/// Refuses a file with holes, or space from byte `from` on that is reserved and was never written: it would need space, or
/// the file system's attention, at the very moment when it takes a write, and the disk below may have none left then. Blocks.
///
/// `remedy` says what to do about a file of so many bytes.
///
/// # Errors
/// If less space is allocated than the file has bytes, or not all of it was written.
pub(crate) fn refuse_sparse(path: &Path, from: u64, remedy: impl Fn(u64) -> String) -> Result<()> {
    refuse_holes(path, &remedy)?;
    let Ok(meta) = std::fs::metadata(path) else { return Ok(()) };
    let unwritten = if meta.is_file() { unwritten_bytes(path, from) } else { None };
    match unwritten {
        None | Some(0) => Ok(()),
        Some(unwritten) => {
            let [unwritten, size] = [unwritten, meta.len()].map(text::bytes);
            let what = format!(
                "{} was never written in full: {unwritten} of {size} are only reserved",
                path.display()
            );
            Err(Failure::new(what).hint(remedy(meta.len())))
        }
    }
}

/// The same of what is to become a cache device: `remedy` costs what is in the file, so it is told only if nobody uses it
/// and nothing is there.
///
/// # Errors
/// Those of [`refuse_sparse`], from its first byte on.
pub(crate) fn refuse_sparse_anew(path: &Path, remedy: impl Fn(u64) -> String) -> Result<()> {
    let Err(refused) = refuse_sparse(path, 0, remedy) else { return Ok(()) };
    if let Err(error) = open(path, &OpenOptions::default())
        && error.is_in_use()
    {
        return Err(error.into());
    }
    let why = match content_of(path) {
        Ok(None) => return Err(refused),
        Ok(Some(what)) => what,
        // Nobody can say that there is nothing.
        Err(error) => format!("it cannot be read: {error}"),
    };
    Err(Failure::new(format!("{}, and {why}", refused.what())).hint(ANOTHER))
}

/// What a file with holes holds, if anything.
fn content_of(path: &Path) -> std::io::Result<Option<String>> {
    let file = std::fs::File::open(path)?;
    let size = file.metadata()?.len();
    let found = probe_with(size, |buf, offset| file.read_exact_at(buf, offset))?;
    if let Some(first) = found.first() {
        return Ok(Some(format!("it holds: {} (at byte {})", first.what, first.offset)));
    }
    let zeroes = vec![0; 1 << 20];
    let (mut buf, mut at, mut looked) = (zeroes.clone(), 0, 0);
    loop {
        at = match seek(&file, SeekFrom::Data(at)) {
            Ok(data) => data,
            Err(Errno::NXIO) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        if looked >= LOOK_BYTES_MAX {
            return Ok(Some(format!("it may hold data (from byte {at} on)")));
        }
        let count = file.read_at(&mut buf, at)?;
        if buf[..count] != zeroes[..count] {
            let zero = buf.iter().take_while(|byte| **byte == 0).count() as u64;
            return Ok(Some(format!("it holds data (at byte {})", at + zero)));
        }
        if count == 0 {
            return Ok(None);
        }
        (at, looked) = (at + count as u64, looked + count as u64);
    }
}

/// Says so if one superblock slot is damaged: the other one serves, but nobody knows why.
async fn note_slots(path: &Path, device: &dyn BlockDevice) {
    for slot in 0..2 {
        let outcome =
            device.read(Layout::superblock_offset(slot), Buf::new(SUPERBLOCK_BYTES)).await;
        let decoded = match (outcome.result, outcome.buf) {
            (Ok(()), Some(buf)) => Superblock::decode(&buf).map(drop),
            _ => Err(FormatError::Truncated),
        };
        if let Err(error) = decoded {
            let (path, other) = (path.display(), 1 - slot);
            tell(format_args!(
                "note: cache device {path}: superblock slot {slot} is damaged ({error}); \
                 slot {other} serves"
            ));
        }
    }
}
