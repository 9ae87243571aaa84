//! The demo's files: two cache devices, an origin, a witness, a socket, all in one directory.

use std::fs::{DirBuilder, File};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use forebay_device::real::prepare::prepare_file;
use forebay_device::real::reactor::Reactor;
use forebay_engine::{CreateOptions, Mode, Tuning, Volume, VolumeSpec};

use super::progress::Progress;
use super::{Options, interrupted};
use crate::Result;
use crate::failure::Failure;
use crate::flag::Flag;
use crate::members::{Members, Opened};
use crate::origin;
use crate::text::{self, tell};
use crate::witness::FileWitness;

/// Name of the pool and of its volume.
const NAME: &str = "demo";

/// What misses bring into the cache: one chunk of the modelled array.
const CACHE_BLOCK_BYTES: u32 = 64 << 10;

/// See the head of the file.
pub(crate) struct State {
    /// Where everything is.
    pub(crate) dir: PathBuf,
    /// Whether we chose the directory, so that we may remove it.
    is_default: bool,
    /// Where clients connect.
    pub(crate) socket: PathBuf,
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
    /// Makes the directory.
    ///
    /// # Errors
    /// If that is not possible, or it is somebody else's.
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
        Ok(State { dir, is_default, socket })
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
        let paths = self.caches();
        // The witness is written when a creation is complete: without it and without readable
        // superblocks, what is there is what a cut-off creation left.
        let mut complete = paths.iter().all(|path| path.exists());
        if complete && !self.witness().exists() {
            complete = Members::open(reactor, &paths).await?.have_superblocks().await;
        }
        if !complete {
            self.make_files(reactor, options, end).await?;
        }
        let members = Members::open(reactor, &paths).await?;
        let origin = origin::open(reactor, &self.origin(), &members.identities).await?;
        let origin = origin::modelled(reactor, origin)?;
        if !complete {
            let witness = FileWitness::new(&self.witness());
            let create = CreateOptions { dirty_copies: 2, ..CreateOptions::named(NAME) };
            members.create(reactor, &witness, &create).await?;
        }
        let witness = FileWitness::new(&self.witness());
        let opened = members.open_pool(reactor, witness, Tuning::default()).await?;
        if complete {
            tell(format_args!("opened again: {}", opened.summary()));
        }
        let known = opened.pool.superblock().volumes.iter().any(|volume| volume.name == NAME);
        let volume = if known {
            opened.pool.attach(NAME, origin).await?
        } else {
            let spec = VolumeSpec {
                name: NAME.to_owned(),
                origin: self.origin().display().to_string(),
                mode: Mode::Writeback,
                cache_block_bytes: CACHE_BLOCK_BYTES,
                accept_data_loss_on_ssd_failure: false,
            };
            opened.pool.add_volume(&spec, origin).await?
        };
        if volume.size_bytes() != options.size {
            let size = text::bytes(volume.size_bytes());
            tell(format_args!(
                "note: the volume that is there has {size}; --size is for a new one"
            ));
        }
        Ok((opened, volume))
    }

    async fn make_files(&self, reactor: &Rc<Reactor>, options: &Options, end: &Flag) -> Result<()> {
        remove(&self.files())?;
        sparse_file(&self.origin(), options.size)?;
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

    fn files(&self) -> Vec<PathBuf> {
        let mut files = self.caches();
        files.extend([self.origin(), self.witness(), self.dir.join("witness.new")]);
        files
    }

    /// Removes our files and the directory if we chose it and nothing else is in it.
    ///
    /// # Errors
    /// If a file cannot be removed.
    pub(crate) fn clean_up(&self, keep: bool) -> Result<()> {
        if keep || !self.is_default {
            tell(format_args!(
                "kept: {} (the next demo on it opens the same pool)",
                self.dir.display()
            ));
            return Ok(());
        }
        remove(&self.files())?;
        if std::fs::remove_dir(&self.dir).is_ok() {
            tell(format_args!("removed: {}", self.dir.display()));
        }
        Ok(())
    }
}

/// Makes a file of `size_bytes` zeroes that takes no space.
///
/// # Errors
/// What the system says.
fn sparse_file(path: &Path, size_bytes: u64) -> Result<()> {
    let made = File::create(path).and_then(|file| file.set_len(size_bytes));
    made.map_err(|error| Failure::system(format!("create {}", path.display()), &error))
}

fn remove(paths: &[PathBuf]) -> Result<()> {
    for path in paths {
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(Failure::system(format!("remove {}", path.display()), &error));
            }
            _ => {}
        }
    }
    Ok(())
}
