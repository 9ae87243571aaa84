//! Commands for tests and developers: a pool on given files, served until a signal comes.

use std::cell::RefCell;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::rc::{Rc, Weak};

use clap::{Args, Subcommand, ValueEnum};
use forebay_device::BlockDevice;
use forebay_device::real::prepare::prepare_file;
use forebay_device::real::reactor::{Config, Reactor};
use forebay_engine::{CreateOptions, Mode, OpenOptions, Pool, Tuning, Volume, VolumeSpec};

use crate::Result;
use crate::crew::{Crew, reactors_default};
use crate::export::Access;
use crate::failure::Failure;
use crate::flag::Flag;
use crate::host::{Doors, Host, Places, end_on_signals, loopback};
use crate::members::{Identity, Members, Opened, PATIENCE, refuse_sparse_anew};
use crate::origin;
use crate::progress::Progress;
use crate::remote;
use crate::text::{self, parse_bytes, say, tell, whole};
use crate::witness::FileWitness;
use crate::{blocking, reference};

/// Name of the pool and of its only volume.
const NAME: &str = "dev";

/// See the head of the file.
#[derive(Args)]
pub(crate) struct Options {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Open a pool and serve its volume until SIGINT, SIGTERM or SIGHUP; SIGUSR1 prints counters
    Serve(Serve),
    /// Write the parts of docs/user/reference.md anew that come from definitions
    Reference {
        /// The file, with a place for each part
        file: PathBuf,
    },
}

#[derive(Args)]
struct Serve {
    /// A cache device; repeat it for each
    #[arg(long = "cache", value_name = "FILE", required = true)]
    caches: Vec<PathBuf>,
    /// The disk behind the cache, or the URI of an NBD export
    #[arg(long, value_name = "FILE|URI")]
    origin: PathBuf,
    /// Where the witness is kept
    #[arg(long, value_name = "FILE")]
    witness: PathBuf,
    /// Unix socket to serve on
    #[arg(long, value_name = "PATH")]
    socket: PathBuf,
    /// Serve on this port of the loopback address too; 0 takes a free one
    #[arg(long, value_parser = whole::<u16>(..=u16::MAX))]
    port: Option<u16>,
    /// Reactors that share the clients; without it one per core
    #[arg(long, value_name = "N", value_parser = whole::<NonZeroUsize>(NonZeroUsize::MIN..))]
    reactors: Option<NonZeroUsize>,
    /// Make a new pool
    #[arg(long)]
    create: bool,
    /// With --create: write cache files of this size first
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes, requires = "create")]
    cache_bytes: Option<u64>,
    /// With --create: size of a segment
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes, requires = "create")]
    segment_bytes: Option<u64>,
    /// With --create: copies of dirty data
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = whole::<u8>(1..=3))]
    dirty_copies: u8,
    /// With --create: size of the RAM tier
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes, default_value = "0")]
    ram: u64,
    /// With --create: unit of population
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes, default_value = "64K")]
    cache_block_bytes: u64,
    /// With --create: agree to write-back with one dirty copy
    #[arg(long)]
    accept_data_loss_on_ssd_failure: bool,
    /// How the volume is served; without it as before, at creation writeback
    #[arg(long)]
    mode: Option<ModeName>,
    /// Refuse clients' writes; what is dirty is still destaged
    #[arg(long)]
    read_only: bool,
    /// Give the origin the timing of a modelled array of disks
    #[arg(long)]
    modelled: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum ModeName {
    Writeback,
    Writethrough,
    Readonly,
    Writeonly,
    Bypass,
}

impl From<ModeName> for Mode {
    fn from(name: ModeName) -> Self {
        match name {
            ModeName::Writeback => Mode::Writeback,
            ModeName::Writethrough => Mode::Writethrough,
            ModeName::Readonly => Mode::Readonly,
            ModeName::Writeonly => Mode::Writeonly,
            ModeName::Bypass => Mode::Bypass,
        }
    }
}

/// Runs the command; `root` is the whole command line.
pub(crate) fn run(options: Options, root: clap::Command) -> Result<()> {
    let serve = match options.command {
        Command::Serve(serve) => serve,
        Command::Reference { file } => return renew_reference(&file, root),
    };
    let reactor = Reactor::new(Config::default())?;
    let result = reactor.block_on(serve.run(&reactor));
    reactor.close();
    result
}

