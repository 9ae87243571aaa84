//! What a hit of another reactor costs the reactor of the pool.

use std::rc::Rc;

use forebay_device::real::reactor::{Config, Reactor};
use forebay_device::real::thread::ReactorThread;
use forebay_device::relay::relay;
use forebay_device::{BlockDevice, Buf, Runtime, io};
use forebay_engine::{Client, Port};
use serde_json::json;

use super::cpu::{Warm, cpu_ns, on_warm_pool};
use super::devices::ZeroCost;
use super::load::Random;
use super::rig::text;
use crate::bench::{Bench, Result};
use crate::verdict::{Bar, Row};

/// Requests that the other reactor keeps under way: enough that the pool's rarely sleeps.
const CLIENTS: u64 = 64;
const VOLUME_BYTES: u64 = 512 << 20;
const BLOCK_BYTES: u64 = 4096;

/// Reads `count` random blocks on this reactor, all of them by itself.
async fn read(reactor: Rc<Reactor>, port: Port, cache_bytes: u64, count: u64) -> Result<()> {
    let device = Rc::new(ZeroCost::new(cache_bytes));
    device.instant.set(true);
    let volume = Rc::new(port.open(Rc::clone(&reactor) as _, vec![device as Rc<dyn BlockDevice>]));
    let error = Rc::new(std::cell::RefCell::new(None));
    let mut ends = Vec::new();
    for number in 0..CLIENTS {
        let (completer, end) = io::pair();
        ends.push(end);
        let (volume, error) = (Rc::clone(&volume), Rc::clone(&error));
        reactor.spawn(Box::pin(async move {
            if let Err(what) = read_blocks(&volume, number, count / CLIENTS).await {
                *error.borrow_mut() = Some(what);
            }
            completer.done(Ok(()));
        }));
    }
    for end in ends {
        end.done().await.map_err(text)?;
    }
    error.take().map_or(Ok(()), Err)
}

async fn read_blocks(volume: &Client, seed: u64, count: u64) -> Result<()> {
    let mut random = Random(seed);
    let mut buf = Buf::zeroed(BLOCK_BYTES as usize);
    for _ in 0..count {
        let at = random.below(VOLUME_BYTES / BLOCK_BYTES) * BLOCK_BYTES;
        let outcome;
        (buf, outcome) = volume.read(at, buf).await;
        outcome.map_err(text)?;
    }
    Ok(())
}

/// Nanoseconds of the pool's thread for each of `count` hits of another one.
fn cpu_per_hit(count: u64) -> Result<f64> {
    let mut spent = 0;
    on_warm_pool(VOLUME_BYTES, 0, count, async |warm: &Warm| {
        let (port, cache_bytes) = (warm.volume.share(), warm.device.geometry().size_bytes);
        let (teller, results) = relay(1);
        let started = cpu_ns()?;
        let body = move |reactor| async move {
            let result = read(reactor, port, cache_bytes, count).await;
            let _ = teller.call(result).await;
        };
        let thread = ReactorThread::start("client", Config::default(), body).map_err(text)?;
        let result = match results.next().await {
            Some((result, told)) => {
                told.send(());
                result
            }
            None => Err("the client's thread has ended".to_owned()),
        };
        spent = cpu_ns()? - started;
        thread.join().map_err(|_| "the client's thread has panicked".to_owned())?;
        result
    })?;
    Ok(spent as f64 / count as f64)
}

/// CPU of the pool's reactor for each hit that another reactor reads by itself.
pub(super) fn run(bench: &mut Bench) -> Result<()> {
    const WHAT: &str = "CPU of the pool's reactor per 4K hit of another one";
    let bar = Bar::AtMost(1.5);
    let count = CLIENTS * if bench.options.quick { 3_000 } else { 15_000 };
    let mut values = Vec::new();
    for round in 0..bench.options.rounds.max(1) {
        match cpu_per_hit(count) {
            Ok(ns) => {
                bench.keep(&json!({ "row": "remote", "round": round, "pool_ns": ns }))?;
                values.push(ns / 1_000.0);
            }
            Err(error) => return bench.finish(Row::failed("remote", WHAT, bar, &error)),
        }
    }
    bench.finish(Row::judged("remote", WHAT, &values, bar, " us", bench.options.quick))
}
