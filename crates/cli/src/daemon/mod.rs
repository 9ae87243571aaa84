//! `forebay serve`: the daemon.
//!
//! * All pools live on the reactor of the main thread; the crew's reactors share their clients. The
//!   control plane is a thread of its own and sends calls here.
//! * Looking needs nothing. Whatever changes something holds `changing`, so there is one change at a
//!   time; long work (destaging) is a job that does not hold it.
//! * A pool or an origin that is not there is a state, and is looked for again; it never keeps the
//!   daemon from starting.

mod acceptance;
mod advisor;
mod answer;
mod bypass;
mod certificate;
mod check;
pub(crate) mod config;
mod creation;
mod daytime;
mod describe;
mod destruction;
mod devices;
mod direct;
mod ending;
mod exports;
mod health;
mod history;
mod import;
mod jobs;
pub(crate) mod journal;
mod log;
mod memory;
mod notify;
mod pace;
mod patience;
mod places;
mod plan;
mod pools;
mod population;
mod progress;
mod pull;
mod relief;
mod removal;
mod replace;
mod safe;
mod scan;
mod scrub;
mod shelf;
mod slot;
mod spares;
mod state;
mod stats;
mod troubles;
mod uses;
mod verdict;
mod volumes;
mod waiting;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use clap::Args;
use forebay_control::api::VolumeState;
use forebay_control::server::Server;
use forebay_control::socket::ControlSocket;
use forebay_device::post::post;
use forebay_device::real::net::Bound;
use forebay_device::real::passed::Passed;
use forebay_device::real::reactor::{self, Reactor};
use forebay_device::runtime::{Nanos, Runtime, SECOND};
use forebay_engine::format::{Host as Machine, WitnessVolume};
use forebay_engine::{Pool, Volume};
use forebay_export::nbd::Tls;

use self::advisor::Advisors;
use self::config::Config;
pub(crate) use self::describe::mode_name;
use self::direct::Direct;
use self::jobs::Jobs;
use self::journal::Journal;
use self::log::Log;
use self::memory::Kept;
use self::notify::Phase;
use self::patience::Found as FoundOrigin;
use self::progress::Progress;
use self::scan::{Found, Place, Unread};
use self::shelf::Shelf;
use self::spares::Spares;
use self::state::{Record, StateDir, Unreadable};
use self::troubles::Troubles;
use self::volumes::BLOCK_BYTES;
use self::waiting::Told;
use crate::Result;
use crate::crew::{Crew, reactors_default};
use crate::failure::Failure;
use crate::flag::Flag;
use crate::host::{Host, end_on_signals, when_free};
use crate::members::{Member, Members, PATIENCE};
use crate::notes::Notes;
use crate::origin::Origin;
use crate::patience::Pending;

/// How often the daemon looks after its pools.
const LOOK_INTERVAL: Nanos = SECOND;

/// How long devices have to give back what they were asked for when the daemon has stopped; one that hangs never does.
/// What is not stuck takes milliseconds, and the service manager gives the whole end 90 seconds.
const CLOSE_TIME_MAX: Nanos = 5 * SECOND;

/// See the head of the file.
#[derive(Args)]
pub(crate) struct Options {
    /// Configuration [default: /etc/forebay/forebay.toml, if it is there]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    // Before anything is opened.
    let shelf = Shelf::of(Passed::take());
    let config = Config::read(options.config.as_deref())?;
    let reactor = Reactor::new(reactor::Config::default())?;
    // Both before any thread starts, which inherits what is asked for here.
    let end = end_on_signals(&reactor, || ())?;
    let kept = Kept::ask();
    let log = Log::start()?;
    let result = reactor.block_on(serve(&reactor, config, end, kept, shelf));
    // What hangs then may reach its device later, as after a crash; nobody was told that it has.
    reactor.close_within(CLOSE_TIME_MAX);
    drop(log);
    result
}