fn renew_reference(file: &Path, root: clap::Command) -> Result<()> {
    let failed = |action: &str, error: &std::io::Error| {
        Failure::system(format!("{action} {}", file.display()), error).hint("check the path")
    };
    let text = std::fs::read_to_string(file).map_err(|error| failed("read", &error))?;
    let renewed = reference::renew(&text, root).map_err(|failure| failure.on(file.display()))?;
    blocking::replace(file, renewed.as_bytes()).map_err(|error| failed("write", &error))
}

/// All that is known of a running pool, on one line.
fn counters(pool: &Pool) -> String {
    let (cached, dirty) = pool.blocks();
    let (free, total) = pool.segments();
    let mut line = format!(
        "counters: cached_blocks={cached} dirty_blocks={dirty} free_segments={free} \
         segments={total} latched={}",
        pool.is_latched()
    );
    for (name, value) in pool.counters().list() {
        line.push_str(&format!(" {name}={value}"));
    }
    for (reason, counters) in pool.bypass().iter() {
        let bytes = counters.read_bytes.get() + counters.write_bytes.get();
        line.push_str(&format!(" bypass_{}_bytes={bytes}", reason.name()));
    }
    line
}

impl Serve {
    async fn run(&self, reactor: &Rc<Reactor>) -> Result<()> {
        let running: Rc<RefCell<Weak<Pool>>> = Rc::default();
        let seen = Rc::clone(&running);
        let end = end_on_signals(reactor, move || {
            seen.borrow().upgrade().inspect(|pool| say(counters(pool)));
        })?;
        // Before anything is written: an address that is taken should not cost minutes.
        let places = Places {
            socket: Some(&self.socket),
            address: self.port.map(loopback),
            ..Places::default()
        };
        let doors = Doors::open(reactor, NAME, &places).await?;
        let mut written = Vec::new();
        let opened = self.open(reactor, &end, &mut written).await.inspect_err(|_| {
            written.iter().for_each(|path: &PathBuf| {
                tell(format_args!("note: the new cache file {} stays", path.display()));
            });
        });
        let (Opened { pool, members, notes, .. }, origin) = opened?;
        let pool = Rc::new(pool);
        *running.borrow_mut() = Rc::downgrade(&pool);
        let served = self.serve(reactor, doors, &pool, &members, origin, &end);
        let served = notes.beside(&**reactor, &pool, served).await;
        say(counters(&pool));
        let pool = Rc::into_inner(pool).ok_or_else(|| Failure::new("the pool is still in use"))?;
        let stopped = pool.stop().await;
        if let Ok(dirty) = stopped {
            say(format_args!("stopped: {dirty} dirty blocks"));
        }
        served?;
        stopped?;
        Ok(())
    }

    /// Makes the pool if that is asked for, and opens it. `written` gets the cache files made.
    async fn open(
        &self,
        reactor: &Rc<Reactor>,
        end: &Flag,
        written: &mut Vec<PathBuf>,
    ) -> Result<(Opened, Rc<dyn BlockDevice>)> {
        if self.create {
            self.prepare(reactor, end, written).await?;
        }
        let members = Members::open(reactor, &self.caches).await?;
        let origin = self.open_origin(reactor, &members).await?;
        let origin = if self.modelled { origin::modelled(reactor, origin)? } else { origin };
        let mut used = members.identities();
        used.extend(Identity::of(&self.origin));
        let witness = FileWitness::at(reactor, &self.witness, &used).await?;
        if self.create {
            members.create(reactor, &witness, &self.create_options()?).await?;
        }
        let decided = OpenOptions::default();
        let opened = members.open_pool(reactor, witness, Tuning::default(), decided).await?;
        opened.notes.tell(&opened.pool);
        say(opened.summary());
        Ok((opened, origin))
    }

    async fn open_origin(
        &self,
        reactor: &Rc<Reactor>,
        members: &Members,
    ) -> Result<Rc<dyn BlockDevice>> {
        match self.origin.to_str().map_or(Ok(None), remote::place)? {
            Some(place) => Ok(remote::open(reactor, &place).await?),
            None => Ok(origin::open(reactor, &self.origin, &members.identities(), PATIENCE).await?),
        }
    }

