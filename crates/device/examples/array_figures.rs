//! Compares modelled arrays with published measurements and prints the residuals.
//!
//! Run with `cargo run -p forebay-device --example array_figures`.

use forebay_device::model::array::{ArrayModel, ArrayParameters, Level};
use forebay_device::model::hdd::{HddModel, HddParameters};
use forebay_device::model::modelled::{Command, Figures, Model, Operation, closed_loop};

/// Random 4 KiB commands over `span_bytes`, from a fixed seed.
fn random(
    model: &mut dyn Measured,
    depth: usize,
    span_bytes: u64,
    operation: Operation,
) -> Figures {
    let mut state = 1u64;
    model.measure(depth, &mut || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        Command { operation, offset: (state >> 16) % (span_bytes / 4096) * 4096, len: 4096 }
    })
}

trait Measured {
    fn measure(&mut self, depth: usize, next: &mut dyn FnMut() -> Command) -> Figures;
}

impl<M: Model> Measured for M {
    fn measure(&mut self, depth: usize, next: &mut dyn FnMut() -> Command) -> Figures {
        closed_loop(self, depth, 40_000, next)
    }
}

fn array(level: Level, disks: usize, member: HddParameters) -> ArrayModel {
    ArrayModel::new(ArrayParameters { level, disks, chunk_bytes: 64 << 10, member }, 1)
}

fn main() {
    for parameters in [HddParameters::st500nm0001(), HddParameters::st6000ne0023()] {
        for depth in [1, 4, 32] {
            let size = parameters.size_bytes;
            let mut model = HddModel::new(parameters.clone(), 0);
            let read = random(&mut model, depth, size, Operation::Read);
            let mut model = HddModel::new(parameters.clone(), 0);
            let write = random(&mut model, depth, size, Operation::Write);
            let mut model = HddModel::new(parameters.clone().without_write_cache(), 0);
            let through = random(&mut model, depth, size, Operation::Write);
            println!(
                "{} depth {depth}: {:.0} read, {:.0} cached write, {:.0} write-through IOPS",
                parameters.name, read.iops, write.iops, through.iops
            );
        }
    }
    let es = HddParameters::st500nm0001;
    let pro = HddParameters::st6000ne0023;
    let plain = HddParameters::without_write_cache;
    // QSAN, SSD Cache 2.0 white paper, tables 9 and 10: volumes of 90 and 60 GB in the pool, two
    // hosts. Synology's SSD cache white paper, tests A and B, does not state span and
    // depth: its 100 GB are a guess. Nobody states chunk sizes or controller caches.
    let rows = [
        ("QSAN 16 x ST500NM0001 read", 16, es(), 90, Operation::Read, 4512.0),
        ("QSAN write, member caches on", 16, es(), 60, Operation::Write, 1660.0),
        ("QSAN write, member caches off", 16, plain(es()), 60, Operation::Write, 1660.0),
        ("Synology 12 x ST6000NE0023 read", 12, pro(), 100, Operation::Read, 6581.0),
        ("Synology 10 x ST6000NE0023 read", 10, pro(), 100, Operation::Read, 4594.0),
        ("Synology 12 x write, caches on", 12, pro(), 100, Operation::Write, 6284.0),
        ("Synology 10 x write, caches on", 10, pro(), 100, Operation::Write, 2267.0),
    ];
    for (name, disks, member, span_gb, operation, published) in rows {
        for depth in [64, 128, 256] {
            let mut model = array(Level::Raid5, disks, member.clone());
            let figures = random(&mut model, depth, span_gb * 1_000_000_000, operation);
            println!(
                "{name}, {span_gb} GB, depth {depth}: {:.0} modelled, {published:.0} published, \
                 {:+.0} %",
                figures.iops,
                (figures.iops / published - 1.0) * 100.0
            );
        }
    }
}
