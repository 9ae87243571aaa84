//! `forebay pool`.

use std::path::{Path, PathBuf};

use clap::Subcommand;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use forebay_control::api::{
    AddDevice, AddSpare, CanIPull, Change, CreatePool, Done, GrowDevice, Health, HealthVerdict,
    ImportPool, Job, Many, MemberState, One, Pool, PoolHealth, PoolPlan, PoolState, PoolUsage,
    Pull, RemoveDevice, ReplaceDevice, SpareState, Verify,
};
use forebay_control::name::Name;
use forebay_control::profile::Profile;
use forebay_device::real::open::typed;

use super::settings::ANY_CAPACITY;
use super::{Asking, Daemon, absolute, confirm, consent, table, understood};
use crate::Result;
use crate::failure::{EXIT_NO, Failure};
use crate::text::{self, fact, parse_bytes, parse_millis, say, tell, whole};

/// See the head of the file.
#[derive(Subcommand)]
pub(crate) enum Command {
    /// Make a pool on SSDs; what is on them is erased
    Create {
        /// Its name: A-Z a-z 0-9 - _ . up to 63 characters
        name: Name,
        /// A cache device: a disk, a partition, or a file written in full; repeat it for each
        #[arg(long = "ssd", value_name = "PATH", required = true)]
        ssds: Vec<PathBuf>,
        /// On how many of them each dirty block is [default: 2, with one device 1]
        #[arg(long, value_name = "N", value_parser = whole::<u8>(1..=3))]
        dirty_copies: Option<u8>,
        /// On how many of them each clean block is [default: 1]
        #[arg(long, value_name = "N", value_parser = whole::<u8>(1..=2))]
        clean_copies: Option<u8>,
        /// Both, by the name of the RAID level that loses as little
        #[arg(long, value_name = "LEVEL", value_parser = profile_parser(),
            conflicts_with_all = ["dirty_copies", "clean_copies"])]
        profile: Option<Profile>,
        /// Keep what is hottest in so much RAM in front of them, in steps of 2M [default: none]
        #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
        ram: Option<u64>,
        /// Most memory for the index, 4M at the least and 1024T at the most; a cache full of small pieces takes in less at it [default: 1.6M for each GiB of cache]
        #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
        index_max: Option<u64>,
        /// Go on without a cache device that takes longer to answer [default: 5s]
        #[arg(long, value_name = "TIME", value_parser = parse_millis)]
        device_deadline: Option<u32>,
        /// How much may be written to all of them together a day; beyond it less is cached [default: no bound]
        #[arg(long, value_name = "SIZE|NUMBERTBW/YEARSy|NUMBERdwpd")]
        write_budget: Option<String>,
        /// Write volumes back although the death of one SSD loses what is dirty
        #[arg(long)]
        accept_data_loss_on_ssd_failure: bool,
        /// Only say what would be done
        #[arg(long)]
        dry_run: bool,
    },
    /// List the pools
    List,
    /// Show a pool with its devices and volumes
    Show {
        /// Its name
        name: Name,
    },
    /// Change settings of a pool while it serves
    Set {
        /// Its name
        name: Name,
        /// `dirty_copies=1..3`, `clean_copies=1..2`, `profile=LEVEL`, `ram=SIZE`, `device_deadline=TIME`, `scrub_rate=SIZE`, `verify=off|reads`, `write_budget=SIZE|NUMBERTBW/YEARSy|NUMBERdwpd`, `write_amplification_max_percent=100..400`, `accept_data_loss_on_ssd_failure=true|false`
        #[arg(value_name = "KEY=VALUE", required = true)]
        settings: Vec<String>,
        /// Only say what would be done
        #[arg(long)]
        dry_run: bool,
    },
    /// The cache devices of a pool: add, grow, replace, take out, keep spares, ask whether one can be pulled
    #[command(subcommand)]
    Device(Device),
    /// Open a pool whose devices are here; without a name list those that could be
    Import {
        /// Its name or its identity
        pool: Option<String>,
        /// Look for its devices here too
        #[arg(long = "ssd", value_name = "PATH", requires = "pool")]
        ssds: Vec<PathBuf>,
        /// Go on without missing devices for good: writes that only they hold are lost
        #[arg(long, requires = "pool")]
        accept_missing: bool,
        /// Take it from another host that has it open and is dead; refused if that is alive
        #[arg(long, requires = "pool")]
        take_over: bool,
        /// Do not ask
        #[arg(long, requires = "pool")]
        yes: bool,
        /// Only say what would be done
        #[arg(long)]
        dry_run: bool,
    },
    /// Stop a pool and forget it, so that its devices can move to another machine
    Export {
        /// Its name
        name: Name,
        /// Only say what would be done
        #[arg(long)]
        dry_run: bool,
    },
    /// Serve a pool whose cache devices are gone straight from its origins, as far as these have all of their data
    Bypass {
        /// Its name
        name: Name,
        /// Do not ask
        #[arg(long)]
        yes: bool,
        /// Only say what would be done
        #[arg(long)]
        dry_run: bool,
    },
    /// Bring all data of a pool home and erase it from its devices
    Destroy {
        /// Its name
        name: Name,
        /// Do not ask
        #[arg(long)]
        yes: bool,
        /// Only say what would be done
        #[arg(long)]
        dry_run: bool,
    },
}