/// A pool that the daemon was told of.
struct Slot {
    record: RefCell<Record>,
    /// Its devices, as the last scan found them.
    seen: RefCell<Vec<Found>>,
    /// Those that are there and cannot be read, if it lacks any.
    unread: RefCell<Vec<Unread>>,
    /// Whether they have been looked for.
    has_looked: Cell<bool>,
    state: RefCell<State>,
    /// What was said of devices that are missing.
    told: Cell<Told>,
    /// Whether it is being opened.
    opening: Cell<bool>,
    /// Its volumes as its witness has them, while none of its devices is there.
    witnessed: RefCell<Vec<WitnessVolume>>,
    /// Why its record cannot be read, if so: it is known by its identity alone, and its record is left as it is.
    unreadable: Option<Failure>,
}

/// How far it is from being served.
///
/// ```text
///                cannot be opened as it is
///    Waiting -------------------------------> Failed ---.  a person has decided,
///     |   ^  <------------------------------    |   ^   |  and it cannot still
///     |   |      other devices are there        |   '---'
///     |   '---------------.                     |
///     |        closed     |                     |
///     '---------------> Open <------------------'
///       devices there               a person has decided
///
///                no device is there, and a person has decided
///    Waiting, Failed ---------------------------------------> Bypassed
///    Waiting <-----------------------------------------------    |
///                closed, or a person wants the devices back <----'
/// ```
enum State {
    /// Not open, and to be opened when its devices are there.
    Waiting {
        /// When to go on without those that are missing.
        until: Nanos,
    },
    /// Not open, and not to be opened until somebody asks.
    Failed(Failure),
    Open(Rc<Open>),
    /// Served without its devices, and not opened with them until somebody asks.
    Bypassed(Rc<Direct>),
}

/// An open pool. Who clones the `Rc` across an `await` holds `changing`.
struct Open {
    pool: Pool,
    members: RefCell<Members>,
    notes: Notes,
    volumes: RefCell<BTreeMap<String, Attached>>,
    /// Their origins, of those that are online.
    origins: RefCell<BTreeMap<String, Origin>>,
    /// Of these, what was told to be wrong with them.
    troubles: Troubles,
    exports: RefCell<BTreeMap<String, Serving>>,
    progress: RefCell<Progress>,
    spares: Spares,
    advisors: Advisors,
    /// Cache devices that are failing and for which a spare was taken, or could not be.
    relieved: RefCell<BTreeSet<String>>,
    /// Number of the event up to which the pool was given what is told of it.
    told: Cell<u64>,
}

impl Open {
    /// A pool of which nothing is attached yet.
    fn new(pool: Pool, members: Members, notes: Notes) -> Open {
        let (volumes, origins, troubles, exports, progress, spares) = Default::default();
        let members = RefCell::new(members);
        let (advisors, relieved, told) = Default::default();
        Open {
            pool,
            members,
            notes,
            volumes,
            origins,
            troubles,
            exports,
            progress,
            spares,
            advisors,
            relieved,
            told,
        }
    }

    /// Bytes of a volume that are not known to be durable on its origin, whether that is attached or not.
    fn dirty_bytes(&self, volume: &str) -> u64 {
        let superblock = self.pool.superblock();
        let id = superblock.volumes.iter().find(|v| v.name == volume).map(|v| v.id);
        id.map_or(0, |id| self.pool.unproven_blocks_of(id) * BLOCK_BYTES)
    }

    /// Whether some origin in use is not at its path.
    fn is_any_displaced(&self) -> bool {
        let is_displaced = |origin: &Origin| match origin {
            Origin::File(file) => file.displaced().is_some(),
            Origin::Nbd(_) => false,
        };
        self.origins.borrow().values().any(is_displaced)
    }

    /// What is wrong with the origin of a volume that is online, and the state that the volume is in.
    fn trouble(&self, volume: &str) -> Option<(VolumeState, String)> {
        let cut_off = self.origins.borrow().get(volume).and_then(Origin::trouble);
        let fails = || match self.volumes.borrow().get(volume) {
            Some(Attached::Online(volume)) => volume.origin_trouble(),
            _ => None,
        };
        match cut_off {
            Some(why) => Some((VolumeState::OriginMissing, why)),
            None => fails().map(|why| (VolumeState::OriginFailed, why.to_string())),
        }
    }
}

