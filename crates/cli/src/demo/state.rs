//! The demo's files: two cache devices, an origin, a witness, a socket, all in one directory.
//!
//! * The directory is locked while a demo uses it. Only the holder makes or removes files.
//! * A marker stands in the directory from before the first file is made until the pool is
//!   complete, and it is only put where none of our names are. So where it is, what bears our names
//!   is ours and unfinished; where it is not, nothing is removed before it was opened as a pool.

use std::cell::Cell;
use std::fs::{DirBuilder, File, TryLockError};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use forebay_device::BlockDevice;
use forebay_device::real::prepare::prepare_file;
use forebay_device::real::reactor::Reactor;
use forebay_engine::{CreateOptions, Mode, OpenOptions, Pool, Tuning, Volume, VolumeSpec};

use super::{Options, interrupted};
use crate::Result;
use crate::failure::Failure;
use crate::flag::Flag;
use crate::members::{Identity, Members, Opened, PATIENCE};
use crate::origin;
use crate::progress::Progress;
use crate::text::{self, tell};
use crate::witness::FileWitness;

/// Name of the pool and of its volume.
pub(crate) const NAME: &str = "demo";

/// What misses bring into the cache: one chunk of the modelled array.
const CACHE_BLOCK_BYTES: u32 = 64 << 10;

/// Name of the marker; see the head of the file.
const MARKER: &str = "forebay-demo.creating";

/// What is in a directory.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Found {
    /// None of our names.
    Nothing,
    /// What a creation left that was cut off.
    CutOff,
    /// All that a pool needs, by the names; opening it shows whether it is one.
    Complete,
}

/// See the head of the file.
pub(crate) struct State {
    /// Where everything is.
    pub(crate) dir: PathBuf,
    /// Whether we chose the directory, so that we may remove it.
    is_default: bool,
    /// Where clients connect.
    pub(crate) socket: PathBuf,
    /// Whether the files are known to be ours: made by us, or opened as the demo's pool.
    is_ours: Cell<bool>,
    /// The directory, locked.
    lock: File,
}

/// `$XDG_STATE_HOME/forebay/demo`, or a directory of this user that survives a reboot.
fn default_dir() -> PathBuf {
    match std::env::var_os("XDG_STATE_HOME").map(PathBuf::from) {
        Some(home) if home.is_absolute() => home.join("forebay").join("demo"),
        _ => PathBuf::from(format!("/var/tmp/forebay-demo-{}", own_uid().unwrap_or(0))),
    }
}

fn own_uid() -> Option<u32> {
    std::fs::metadata("/proc/self").ok().map(|meta| meta.uid())
}