/// What can be done to the cache devices of a pool.
#[derive(Subcommand)]
pub(crate) enum Device {
    /// Add a cache device; what is on it is erased
    Add {
        /// The pool
        pool: Name,
        /// A disk, a partition, or a file written in full
        #[arg(value_name = "PATH")]
        ssd: PathBuf,
        /// Only say what would be done
        #[arg(long)]
        dry_run: bool,
    },
    /// Use all of a cache device that has become larger, while the pool serves
    Grow {
        /// The pool
        pool: Name,
        /// Its path or its identity, as `forebay pool show` has it
        device: String,
        /// Only say what would be done
        #[arg(long)]
        dry_run: bool,
    },
    /// Give a pool a spare, which takes the place of a cache device that is lost; what is on it is erased
    Spare {
        /// The pool
        pool: Name,
        /// A disk, a partition, or a file written in full
        #[arg(value_name = "PATH")]
        ssd: PathBuf,
        /// Only say what would be done
        #[arg(long)]
        dry_run: bool,
    },
    /// Say whether a cache device can be pulled out now, and if not, how long to wait; exit code 3: no
    #[command(name = "can-i-pull")]
    CanIPull {
        /// The pool
        pool: Name,
        /// Its path or its identity, as `forebay pool show` has it
        device: String,
    },
    /// Put a cache device in the place of another one, which may be gone; both are erased
    Replace {
        /// The pool
        pool: Name,
        /// The old one: its path, also the one that it last had, or its identity
        old: String,
        /// The new one: a disk, a partition, or a file written in full
        #[arg(value_name = "PATH")]
        new: PathBuf,
        /// Do not ask
        #[arg(long)]
        yes: bool,
        /// Only say what would be done
        #[arg(long)]
        dry_run: bool,
    },
    /// Move what a cache device holds to the others, then go on without it, or give a spare up; it is erased
    Remove {
        /// The pool
        pool: Name,
        /// Its path or its identity, as `forebay pool show` has it
        device: String,
        /// Do not ask
        #[arg(long)]
        yes: bool,
        /// Only say what would be done
        #[arg(long)]
        dry_run: bool,
    },
}

/// Whether this is how identities are written, of pools and of cache devices.
pub(super) fn is_identity(text: &str) -> bool {
    text.len() == 32 && text.chars().all(|c| c.is_ascii_hexdigit())
}

/// What is meant by the name of a device: the path from the root on, or the identity.
fn designation(device: String) -> Result<String> {
    if is_identity(&device) {
        return Ok(device);
    }
    Ok(absolute(Path::new(&device))?.display().to_string())
}

fn run_device(command: Device, daemon: &Daemon<'_>) -> Result<()> {
    let (pool, device, yes, dry_run) = match command {
        Device::Add { pool, ssd, dry_run } => return add_device(pool, &ssd, dry_run, daemon),
        Device::Grow { pool, device, dry_run } => {
            return grow_device(pool, device, dry_run, daemon);
        }
        Device::Spare { pool, ssd, dry_run } => return add_spare(pool, &ssd, dry_run, daemon),
        Device::Replace { pool, old, new, yes, dry_run } => {
            return replace_device(pool, old, &new, yes, dry_run, daemon);
        }
        Device::CanIPull { pool, device } => return can_i_pull(&pool, device, daemon),
        Device::Remove { pool, device, yes, dry_run } => (pool, device, yes, dry_run),
    };
    let device = designation(device)?;
    if dry_run {
        return daemon.plan(&Change::RemoveDevice { pool, device });
    }
    let what = format!("Cache device {device} leaves pool \"{pool}\" and is erased");
    confirm("the name of the pool", pool.as_str(), &what, yes)?;
    let at = format!("/api/v1/pools/{pool}/devices/remove");
    let job: One<Job> = daemon.post(&at, &RemoveDevice { device: device.clone() })?;
    let job = daemon.follow(job)?;
    daemon.print(&job, |_| {
        tell(format_args!("{device} is no cache device of pool \"{pool}\" any more"));
    });
    Ok(())
}

