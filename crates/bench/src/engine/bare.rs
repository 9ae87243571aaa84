//! The device alone, through our reactor: appends, each followed by a flush, in a closed loop. What
//! an engine that shares one append and one flush among all of its writers can reach at the most.

use std::cell::Cell;
use std::path::PathBuf;
use std::rc::Rc;

use clap::Args;
use forebay_device::real::file::FileDevice;
use forebay_device::real::open::OpenOptions;
use forebay_device::runtime::MILLISECOND;
use forebay_device::{BlockDevice, Buf, Runtime, io};

use super::rig::{reactor, text, write_file};
use crate::bench::Result;

/// A loop on a written file.
#[derive(Args, Clone, Debug)]
pub struct AppendOptions {
    /// KiB of one append.
    #[arg(long, default_value_t = 68)]
    append_kib: u64,
    /// Loops side by side.
    #[arg(long, default_value_t = 1)]
    loops: u64,
    /// Without flushes.
    #[arg(long)]
    volatile: bool,
    /// Milliseconds.
    #[arg(long, default_value_t = 2_000)]
    span_ms: u64,
    /// Where the file is made; it is removed at the end.
    #[arg(long, default_value = "/var/tmp/forebay-bench")]
    dir: PathBuf,
}

const FILE_BYTES: u64 = 1 << 30;

/// What the loops share.
struct Shared {
    device: Rc<dyn BlockDevice>,
    stop: Cell<bool>,
    appends: Cell<u64>,
    next: Cell<u64>,
    write_ns: Cell<u64>,
    flush_ns: Cell<u64>,
}

async fn appends(runtime: Rc<dyn Runtime>, shared: Rc<Shared>, options: AppendOptions) {
    let bytes = options.append_kib << 10;
    let data = Buf::zeroed(bytes as usize).freeze();
    while !shared.stop.get() {
        let at = shared.next.get();
        let next = at + bytes;
        shared.next.set(if next + bytes > FILE_BYTES { 0 } else { next });
        let started = runtime.now();
        let written = shared.device.write(at, data.clone()).done().await;
        let between = runtime.now();
        let flushed = if options.volatile { Ok(()) } else { shared.device.flush().done().await };
        if written.and(flushed).is_err() {
            return;
        }
        shared.write_ns.set(shared.write_ns.get() + between - started);
        shared.flush_ns.set(shared.flush_ns.get() + runtime.now() - between);
        shared.appends.set(shared.appends.get() + 1);
    }
}

/// The hidden subcommand: prints appends per second and how long their halves took.
///
/// # Errors
/// If the file cannot be made or opened.
pub fn append_loop(options: &AppendOptions) -> Result<()> {
    std::fs::create_dir_all(&options.dir).map_err(text)?;
    let path = options.dir.join("append.bin");
    write_file(&path, FILE_BYTES)?;
    let reactor = reactor()?;
    let runtime: Rc<dyn Runtime> = Rc::clone(&reactor) as Rc<dyn Runtime>;
    let device = FileDevice::open(&reactor, &path, &OpenOptions::default()).map_err(text)?;
    let shared = Rc::new(Shared {
        device: Rc::new(device),
        stop: Cell::new(false),
        appends: Cell::new(0),
        next: Cell::new(0),
        write_ns: Cell::new(0),
        flush_ns: Cell::new(0),
    });
    reactor.block_on(async {
        let mut ends = Vec::new();
        for _ in 0..options.loops {
            let (completer, end) = io::pair();
            let work = appends(Rc::clone(&runtime), Rc::clone(&shared), options.clone());
            runtime.spawn(Box::pin(async move {
                work.await;
                completer.done(Ok(()));
            }));
            ends.push(end);
        }
        let _ = runtime.sleep(options.span_ms * MILLISECOND).await;
        shared.stop.set(true);
        for end in ends {
            let _ = end.await;
        }
    });
    reactor.close();
    let count = shared.appends.get().max(1) as f64;
    println!(
        "{:.0} appends/s of {} KiB, {:.0} us to write, {:.0} us to flush",
        count * 1e3 / options.span_ms as f64,
        options.append_kib,
        shared.write_ns.get() as f64 / count / 1e3,
        shared.flush_ns.get() as f64 / count / 1e3,
    );
    let _ = std::fs::remove_file(&path);
    Ok(())
}
