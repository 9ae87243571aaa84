//! The row of overwriting on a real file: the same code on a real clock and a real disk.

use std::path::Path;
use std::rc::Rc;

use forebay_device::model::thrifty::ThriftyStore;
use forebay_device::real::file::FileDevice;
use forebay_device::real::open::OpenOptions;
use forebay_device::real::reactor::Reactor;
use forebay_device::{BlockDevice, Runtime};
use forebay_engine as engine;
use forebay_engine::{CreateOptions, MemoryWitness, Pool, Tuning, Volume};
use serde_json::json;

use super::measure::Raw as _;
use super::overwrite::{Figures, LAPS, WRITERS, half_figures, random_writes};
use crate::bench::{Bench, Result};
use crate::engine::{reactor, text, volume_spec, write_file};
use forebay_lab::scene::load::{Load, Target, filling};

async fn open(reactor: &Rc<Reactor>, path: &Path, set_bytes: u64) -> Result<(Pool, Rc<Volume>)> {
    let runtime = Rc::clone(reactor) as Rc<dyn Runtime>;
    let device = FileDevice::open(reactor, path, &OpenOptions::default()).map_err(text)?;
    let devices: Vec<Rc<dyn BlockDevice>> = vec![Rc::new(device)];
    let witness = Rc::new(MemoryWitness::default());
    let options = CreateOptions::named("bench");
    engine::create(&*runtime, &devices, &*witness, &options).await.map_err(text)?;
    let pool = engine::open(runtime, devices, witness, Tuning::default()).await.map_err(text)?;
    let origin = Rc::new(ThriftyStore::new(set_bytes, 512));
    let volume = pool.add_volume(&volume_spec(), origin).await.map_err(text)?;
    Ok((pool, Rc::new(volume)))
}

/// As the row `overwrite`, with a pool of 2 GiB in a file that was written in full and an origin in
/// memory: what is left of the figures there is the engine's and the SSD's doing. One run, on
/// whatever else the machine does: beside other load it says little.
///
/// Costs 20 GiB of writes to the disk, one to two minutes, and 50 MiB of memory.
pub(super) fn half(bench: &mut Bench) -> Result<Figures> {
    let pool_bytes: u64 = if bench.options.quick { 512 << 20 } else { 2 << 30 };
    let path = bench.options.dir.join("smooth.bin");
    // A file of an aborted run is worth nothing.
    let _ = std::fs::remove_file(&path);
    let result = measure(bench, &path, pool_bytes);
    let _ = std::fs::remove_file(&path);
    result
}

fn measure(bench: &mut Bench, path: &Path, pool_bytes: u64) -> Result<Figures> {
    write_file(path, pool_bytes)?;
    let set_bytes = pool_bytes / 2;
    let reactor = reactor()?;
    let runtime = Rc::clone(&reactor) as Rc<dyn Runtime>;
    let result = reactor.block_on(async {
        let (pool, volume) = open(&reactor, path, set_bytes).await?;
        let ssd_bytes = || -> u64 {
            let list = pool.counters().list();
            list.iter().filter(|(name, _)| name.starts_with("ssd_")).map(|(_, bytes)| bytes).sum()
        };
        let target = Target::Volume(volume);
        Load::start(&runtime, target.clone(), 4, filling(set_bytes, 1 << 20)).end().await?;
        let before = ssd_bytes();
        let writes = random_writes(LAPS * pool_bytes, set_bytes);
        let seen = Load::start(&runtime, target, WRITERS, writes).end().await?;
        Ok::<_, String>((seen, ssd_bytes() - before, pool.counters().list()))
    });
    reactor.close();
    let (seen, ssd_bytes, counters) = result?;
    bench.keep(&json!({
        "row": "files", "seen": seen.to_json(), "ssd_bytes": ssd_bytes, "counters": counters,
    }))?;
    half_figures(&seen, ssd_bytes)
}