fn replace_device(
    pool: Name,
    old: String,
    new: &Path,
    yes: bool,
    dry_run: bool,
    daemon: &Daemon<'_>,
) -> Result<()> {
    let (old, new) = (designation(old)?, absolute(new)?);
    if dry_run {
        return daemon.plan(&Change::ReplaceDevice { pool, old, new });
    }
    let place = new.display().to_string();
    let what = format!(
        "{place} takes the place of cache device {old} in pool \"{pool}\"; what is on both is erased"
    );
    confirm("the name of the pool", pool.as_str(), &what, yes)?;
    let at = format!("/api/v1/pools/{pool}/devices/replace");
    let job: One<Job> = daemon.post(&at, &ReplaceDevice { old: old.clone(), new })?;
    let job = daemon.follow(job).map_err(|failure| {
        failure.or_hint(
            "the new one is a part of the pool, and so is the old one unless it is gone; ask again and it \
             goes on, or take one of them out: `forebay pool device remove`",
        )
    })?;
    daemon.print(&job, |_| {
        tell(format_args!("{place} has taken the place of {old} in pool \"{pool}\""));
    });
    Ok(())
}

/// Ends with an exit code of its own if the answer is no.
fn can_i_pull(pool: &Name, device: String, daemon: &Daemon<'_>) -> Result<()> {
    let at = format!("/api/v1/pools/{pool}/devices/can-i-pull");
    let answer: One<Pull> = daemon.post(&at, &CanIPull { device: designation(device)? })?;
    daemon.print(&answer, |answer| print_pull(&answer.item));
    match answer.item.safe {
        true => Ok(()),
        false => {
            text::all_written()?;
            std::process::exit(EXIT_NO.into())
        }
    }
}

/// Whether a cache device can be pulled, and if not what to do, in one line.
fn in_short(pull: &Pull) -> String {
    let wait = match pull.wait_s {
        Some(0) => return pull.summary.clone(),
        Some(seconds) => format!("wait about {}, or ", text::left(seconds)),
        None => String::new(),
    };
    format!("{} To do: {wait}{}.", pull.summary, pull.action)
}

fn print_pull(pull: &Pull) {
    fact("", &pull.summary);
    if !pull.safe {
        let wait = match pull.wait_s {
            Some(seconds) => format!("about {}", text::left(seconds)),
            None => "waiting alone does not help, or nobody can tell".to_owned(),
        };
        say(text::beside("wait     ", &wait));
        say(text::beside("action   ", &pull.action));
    }
    for note in &pull.notes {
        say(text::beside("then     ", note));
    }
}

fn add_device(pool: Name, ssd: &Path, dry_run: bool, daemon: &Daemon<'_>) -> Result<()> {
    let ssd = absolute(ssd)?;
    if dry_run {
        return daemon.plan(&Change::AddDevice { pool, ssd });
    }
    let at = format!("/api/v1/pools/{pool}/devices/add");
    let shown: One<Pool> = daemon.post(&at, &AddDevice { ssd })?;
    daemon.print(&shown, |pool| print_pool(&pool.item));
    Ok(())
}

fn grow_device(pool: Name, device: String, dry_run: bool, daemon: &Daemon<'_>) -> Result<()> {
    let device = designation(device)?;
    if dry_run {
        return daemon.plan(&Change::GrowDevice { pool, device });
    }
    let at = format!("/api/v1/pools/{pool}/devices/grow");
    let shown: One<Pool> = daemon.post(&at, &GrowDevice { device })?;
    daemon.print(&shown, |pool| print_pool(&pool.item));
    Ok(())
}