/// A volume of an open pool.
enum Attached {
    Online(Rc<Volume>),
    /// Its origin cannot be used, and is tried again if it is there then.
    Missing {
        why: Failure,
        retry_at: Nanos,
    },
}

/// An export of an open pool.
enum Serving {
    Live(Host),
    /// Its address could not be had, and is tried again.
    Failed {
        why: Failure,
        retry_at: Nanos,
    },
}

/// See the head of the file.
struct Daemon {
    reactor: Rc<Reactor>,
    config: Config,
    tls: Option<Tls>,
    crew: Crew,
    state: StateDir,
    shelf: Shelf,
    /// Origins that are being opened, and do not answer.
    opening: Pending<FoundOrigin>,
    /// The same of cache devices.
    members: Pending<Result<Member>>,
    /// The same of looks where they are.
    placing: Pending<self::places::Look>,
    /// The same of sockets of exports that are being made.
    binding: Pending<std::io::Result<Bound>>,
    /// What else has not answered, by what was asked; each tells whether its thread has returned.
    silent: RefCell<BTreeMap<String, Box<dyn Fn() -> bool>>>,
    /// Where scans are stuck; each tells whether its thread has returned.
    stuck: RefCell<BTreeMap<Place, Box<dyn Fn() -> bool>>>,
    slots: RefCell<BTreeMap<String, Rc<Slot>>>,
    journal: Journal,
    /// Who opens pools here.
    machine: Option<Machine>,
    jobs: Jobs,
    changing: tokio::sync::Mutex<()>,
    /// Raised when the daemon is to end.
    end: Rc<Flag>,
    phase: Cell<Phase>,
    kept: Kept,
    /// Set when it will end as soon as who asked for it knows; nothing is changed any more.
    is_leaving: Cell<bool>,
    health: self::health::Patients,
    /// When missing devices are looked for again.
    scan_next: Cell<Nanos>,
    /// Until when that is at every look: devices come at the beginning.
    scan_often_until: Nanos,
}

fn make_dir(path: &Path) -> Result<()> {
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o755).create(path);
    made.map_err(|error| {
        Failure::system(format!("create {}", path.display()), &error)
            .hint("choose other paths in the configuration, or run as root")
    })
}

async fn open_socket(
    reactor: &Rc<Reactor>,
    config: &Config,
    shelf: &Shelf,
) -> Result<ControlSocket> {
    let (path, mode) = (&config.control.socket, config.control_mode()?);
    if let Some(folder) = path.parent() {
        make_dir(folder)?;
    }
    let open = async || match shelf.control(path)? {
        Some(passed) => Ok(passed),
        None => {
            let mut socket = ControlSocket::open(path, mode)?;
            shelf.keep_control(&mut socket);
            Ok(socket)
        }
    };
    when_free(reactor, PATIENCE, open).await.map_err(|error| {
        Failure::system(format!("listen on the control socket {}", path.display()), &error)
            .hint("stop the daemon that has it, or choose another control.socket")
    })
}

