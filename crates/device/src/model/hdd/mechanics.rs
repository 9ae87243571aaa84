//! Where bytes are on a platter, and how long it takes to get there.

use super::parameters::{HddParameters, SeekTimes};
use crate::runtime::{Nanos, SECOND};

/// Recording zones modelled per surface. Real disks have 15 to 30; the figure does not matter
/// beyond "many".
const ZONES: u64 = 24;

/// Arriving this little behind an angle counts as arriving on it: it is rounding, not rotation.
const ANGLE_SLACK_NS: Nanos = 1_000;

/// A run of cylinders with tracks of one length.
#[derive(Clone, Copy, Debug)]
pub(super) struct Zone {
    pub(super) start: u64,
    pub(super) first_cylinder: u64,
    pub(super) track_bytes: u64,
}

/// Where a byte is.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Place {
    pub(super) cylinder: u64,
    /// Track number over all surfaces; equal tracks need no seek.
    pub(super) track: u64,
    /// Time that the platter turns from its index mark to the byte.
    pub(super) angle_ns: Nanos,
    pub(super) track_bytes: u64,
}

/// Maps bytes to places and distances to times.
#[derive(Debug)]
pub(super) struct Mechanics {
    pub(super) zones: Vec<Zone>,
    heads: u64,
    pub(super) revolution_ns: Nanos,
    read: Curve,
    write: Curve,
    pub(super) margin_ns: Nanos,
}

/// Seek time over distance: a root while the arm speeds up and brakes, then a line while it coasts.
#[derive(Debug)]
struct Curve {
    track: f64,
    slope_root: f64,
    average: f64,
    slope_linear: f64,
    /// Cylinders where the root ends: a third of them, the mean distance of random seeks.
    third: f64,
}

impl Curve {
    fn new(seek: &SeekTimes, cylinders: f64) -> Self {
        let third = (cylinders / 3.0).max(2.0);
        Self {
            track: seek.track_ns as f64,
            slope_root: (seek.average_ns - seek.track_ns) as f64 / (third - 1.0).sqrt(),
            average: seek.average_ns as f64,
            slope_linear: (seek.full_ns - seek.average_ns) as f64 / (cylinders - third),
            third,
        }
    }

    /// Time over `distance` cylinders; 1 is also another head of the same cylinder.
    fn time(&self, distance: f64) -> Nanos {
        let time = if distance <= self.third {
            self.track + self.slope_root * (distance - 1.0).sqrt()
        } else {
            self.average + self.slope_linear * (distance - self.third)
        };
        time as Nanos
    }
}

impl Mechanics {
    pub(super) fn new(p: &HddParameters) -> Self {
        let revolution_ns = p.revolution_ns();
        let track_bytes = |rate: u64| rate * revolution_ns / SECOND;
        let mean_track = track_bytes((p.rate_outer_bytes_per_s + p.rate_inner_bytes_per_s) / 2);
        let heads = u64::from(p.heads);
        // One more per zone than the mean says: rounding must not leave bytes without a place.
        let zone_cylinders = p.size_bytes / (mean_track * heads) / ZONES + 1;
        let mut zones = Vec::with_capacity(ZONES as usize);
        let mut start = 0;
        for zone in 0..ZONES {
            let fall = p.rate_outer_bytes_per_s - p.rate_inner_bytes_per_s;
            let rate = p.rate_outer_bytes_per_s - fall * zone / (ZONES - 1);
            let track_bytes = track_bytes(rate);
            zones.push(Zone { start, first_cylinder: zone * zone_cylinders, track_bytes });
            start += zone_cylinders * heads * track_bytes;
        }
        let cylinders = (zone_cylinders * ZONES) as f64;
        Self {
            zones,
            heads,
            revolution_ns,
            read: Curve::new(&p.read_seek, cylinders),
            write: Curve::new(&p.write_seek, cylinders),
            margin_ns: p.margin_ns,
        }
    }

    pub(super) fn zone(&self, offset: u64) -> (usize, &Zone) {
        let index = self.zones.partition_point(|zone| zone.start <= offset).saturating_sub(1);
        (index, &self.zones[index])
    }

    pub(super) fn place(&self, offset: u64) -> Place {
        let (index, zone) = self.zone(offset);
        let within = offset - zone.start;
        let track = within / zone.track_bytes;
        Place {
            cylinder: zone.first_cylinder + track / self.heads,
            track: (index as u64) << 48 | track,
            angle_ns: within % zone.track_bytes * self.revolution_ns / zone.track_bytes,
            track_bytes: zone.track_bytes,
        }
    }

    pub(super) fn transfer_ns(&self, track_bytes: u64, len: u64) -> Nanos {
        (u128::from(len) * u128::from(self.revolution_ns) / u128::from(track_bytes)) as Nanos
    }

    pub(super) fn seek_ns(&self, from: &Place, to: &Place, write: bool) -> Nanos {
        if from.track == to.track {
            return 0;
        }
        let distance = from.cylinder.abs_diff(to.cylinder).max(1) as f64;
        if write { self.write.time(distance) } else { self.read.time(distance) }
    }

    /// Time from `time` until the platter has turned to `angle_ns`.
    pub(super) fn rotation_ns(&self, time: Nanos, angle_ns: Nanos) -> Nanos {
        let turn = self.revolution_ns;
        let wait = (angle_ns + turn - time % turn) % turn;
        if wait + ANGLE_SLACK_NS >= turn { 0 } else { wait }
    }
}