fn add_spare(pool: Name, ssd: &Path, dry_run: bool, daemon: &Daemon<'_>) -> Result<()> {
    let ssd = absolute(ssd)?;
    if dry_run {
        return daemon.plan(&Change::AddSpare { pool, ssd });
    }
    let at = format!("/api/v1/pools/{pool}/devices/spare");
    let shown: One<Pool> = daemon.post(&at, &AddSpare { ssd })?;
    daemon.print(&shown, |pool| print_pool(&pool.item));
    Ok(())
}

fn state_name(state: PoolState) -> &'static str {
    match state {
        PoolState::Online => "online",
        PoolState::Degraded => "degraded",
        PoolState::Rebuilding => "rebuilding",
        PoolState::Protecting => "protecting",
        PoolState::Protected => "protected",
        PoolState::Latched => "latched",
        PoolState::Waiting => "waiting",
        PoolState::Bypassed => "bypassed",
        PoolState::NeedsDecision => "needs-decision",
        PoolState::HeldElsewhere => "held-elsewhere",
        PoolState::LeaseLost => "lease-lost",
        PoolState::Failed => "failed",
        PoolState::Exported => "exported",
    }
}

/// Says of which of this host's pools the volumes are not known.
pub(super) fn note_unknown(daemon: &Daemon<'_>) -> Result<()> {
    let pools: Many<Pool> = daemon.get("/api/v1/pools")?;
    for Pool { name, state, volumes, usage, .. } in &pools.items {
        // One that is not this host's has no volumes here, and is well.
        if usage.is_none() && volumes.is_empty() && state.health() == PoolHealth::Failed {
            let state = state_name(*state);
            tell(format_args!(
                "note: pool \"{name}\" is not open ({state}), and its volumes are not known; `forebay pool show \
                 {name}` says why"
            ));
        }
    }
    Ok(())
}

/// Runs the command.
pub(crate) fn run(command: Command, asking: &Asking) -> Result<()> {
    let daemon = asking.daemon()?;
    match command {
        Command::Create {
            name,
            ssds,
            dirty_copies,
            clean_copies,
            profile,
            ram,
            index_max,
            device_deadline,
            write_budget,
            accept_data_loss_on_ssd_failure,
            dry_run,
        } => {
            let ssds = ssds.iter().map(|path| absolute(path)).collect::<Result<_>>()?;
            let mut body = CreatePool {
                name,
                ssds,
                dirty_copies,
                clean_copies,
                profile,
                ram_bytes: ram.unwrap_or(0),
                index_bytes_max: index_max,
                device_deadline_ms: device_deadline,
                write_budget_bytes_per_day: 0,
                accept_data_loss_on_ssd_failure,
                dry_run,
            };
            understood(super::settings::check_ram(body.ram_bytes));
            if let Some(budget) = write_budget {
                understood(super::wear::parse(&budget, &|| Ok(ANY_CAPACITY)));
                body.write_budget_bytes_per_day = budget_of(&body, &budget, &daemon)?;
            }
            let plan: PoolPlan = daemon.post("/api/v1/pools", &body)?;
            daemon.print(&plan, print_plan);
        }
        Command::List => {
            let pools: Many<Pool> = daemon.get("/api/v1/pools")?;
            daemon.print(&pools, |pools| print_list(&pools.items));
            if pools.items.is_empty() {
                tell("next: `forebay pool create NAME --ssd PATH`, or `forebay pool import`");
            }
        }
        Command::Show { name } => {
            let pool: One<Pool> = daemon.get(&format!("/api/v1/pools/{name}"))?;
            daemon.print(&pool, |pool| print_pool(&pool.item));
        }
        Command::Set { name, settings, dry_run } => {
            let at = format!("/api/v1/pools/{name}");
            let capacity = || {
                let pool: One<Pool> = daemon.get(&at)?;
                let usage = pool.item.usage.ok_or_else(|| {
                    Failure::new(format!("pool \"{name}\" is not open, and its size not known"))
                        .hint("write the budget as bytes a day, as 200G")
                })?;
                Ok(usage.segments * usage.segment_bytes)
            };
            understood(super::settings::check(&settings));
            let body = super::settings::of_pool(&settings, &capacity)?;
            if dry_run {
                // Not as a `Change`, which leaves out what is fixed: the daemon says why that is so.
                let settings = serde_json::json!({ "pool": name, "settings": body });
                return daemon.plan(&serde_json::json!({ "set-pool": settings }));
            }
            let pool: One<Pool> = daemon.patch(&at, &body)?;
            daemon.print(&pool, |pool| print_pool(&pool.item));
        }
        Command::Device(command) => run_device(command, &daemon)?,
        Command::Import { pool: None, .. } => {
            let pools: Many<Pool> = daemon.get("/api/v1/import")?;
            daemon.print(&pools, |pools| print_list(&pools.items));
            if pools.items.is_empty() {
                tell(
                    "no other pool is where `devices.scan` looks; next: `forebay pool import NAME --ssd PATH`",
                );
            }
        }
        Command::Import { pool: Some(pool), ssds, accept_missing, take_over, yes, dry_run } => {
            let ssds = ssds.iter().map(|path| absolute(path)).collect::<Result<_>>()?;
            let confirm = accept_missing.then(|| pool.clone());
            let body = ImportPool { pool, ssds, accept_missing, confirm, take_over };
            if dry_run {
                return daemon.plan(&Change::ImportPool(body));
            }
            if accept_missing && !yes {
                consent::loss(&body, &daemon)?;
            }
            let pool: One<Pool> = daemon.post("/api/v1/import", &body)?;
            daemon.print(&pool, |pool| {
                print_pool(&pool.item);
                tell(format_args!("next: `{}`", after_import(&pool.item)));
            });
        }
        Command::Export { name, dry_run: true } => {
            return daemon.plan(&Change::ExportPool(name));
        }
        Command::Export { name, dry_run: false } => {
            let done: Done = daemon.post(&format!("/api/v1/pools/{name}/export"), &())?;
            let next = format!("`forebay pool import {name}` on the machine that has them then");
            finish_with(&daemon, &done, &next);
        }
        Command::Destroy { name, dry_run: true, .. } => {
            return daemon.plan(&Change::DestroyPool(name));
        }
        Command::Destroy { name, yes, dry_run: false } => consent::destroy(&name, yes, &daemon)?,
        Command::Bypass { name, dry_run: true, .. } => {
            return daemon.plan(&Change::BypassPool(name));
        }
        Command::Bypass { name, yes, dry_run: false } => consent::bypass(&name, yes, &daemon)?,
    }
    Ok(())
}