    /// Writes the cache files that are not there; the others must be whole.
    async fn prepare(
        &self,
        reactor: &Rc<Reactor>,
        end: &Flag,
        written: &mut Vec<PathBuf>,
    ) -> Result<()> {
        let remedy =
            |bytes| format!("remove it, and --create --cache-bytes {bytes} writes it in full");
        self.caches.iter().try_for_each(|path| refuse_sparse_anew(path, remedy))?;
        let Some(size) = self.cache_bytes else { return Ok(()) };
        for path in self.caches.iter().filter(|path| !path.exists()) {
            let progress = Progress::bytes(&format!("writing {}", path.display()), size);
            let prepare = prepare_file(reactor, path, size, |done| progress.bytes_done(done));
            let interrupted = || Failure::new("interrupted before the pool was made");
            end.cut(prepare).await.ok_or_else(interrupted)??;
            progress.finish();
            written.push(path.clone());
        }
        Ok(())
    }

    /// Serves until a signal comes.
    async fn serve(
        &self,
        reactor: &Rc<Reactor>,
        doors: Doors,
        pool: &Pool,
        members: &Members,
        origin: Rc<dyn BlockDevice>,
        end: &Flag,
    ) -> Result<()> {
        let origin_bytes = origin.geometry().size_bytes;
        let volume = self.attach(pool, origin).await?;
        self.note_larger(&volume, origin_bytes);
        let crew = Crew::start(self.reactors.unwrap_or_else(reactors_default))?;
        let access = if self.read_only { Access::ReadOnly } else { Access::ReadWrite };
        let readers = (pool.superblock().pool, members.readers_for(&crew)?);
        let host = Host::start(reactor, doors, readers, &volume, &access.into(), &crew).await?;
        for uri in &host.uris {
            say(format_args!("serving {uri}"));
        }
        end.wait().await;
        host.stop().await;
        Ok(())
    }

    /// An origin may be larger than its volume, which goes on as it was made.
    fn note_larger(&self, volume: &Volume, origin_bytes: u64) {
        let served = volume.size_bytes();
        if origin_bytes > served {
            tell(format_args!(
                "note: origin {} has {}, the volume {}: what lies behind is not served; \
                 `forebay volume grow` takes it in once a daemon has the pool",
                self.origin.display(),
                text::bytes(origin_bytes),
                text::bytes(served),
            ));
        }
    }

    fn create_options(&self) -> Result<CreateOptions> {
        let segment_bytes = match self.segment_bytes {
            None => None,
            Some(bytes) if bytes.is_power_of_two() && (64 << 10..=32 << 20).contains(&bytes) => {
                u32::try_from(bytes).ok()
            }
            Some(bytes) => {
                return Err(Failure::new(format!("segments of {bytes} B are not possible"))
                    .hint("use a power of two from 64K to 32M"));
            }
        };
        let dirty_copies = self.dirty_copies;
        let ram_bytes = self.ram;
        Ok(CreateOptions { dirty_copies, segment_bytes, ram_bytes, ..CreateOptions::named(NAME) })
    }

    async fn attach(&self, pool: &Pool, origin: Rc<dyn BlockDevice>) -> Result<Volume> {
        let mode = self.mode.map(Mode::from);
        if pool.superblock().volumes.iter().any(|volume| volume.name == NAME) {
            let volume = pool.attach(NAME, origin).await?;
            if let Some(mode) = mode.filter(|mode| *mode != volume.mode()) {
                volume.set_mode(mode).await?;
            }
            return Ok(volume);
        }
        let spec = VolumeSpec {
            name: NAME.to_owned(),
            origin: self.origin.display().to_string(),
            mode: mode.unwrap_or(Mode::Writeback),
            cache_block_bytes: u32::try_from(self.cache_block_bytes).unwrap_or(u32::MAX),
            settings: Default::default(),
            accept_data_loss_on_ssd_failure: self.accept_data_loss_on_ssd_failure,
        };
        Ok(pool.add_volume(&spec, origin).await?)
    }
}