impl State {
    /// Makes the directory and locks it.
    ///
    /// # Errors
    /// If that is not possible, it is somebody else's, or another demo uses it.
    pub(crate) fn new(options: &Options) -> Result<State> {
        let dir = options.dir.clone().unwrap_or_else(default_dir);
        let is_default = options.dir.is_none();
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&dir);
        made.map_err(|error| {
            Failure::system(format!("create {}", dir.display()), &error)
                .hint("choose another directory with --dir")
        })?;
        let ours = std::fs::symlink_metadata(&dir)
            .is_ok_and(|meta| meta.is_dir() && Some(meta.uid()) == own_uid());
        if is_default && !ours {
            let what = format!("{} is not a directory of yours", dir.display());
            return Err(Failure::new(what).hint("choose another directory with --dir"));
        }
        let socket = options.socket.clone().unwrap_or_else(|| dir.join("nbd.sock"));
        let lock = lock(&dir)?;
        Ok(State { dir, is_default, socket, is_ours: Cell::new(false), lock })
    }

    fn caches(&self) -> Vec<PathBuf> {
        (0..2).map(|index| self.dir.join(format!("cache-{index}"))).collect()
    }

    fn origin(&self) -> PathBuf {
        self.dir.join("origin")
    }

    fn witness(&self) -> PathBuf {
        self.dir.join("witness")
    }

    /// Opens the pool that is there, or makes one.
    ///
    /// # Errors
    /// If files cannot be made or opened, or hold something else.
    pub(crate) async fn open(
        &self,
        reactor: &Rc<Reactor>,
        options: &Options,
        end: &Flag,
    ) -> Result<(Opened, Volume)> {
        let found = self.look()?;
        if found != Found::Complete {
            self.make_files(reactor, options, end, found).await?;
        }
        let members = Members::open(reactor, &self.caches()).await?;
        let origin = origin::open(reactor, &self.origin(), &members.identities(), PATIENCE).await?;
        let origin = origin::modelled(reactor, origin)?;
        let mut used = members.identities();
        used.extend(Identity::of(&self.origin()));
        let witness = FileWitness::at(reactor, &self.witness(), &used)
            .await
            .map_err(|failure| failure.hint("choose an empty directory with --dir"))?;
        if found != Found::Complete {
            let create = CreateOptions { dirty_copies: 2, ..CreateOptions::named(NAME) };
            members.create(reactor, &witness, &create).await?;
            remove(&[self.marker()])?;
            self.sync()?;
        }
        let decided = OpenOptions::default();
        let opened = members.open_pool(reactor, witness, Tuning::default(), decided).await?;
        opened.notes.tell(&opened.pool);
        self.is_ours.set(true);
        if found == Found::Complete {
            tell(format_args!("opened again: {}", opened.summary()));
        }
        match self.set_up(&opened.pool, origin, options).await {
            Ok(volume) => Ok((opened, volume)),
            Err(failure) => {
                opened.pool.stop().await?;
                Err(failure)
            }
        }
    }

    /// Makes RAM tier and volume what they shall be.
    async fn set_up(
        &self,
        pool: &Pool,
        origin: Rc<dyn BlockDevice>,
        options: &Options,
    ) -> Result<Volume> {
        let ram_bytes = options.ram.unwrap_or(0);
        if pool.superblock().ram_bytes != ram_bytes {
            pool.set_ram_bytes(ram_bytes).await?;
        }
        self.attach(pool, origin, options).await
    }

    async fn attach(
        &self,
        pool: &Pool,
        origin: Rc<dyn BlockDevice>,
        options: &Options,
    ) -> Result<Volume> {
        let known = pool.superblock().volumes.iter().any(|volume| volume.name == NAME);
        let volume = if known {
            pool.attach(NAME, origin).await?
        } else {
            let spec = VolumeSpec {
                name: NAME.to_owned(),
                origin: self.origin().display().to_string(),
                mode: Mode::Writeback,
                cache_block_bytes: CACHE_BLOCK_BYTES,
                settings: Default::default(),
                accept_data_loss_on_ssd_failure: false,
            };
            pool.add_volume(&spec, origin).await?
        };
        if volume.size_bytes() != options.size {
            let size = text::bytes(volume.size_bytes());
            tell(format_args!(
                "note: the volume that is there has {size}; --size is for a new one"
            ));
        }
        Ok(volume)
    }

    /// Says where files stay after a failure.
    pub(crate) fn tell_what_stays(&self) {
        if self.is_ours.get() {
            tell(format_args!("note: the demo's files stay in {}", self.dir.display()));
        }
    }

    /// What is there, by the names.
    fn look(&self) -> Result<Found> {
        if exists(&self.marker())? {
            return Ok(Found::CutOff);
        }
        let mut needed = self.caches();
        needed.push(self.origin());
        let mut missing = Vec::new();
        for path in &needed {
            if !exists(path)? {
                missing.push(path);
            }
        }
        let Some(first) = missing.first() else { return Ok(Found::Complete) };
        for path in self.files() {
            if exists(&path)? {
                let (path, first) = (path.display(), first.display());
                let what = format!("{path} is there and {first} is not");
                return Err(Failure::new(what).on("this is no complete demo").hint(
                    "nothing was changed: choose an empty directory with --dir, or bring the \
                     missing file back; a demo removes only what it made",
                ));
            }
        }
        Ok(Found::Nothing)
    }

    async fn make_files(
        &self,
        reactor: &Rc<Reactor>,
        options: &Options,
        end: &Flag,
        found: Found,
    ) -> Result<()> {
        if found == Found::Nothing {
            let marker = self.marker();
            File::create_new(&marker)
                .map_err(|error| Failure::system(format!("create {}", marker.display()), &error))?;
            self.sync()?;
        }
        self.is_ours.set(true);
        remove(&self.files())?;
        new_sparse_file(&self.origin(), options.size)?;
        for (index, path) in self.caches().iter().enumerate() {
            let what = format!("writing cache file {} of 2", index + 1);
            let progress = Progress::bytes(&what, options.cache_size);
            let prepare =
                prepare_file(reactor, path, options.cache_size, |done| progress.bytes_done(done));
            end.cut(prepare).await.ok_or_else(interrupted)??;
            progress.finish();
        }
        Ok(())
    }

    fn marker(&self) -> PathBuf {
        self.dir.join(MARKER)
    }

    /// Makes the directory's names durable.
    fn sync(&self) -> Result<()> {
        self.lock
            .sync_all()
            .map_err(|error| Failure::system(format!("flush {}", self.dir.display()), &error))
    }

    /// What bears our names, but for the marker.
    fn files(&self) -> Vec<PathBuf> {
        let mut files = self.caches();
        files.extend([self.origin(), self.witness(), self.dir.join("witness.new")]);
        files
    }

    /// Removes the directory if we chose it and nothing but our files is in it. Files that were not
    /// found to be ours stay.
    ///
    /// # Errors
    /// If a file cannot be removed.
    pub(crate) fn clean_up(&self, keep: bool) -> Result<()> {
        if !self.is_ours.get() {
            return Ok(());
        }
        if keep || !self.is_default {
            tell(format_args!(
                "kept: {} (the next demo on it opens the same pool)",
                self.dir.display()
            ));
            return Ok(());
        }
        remove(&self.files())?;
        remove(&[self.marker()])?;
        if std::fs::remove_dir(&self.dir).is_ok() {
            tell(format_args!("removed: {}", self.dir.display()));
            // The directory of our name above it goes if nothing else is there.
            if let Some(above) = self.dir.parent().filter(|above| above.ends_with("forebay")) {
                let _ = std::fs::remove_dir(above);
            }
        }
        Ok(())
    }
}

/// Locks the directory for as long as the file is open.
fn lock(dir: &Path) -> Result<File> {
    let failed = |error| Failure::system(format!("lock {}", dir.display()), &error);
    let lock = File::open(dir).map_err(failed)?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(TryLockError::WouldBlock) => {
            let what = format!("another demo is running in {}", dir.display());
            Err(Failure::new(what).hint("stop that one, or choose another directory with --dir"))
        }
        Err(TryLockError::Error(error)) => Err(failed(error)),
    }
}

/// Whether anything has this name, if only a link that leads nowhere.
fn exists(path: &Path) -> Result<bool> {
    match std::fs::symlink_metadata(path) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(Failure::system(format!("look at {}", path.display()), &error)),
    }
}

/// Makes a new file of `size_bytes` zeroes that takes no space.
fn new_sparse_file(path: &Path, size_bytes: u64) -> Result<()> {
    let made = File::create_new(path).and_then(|file| file.set_len(size_bytes));
    made.map_err(|error| Failure::system(format!("create {}", path.display()), &error))
}

fn remove(paths: &[PathBuf]) -> Result<()> {
    for path in paths {
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(Failure::system(format!("remove {}", path.display()), &error));
            }
            _ => {}
        }
    }
    Ok(())
}
