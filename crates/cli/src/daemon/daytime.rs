//! The time of day, which pools are told: the engine has no clock on the wall.
//!
//! It is the local time of this machine: `TZ` if the daemon has it, else /etc/localtime. When clocks
//! are put forward or back, hours are what the clock on the wall shows.

use std::rc::Rc;

use forebay_device::Runtime;
use forebay_device::runtime::{Nanos, SECOND};
use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::{Daemon, Open};

/// How often pools are told: hours are given to the minute.
const TELL_INTERVAL: Nanos = SECOND;

/// The minute of the day there at a time, in seconds since 1970.
fn minute_of_day(unix_s: u64, zone: TimeZone) -> u16 {
    let seconds = i64::try_from(unix_s).unwrap_or(i64::MAX);
    let time = Timestamp::from_second(seconds).unwrap_or(Timestamp::UNIX_EPOCH).to_zoned(zone);
    (i16::from(time.hour()) * 60 + i16::from(time.minute())).unsigned_abs()
}

impl Daemon {
    /// Tells a pool what time it is.
    pub(super) fn tell_time(&self, open: &Open) {
        open.pool.tell_time(minute_of_day(self.reactor.unix_seconds(), TimeZone::system()));
    }

    /// Tells all pools until the reactor is closed; whatever else is under way.
    pub(super) async fn keep_time(self: Rc<Self>) {
        while self.runtime().sleep(TELL_INTERVAL).await.result.is_ok() {
            let open: Vec<_> =
                self.slots.borrow().values().filter_map(|slot| slot.open()).collect();
            open.iter().for_each(|open| self.tell_time(open));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_minute_of_the_day_is_that_of_the_place() {
        let zone = |rule: &str| TimeZone::posix(rule).unwrap();
        assert_eq!(minute_of_day(0, TimeZone::UTC), 0);
        assert_eq!(minute_of_day(86_399, TimeZone::UTC), 23 * 60 + 59);
        assert_eq!(minute_of_day(0, zone("<+0545>-5:45")), 5 * 60 + 45);
        assert_eq!(minute_of_day(0, zone("EST5")), 19 * 60);
        // Clocks were put forward in Berlin on 2026-03-29 at 1:00 UTC.
        let berlin = || zone("CET-1CEST,M3.5.0,M10.5.0/3");
        let forward = 1_774_746_000;
        assert_eq!(minute_of_day(forward - 60, berlin()), 60 + 59);
        assert_eq!(minute_of_day(forward, berlin()), 3 * 60);
        minute_of_day(u64::MAX, berlin());
    }
}