/// The write budget of a pool to be, in bytes a day; its size is known from a plan of it.
fn budget_of(body: &CreatePool, text: &str, daemon: &Daemon<'_>) -> Result<u64> {
    let capacity = || {
        let body = CreatePool { dry_run: true, ..body.clone() };
        let plan: PoolPlan = daemon.post("/api/v1/pools", &body)?;
        Ok(plan.capacity_bytes)
    };
    super::wear::parse(text, &capacity)
}

fn profile_parser() -> impl TypedValueParser<Value = Profile> {
    PossibleValuesParser::new(Profile::ALL.map(Profile::name))
        .try_map(|name| name.parse::<Profile>())
}

/// What was done, for people.
pub(super) fn finish(daemon: &Daemon<'_>, done: &Done) {
    daemon.print(done, |done| tell(&done.what));
}

/// The same, and the next step.
pub(super) fn finish_with(daemon: &Daemon<'_>, done: &Done, next: &str) {
    daemon.print(done, |done| {
        tell(&done.what);
        tell(format_args!("next: {next}"));
    });
}

/// The command that a pool which has come asks for: it has a volume, and all of its volumes are reached by clients.
fn after_import(pool: &Pool) -> String {
    match pool.volumes.iter().find(|volume| volume.exports.is_empty()) {
        Some(volume) => format!("forebay export add {}", volume.name),
        None if pool.volumes.is_empty() => {
            format!("forebay volume add {}/NAME --origin PATH", pool.name)
        }
        None => "forebay export list".to_owned(),
    }
}