async fn serve(
    reactor: &Rc<Reactor>,
    config: Config,
    end: Rc<Flag>,
    kept: Kept,
    shelf: Shelf,
) -> Result<()> {
    let tls = config.load_tls()?;
    let machine = config.machine();
    let state = StateDir::open(reactor, &config.state_dir).await?;
    make_dir(&config.run_dir)?;
    let passed = shelf.count();
    let socket = open_socket(reactor, &config, &shelf).await?;
    let (records, unreadable) = state.records()?;
    let crew = Crew::start(config.reactors.unwrap_or_else(reactors_default))?;
    let (sender, calls) = post();
    let mut server = Server::start(socket, sender)
        .map_err(|error| Failure::system("start the control plane", &error))?;
    let wait = config.devices.wait_s.saturating_mul(SECOND);
    let daemon = Rc::new(Daemon {
        reactor: Rc::clone(reactor),
        config,
        tls,
        crew,
        state,
        shelf,
        opening: Pending::default(),
        members: Pending::default(),
        placing: Pending::default(),
        binding: Pending::default(),
        silent: RefCell::default(),
        stuck: RefCell::default(),
        slots: RefCell::default(),
        journal: Journal::new(reactor),
        machine,
        jobs: Jobs::new(reactor),
        changing: tokio::sync::Mutex::new(()),
        end: Rc::clone(&end),
        phase: Cell::new(Phase::Starting),
        kept,
        is_leaving: Cell::new(false),
        health: Default::default(),
        scan_next: Cell::new(0),
        scan_often_until: reactor.now().saturating_add(wait),
    });
    daemon.adopt(records, unreadable);
    let socket = daemon.config.control.socket.display().to_string();
    let mut what = format!("the daemon listens on {socket}");
    if passed > 0 {
        what.push_str(&format!("; {} passed in", crate::text::plural(passed, "socket")));
    }
    daemon.journal.note("daemon-started", "", what);
    for what in daemon.shelf.complaints(|name| daemon.is_exported(name)) {
        daemon.journal.warn("socket-unused", "", what);
    }
    if daemon.machine.is_none() {
        let what = "nobody can tell which machine this is: other hosts do not see which pools are open here";
        daemon.journal.warn("pool-unclaimed", "", what);
    }
    daemon.tell_memory();
    reactor.spawn(Box::pin(Rc::clone(&daemon).beat()));
    reactor.spawn(Box::pin(Rc::clone(&daemon).keep_time()));
    reactor.spawn(Box::pin(Rc::clone(&daemon).keep_looking()));
    reactor.spawn(Box::pin(Rc::clone(&daemon).keep_asking()));
    reactor.spawn(Box::pin(Rc::clone(&daemon).keep_certificate()));
    reactor.spawn(Box::pin(Rc::clone(&daemon).keep_placing()));
    let watched = Rc::new(Flag::default());
    let (it, done) = (Rc::clone(&daemon), Rc::clone(&watched));
    reactor.spawn(Box::pin(async move {
        it.watch().await;
        done.raise();
    }));
    while let Some(Some(call)) = end.cut(calls.next()).await {
        daemon.answer(call);
    }
    daemon.enter(Phase::Stopping);
    daemon.journal.note("daemon-stopping", "", "the daemon stops; what is dirty stays cached");
    server.stop();
    while let Some(call) = calls.next().await {
        daemon.answer(call);
    }
    server.join();
    watched.wait().await;
    daemon.stop().await
}

impl Daemon {
    fn runtime(&self) -> &dyn Runtime {
        &*self.reactor
    }

    /// Takes over what the state directory knows. What it does not know of a pool, its name for one, is not guessed.
    fn adopt(&self, records: Vec<Record>, unreadable: Unreadable) {
        let until = self.scan_often_until;
        let mut slots = self.slots.borrow_mut();
        for record in records {
            let name = record.name.to_string();
            let state = match record.bypassed.is_some() && !record.destroying {
                true => State::Bypassed(Rc::default()),
                false => State::Waiting { until },
            };
            slots.insert(name, Rc::new(Slot::new(record, state)));
        }
        for (id, failure) in unreadable {
            self.journal.warn("pool-failed", id.as_str(), failure.what());
            slots.insert(id.to_string(), Rc::new(Slot::unreadable(id, failure)));
        }
    }

    /// Looks after the pools until the daemon ends.
    async fn watch(self: &Rc<Self>) {
        {
            let _held = self.changing.lock().await;
            self.settle_intents().await;
        }
        let mut is_ready = false;
        // A change that is stuck keeps nobody from ending.
        while !self.end.is_raised() {
            let Some(held) = self.end.cut(self.changing.lock()).await else { return };
            self.look_after().await;
            drop(held);
            self.shelf.send();
            if !std::mem::replace(&mut is_ready, true) {
                self.enter(Phase::Serving);
            }
            self.end.cut(self.runtime().sleep(LOOK_INTERVAL)).await;
        }
    }
}