fn print_plan(plan: &PoolPlan) {
    let head = if plan.done { "made" } else { "would be made" };
    say(format_args!("pool \"{}\" {head}:", plan.name));
    let rows: Vec<_> = plan
        .members
        .iter()
        .map(|member| {
            vec![
                member.path.display().to_string(),
                text::bytes(member.size_bytes),
                format!("{} segments of {}", member.segments, text::bytes(plan.segment_bytes)),
            ]
        })
        .collect();
    say(table(&["CACHE DEVICE", "SIZE", "LAYOUT"], &rows));
    let erased = if plan.done { "was" } else { "would be" };
    say(format_args!("What is on these devices {erased} erased; nothing known was found there."));
    let copies = (plan.dirty_copies, plan.clean_copies);
    say(format_args!("copies        {} of dirty data, {} of clean data", copies.0, copies.1));
    let (clean, dirty) = (text::bytes(plan.clean_bytes), text::bytes(plan.dirty_bytes));
    say(format_args!("capacity      {clean} of clean data, or {dirty} of dirty data"));
    let enough = match plan.sparse_cache_bytes < plan.capacity_bytes {
        true => format!(
            ", enough for {} in pieces of 4 KiB far from each other",
            text::bytes(plan.sparse_cache_bytes)
        ),
        false => String::new(),
    };
    let index = format!(
        "{} when full of pieces of 64 KiB, {} of 4 KiB; never more than {}{enough}",
        text::bytes(plan.index_bytes_usual),
        text::bytes(plan.index_bytes_dense),
        text::bytes(plan.index_bytes_max)
    );
    say(text::beside("index in RAM  ", &index));
    if plan.ram_bytes > 0 {
        say(format_args!(
            "RAM tier      {}, which takes {} of memory",
            text::bytes(plan.ram_bytes),
            text::bytes(plan.ram_memory_bytes)
        ));
    }
    let memory = format!(
        "up to {} with the rest of the pool; up to {} with all clients' requests",
        text::bytes(plan.promised_bytes()),
        text::bytes(plan.total_bytes_max)
    );
    say(text::beside("memory        ", &memory));
    if let Some(machine) = plan.machine_bytes {
        let machine = text::bytes(machine);
        let cache = text::bytes(plan.machine_cache_bytes);
        say(format_args!("memory        of this machine {machine}: enough for a cache of {cache}"));
    }
    if plan.write_budget_bytes_per_day > 0 {
        let day = text::bytes(plan.write_budget_bytes_per_day);
        say(format_args!("write budget  {day} a day"));
    }
    if plan.done {
        tell(format_args!("next: `forebay volume add {}/NAME --origin PATH`", plan.name));
    }
}

fn print_list(pools: &[Pool]) {
    let rows: Vec<_> = pools
        .iter()
        .map(|pool| {
            vec![
                pool.name.clone(),
                state_name(pool.state).to_owned(),
                pool.members.len().to_string(),
                // Of one that is not open nobody knows.
                match (&pool.usage, pool.volumes.len()) {
                    (None, 0) => "-".to_owned(),
                    (_, volumes) => volumes.to_string(),
                },
                pool.usage.as_ref().map_or("-".to_owned(), |u| text::bytes(u.dirty_bytes)),
                pool.id.clone(),
            ]
        })
        .collect();
    say(table(&["POOL", "STATE", "SSDS", "VOLUMES", "DIRTY", "ID"], &rows));
}

/// How many copies there are of what, and what they are to be.
fn copies_line(usage: &PoolUsage) -> String {
    let (dirty, next, clean) = (usage.dirty_copies, usage.dirty_copies_next, usage.clean_copies);
    match next {
        0 => format!("{dirty} of dirty data, {clean} of clean data"),
        _ => format!(
            "{dirty} of dirty data, {next} once what has fewer is destaged, {clean} of clean data"
        ),
    }
}

/// What the tier in RAM holds.
fn ram_line(usage: &PoolUsage) -> String {
    let share = 100.0 * usage.read_ram_hits as f64 / usage.read_requests.max(1) as f64;
    let ram = &usage.ram;
    format!(
        "{} of {} in use, {} of it on cache devices too; it served {share:.1} % of the reads",
        text::bytes(ram.used_bytes),
        text::bytes(ram.size_bytes),
        text::bytes(ram.overlap_bytes),
    )
}

/// What an SSD says of itself.
fn print_health(health: Option<&Health>) {
    let Some(health) = health else { return };
    let verdict = match health.verdict {
        HealthVerdict::Unknown => "health unknown",
        HealthVerdict::Good => "good",
        HealthVerdict::Warning => "warning",
        HealthVerdict::Failing => "failing",
    };
    say(text::beside("         ", &format!("{verdict}: {}", health.summary)));
}

/// A pool as `status` and `pool show` print it.
pub(super) fn print_pool(pool: &Pool) {
    fact("pool     ", format_args!("{}  ({})", pool.name, pool.id));
    let state = format!("{}: {}", state_name(pool.state), pool.summary);
    say(text::beside("state    ", &state));
    if !pool.action.is_empty() {
        say(text::beside("action   ", &pool.action));
    }
    if !pool.host.is_empty() {
        fact("host     ", &pool.host);
    }
    if let Some(usage) = &pool.usage {
        let used = usage.segments.saturating_sub(usage.segments_free) * usage.segment_bytes;
        fact(
            "cache    ",
            format_args!(
                "{} cached, {} dirty in {} {}; {} of {} in use",
                text::bytes(usage.cached_bytes),
                text::bytes(usage.dirty_bytes),
                usage.dirty_copies,
                if usage.dirty_copies == 1 { "copy" } else { "copies" },
                text::bytes(used),
                text::bytes(usage.segments * usage.segment_bytes),
            ),
        );
        if usage.lost_bytes > 0 {
            fact("lost     ", text::bytes(usage.lost_bytes));
        }
        if usage.dirty_bytes > 0 {
            fact("destage  ", super::volume::progress(&usage.destage, &usage.safe_when));
        }
        if usage.dirty_copies_next > 0 || usage.clean_copies > 1 {
            fact("copies   ", copies_line(usage));
        }
        super::activity::hits(usage).iter().for_each(say);
        super::activity::lines(&usage.activity).iter().for_each(say);
        if usage.ram.size_bytes > 0 {
            fact("ram      ", ram_line(usage));
        }
        if let Some(line) = super::scrub::line(&usage.scrub) {
            say(text::beside("scrub    ", &line));
        }
        if usage.verify == Verify::Reads {
            say("verify   what clients read is compared with its checksums");
        }
        if let Some(budget) = &usage.write_budget {
            say(text::beside("wear     ", &super::wear::line(budget)));
        }
        fact("reclaim  ", super::wear::reclaim(usage));
        fact(
            "answers  ",
            format_args!(
                "a cache device that takes longer than {} is left behind",
                text::millis(usage.device_deadline_ms)
            ),
        );
        if usage.requests_given_up > 0 {
            let count = text::thousands(usage.requests_given_up);
            let what = "requests, given up, that one has which does not answer";
            fact("         ", format_args!("{what}: {count}"));
        }
        fact(
            "index    ",
            format_args!(
                "{} of at most {}; policy {}",
                text::bytes(usage.index_bytes),
                text::bytes(usage.index_bytes_max),
                text::bytes(usage.policy_bytes)
            ),
        );
    }
    for member in &pool.members {
        let place = member.path.as_ref().map_or("-".to_owned(), |path| path.display().to_string());
        let state = match member.state {
            MemberState::Present => "present",
            MemberState::Flushing => "flushing",
            MemberState::Missing => "missing",
            MemberState::Lost => "lost",
        };
        let damaged = match member.damaged_blocks {
            0 => String::new(),
            blocks => format!("; has returned {blocks} damaged blocks"),
        };
        let slow = if member.slow { "; much slower than the others" } else { "" };
        let seen = if member.state.is_there() { "" } else { " (was there last)" };
        let displaced = match member.displaced.as_str() {
            "" => String::new(),
            how => format!("; {how}"),
        };
        let what = format!("{place}{seen}  {}{damaged}{slow}{displaced}", member.id);
        fact(&format!("ssd      {state:8} "), what);
        if member.unused_bytes > 0 {
            let unused = text::bytes(member.unused_bytes);
            let at = member.path.as_deref().map_or("-".to_owned(), typed);
            let grow = format!(
                "{unused} of it are not used: `forebay pool device grow {} {at}`",
                pool.name
            );
            say(text::beside("         ", &grow));
        }
        if !member.holes.is_empty() {
            say(text::beside("         ", &member.holes));
        }
        print_health(member.health.as_ref());
        if let Some(pull) = &member.pull {
            say(text::beside("         ", &in_short(pull)));
        }
    }
    for spare in &pool.spares {
        let state = match spare.state {
            SpareState::Ready => "ready",
            SpareState::Missing => "missing",
            SpareState::Failed => "failed",
        };
        let size = spare.size_bytes.map_or(spare.reason.clone(), text::bytes);
        let what = format!("{}  {}  {size}", spare.path.display(), spare.id);
        fact(&format!("spare    {state:8} "), what);
        print_health(spare.health.as_ref());
    }
    for volume in &pool.volumes {
        super::volume::print_line(volume);
    }
}
