//! What the oracle accepts and, above all, what it rejects.

use super::*;
use crate::content::fill;

/// One volume of four sectors of zeroes, or of a start value.
struct Bench(Oracle);

impl Bench {
    fn new(value: u64) -> Self {
        let mut oracle = Oracle::default();
        oracle.add_volume(4, value);
        Bench(oracle)
    }

    fn start(&mut self, stamp: u64) -> Access {
        self.0.change_start(0, 0..1, Change::Value(stamp))
    }

    fn end(&mut self, access: Access, stamp: u64) {
        self.0.change_end(access, Change::Value(stamp), true, false);
    }

    fn write(&mut self, stamp: u64) {
        let access = self.start(stamp);
        self.end(access, stamp);
    }

    fn fail(&mut self, stamp: u64) {
        let access = self.start(stamp);
        self.0.change_end(access, Change::Value(stamp), false, false);
    }

    fn fua(&mut self, stamp: u64) {
        let access = self.start(stamp);
        self.0.change_end(access, Change::Value(stamp), true, true);
    }

    fn trim(&mut self) {
        let access = self.0.change_start(0, 0..1, Change::Trim);
        self.0.change_end(access, Change::Trim, true, false);
    }

    fn flush(&mut self) {
        let access = self.0.flush_start(0, 0);
        self.0.flush_end(access, true);
    }

    fn ends(&mut self, read: Access, stamp: u64) -> bool {
        let mut bytes = [0; SECTOR];
        fill(stamp, 0, 0, &mut bytes);
        self.0.read_end(read, &bytes).is_ok()
    }

    fn reads(&mut self, stamp: u64) -> bool {
        let read = self.0.read_start(0, 0..1);
        self.ends(read, stamp)
    }

    /// The values that a read now could return, without drawing conclusions.
    fn allowed(&self) -> Vec<u64> {
        (0..10).filter(|&stamp| Bench(self.0.clone()).reads(stamp)).collect()
    }

    fn power_cut(&mut self) {
        self.0.crash(Crash::PowerCut);
    }

    fn kill(&mut self) {
        self.0.crash(Crash::ProcessKill);
    }
}

#[test]
fn a_read_returns_the_newest_completed_write() {
    let mut b = Bench::new(9);
    assert_eq!(b.allowed(), [9]);
    b.write(1);
    b.write(2);
    assert_eq!(b.allowed(), [2]);
}

#[test]
fn a_write_in_flight_may_be_seen_or_not_but_not_turned_back() {
    let mut b = Bench::new(0);
    b.write(1);
    let two = b.start(2);
    assert_eq!(b.allowed(), [1, 2]);
    assert!(b.reads(1) && b.reads(2));
    assert_eq!(b.allowed(), [2], "a later read may not go back");
    b.end(two, 2);
    assert_eq!(b.allowed(), [2]);
}

#[test]
fn concurrent_writes_end_in_either_order_until_a_read_decides() {
    let mut b = Bench::new(0);
    let (one, two) = (b.start(1), b.start(2));
    b.end(two, 2);
    b.end(one, 1);
    assert_eq!(b.allowed(), [1, 2]);
    assert!(b.reads(2));
    assert_eq!(b.allowed(), [2]);
}

#[test]
fn a_slow_read_may_return_any_value_of_its_time() {
    let mut b = Bench::new(0);
    b.write(1);
    let read = b.0.read_start(0, 0..1);
    b.write(2);
    b.flush();
    b.write(3);
    for stamp in [1, 2, 3] {
        let again = Access::new(0, 0..1, read.start);
        assert!(Bench(b.0.clone()).ends(again, stamp), "{stamp}");
    }
    assert!(!b.ends(read, 9));
    assert_eq!(b.allowed(), [3]);
}

#[test]
fn a_slow_read_may_not_return_what_was_superseded_before_it() {
    let mut b = Bench::new(0);
    b.write(1);
    b.write(2);
    let read = b.0.read_start(0, 0..1);
    b.write(3);
    assert!(!b.ends(read, 1));
}

#[test]
fn a_power_cut_brings_back_versions_since_the_last_flush() {
    let mut b = Bench::new(0);
    b.write(1);
    b.write(2);
    b.flush();
    b.write(3);
    b.write(4);
    let _ = b.start(5);
    b.power_cut();
    assert_eq!(b.allowed(), [2, 3, 4, 5]);
}

#[test]
fn a_killed_process_loses_no_acknowledged_write() {
    let mut b = Bench::new(0);
    b.write(1);
    b.write(2);
    let _ = b.start(3);
    b.kill();
    assert_eq!(b.allowed(), [2, 3]);
}

#[test]
fn power_lost_after_a_kill_still_loses_what_was_not_flushed() {
    let mut b = Bench::new(0);
    b.write(1);
    b.kill();
    b.power_cut();
    assert_eq!(b.allowed(), [0, 1]);
}

#[test]
fn a_flush_covers_only_what_had_ended_when_it_began() {
    let mut b = Bench::new(0);
    b.write(1);
    let two = b.start(2);
    let flush = b.0.flush_start(0, 0);
    b.end(two, 2);
    b.write(3);
    b.0.flush_end(flush, true);
    b.power_cut();
    assert_eq!(b.allowed(), [1, 2, 3]);
}

#[test]
fn a_failed_or_unfinished_flush_promises_nothing() {
    let mut b = Bench::new(0);
    b.write(1);
    let flush = b.0.flush_start(0, 0);
    b.0.flush_end(flush, false);
    let _ = b.0.flush_start(0, 0);
    b.power_cut();
    assert_eq!(b.allowed(), [0, 1]);
}

#[test]
fn an_fua_write_is_durable_by_itself() {
    let mut b = Bench::new(0);
    b.write(1);
    b.fua(2);
    b.power_cut();
    assert_eq!(b.allowed(), [2]);
}

#[test]
fn an_fua_write_does_not_decide_about_a_concurrent_one() {
    let mut b = Bench::new(0);
    let one = b.start(1);
    b.fua(2);
    b.end(one, 1);
    b.power_cut();
    assert_eq!(b.allowed(), [1, 2]);
}

#[test]
fn what_a_read_after_recovery_returned_stays_for_ever() {
    for value in [0, 1, 2] {
        let mut b = Bench::new(0);
        b.write(1);
        b.write(2);
        b.power_cut();
        assert!(b.reads(value));
        b.power_cut();
        assert_eq!(b.allowed(), [value]);
        b.write(3);
        b.power_cut();
        let mut both = vec![value, 3];
        both.sort_unstable();
        assert_eq!(b.allowed(), both);
    }
}

#[test]
fn what_a_read_after_a_kill_returned_survives_the_next_power_cut() {
    let mut b = Bench::new(0);
    b.write(1);
    b.kill();
    assert!(b.reads(1));
    b.power_cut();
    assert_eq!(b.allowed(), [1]);
}

#[test]
fn a_read_before_the_crash_makes_nothing_durable() {
    let mut b = Bench::new(0);
    b.write(1);
    assert!(b.reads(1));
    b.power_cut();
    assert_eq!(b.allowed(), [0, 1]);
}

#[test]
fn a_read_in_recovery_with_a_new_write_in_flight_keeps_the_new_one_possible() {
    let mut b = Bench::new(0);
    b.write(1);
    b.power_cut();
    let two = b.start(2);
    assert!(b.reads(0));
    assert_eq!(b.allowed(), [0, 2]);
    b.end(two, 2);
    b.power_cut();
    assert_eq!(b.allowed(), [0, 2]);
}

#[test]
fn a_failed_write_is_old_or_new_until_it_is_read_or_overwritten() {
    let mut b = Bench::new(0);
    b.write(1);
    b.fail(2);
    assert_eq!(b.allowed(), [1, 2]);
    b.kill();
    assert_eq!(b.allowed(), [1, 2]);
    let mut overwritten = Bench(b.0.clone());
    overwritten.write(3);
    assert_eq!(overwritten.allowed(), [3]);
    assert!(b.reads(1));
    assert_eq!(b.allowed(), [1]);
}

#[test]
fn a_trimmed_sector_is_old_or_zero_and_then_stable() {
    let mut b = Bench::new(9);
    b.trim();
    assert_eq!(b.allowed(), [0, 9]);
    assert!(b.reads(0));
    assert_eq!(b.allowed(), [0]);
    b.write(1);
    assert_eq!(b.allowed(), [1]);
}

#[test]
fn zeroed_is_zero() {
    let mut b = Bench::new(9);
    b.write(0);
    assert_eq!(b.allowed(), [0]);
    b.power_cut();
    assert_eq!(b.allowed(), [0, 9]);
}

#[test]
fn equal_values_of_different_writes_are_not_confused() {
    // Zero from long ago and zero from a trim: reading zero must not exclude either.
    let mut b = Bench::new(0);
    b.write(1);
    b.trim();
    b.flush();
    assert_eq!(b.allowed(), [0, 1]);
    b.power_cut();
    assert_eq!(b.allowed(), [0, 1]);
}

#[test]
fn a_clean_stop_makes_everything_durable() {
    let mut b = Bench::new(0);
    b.write(1);
    b.0.all_durable();
    b.power_cut();
    assert_eq!(b.allowed(), [1]);
}

#[test]
fn garbage_and_misplaced_sectors_are_rejected() {
    let mut b = Bench::new(0);
    b.write(1);
    let read = b.0.read_start(0, 0..1);
    let mut bytes = [0; SECTOR];
    fill(1, 0, 1, &mut bytes);
    let violation = b.0.read_end(read, &bytes).unwrap_err();
    assert_eq!(violation.found, Found::Misplaced(1, 0, 1));
    let read = b.0.read_start(0, 0..1);
    assert_eq!(b.0.read_end(read, &[5; SECTOR]).unwrap_err().found, Found::Garbage);
}

#[test]
fn an_image_is_checked_sector_by_sector() {
    let mut b = Bench::new(0);
    b.write(1);
    let mut image = vec![0; 4 * SECTOR];
    let violation = b.0.check_image(0, &image).unwrap_err();
    assert!(violation.stale && violation.sector == 0);
    fill(1, 0, 0, &mut image[..SECTOR]);
    assert_eq!(b.0.check_image(0, &image), Ok(()));
}

impl Bench {
    /// A write whose origin is given its data, and which has not ended.
    fn start_direct(&mut self, stamp: u64) -> Access {
        let access = self.start(stamp);
        let mut bytes = [0; SECTOR];
        fill(stamp, 0, 0, &mut bytes);
        self.0.origin_written(0, 0..1, Some(&bytes));
        access
    }

    /// A write that the origin is given before it is acknowledged.
    fn direct(&mut self, stamp: u64) {
        let access = self.start_direct(stamp);
        self.end(access, stamp);
    }

    fn lose(&mut self) {
        self.0.origin_flush_failed(0);
    }

    /// A flush of a session; it fails.
    fn tell(&mut self, session: usize) {
        let access = self.0.flush_start(0, session);
        self.0.flush_end(access, false);
    }

    fn flush_of(&mut self, session: usize) {
        let access = self.0.flush_start(0, session);
        self.0.flush_end(access, true);
    }

    fn after_a_power_cut(&self) -> Vec<u64> {
        let mut b = Bench(self.0.clone());
        b.power_cut();
        b.allowed()
    }
}

#[test]
fn what_a_failed_flush_lost_of_a_direct_write_no_later_flush_brings_back() {
    let mut b = Bench::new(0);
    b.direct(1);
    b.lose();
    b.tell(0);
    b.flush();
    assert!(b.reads(1), "until the power goes");
    assert_eq!(b.allowed(), [1]);
    b.flush();
    assert_eq!(b.after_a_power_cut(), [0, 1]);
    b.power_cut();
    assert!(b.reads(0));
    b.flush();
    assert_eq!(b.after_a_power_cut(), [0], "what is there now decides");
}

#[test]
fn who_was_not_told_of_the_failed_flush_may_rely_on_the_next() {
    let mut b = Bench::new(0);
    b.direct(1);
    b.lose();
    b.tell(0);
    b.flush_of(1);
    assert_eq!(b.after_a_power_cut(), [1]);
}

#[test]
fn a_flush_that_began_before_its_client_was_told_may_be_relied_on() {
    let mut b = Bench::new(0);
    b.direct(1);
    let flush = b.0.flush_start(0, 0);
    b.lose();
    b.tell(0);
    b.0.flush_end(flush, true);
    assert_eq!(b.after_a_power_cut(), [1]);
}

#[test]
fn a_failed_flush_takes_nothing_of_what_is_logged() {
    let mut b = Bench::new(0);
    b.direct(1);
    b.write(2);
    b.lose();
    b.tell(0);
    b.flush();
    assert_eq!(b.after_a_power_cut(), [2]);
}

#[test]
fn what_is_written_after_a_failed_flush_is_safe_again() {
    for direct in [false, true] {
        let mut b = Bench::new(0);
        b.direct(1);
        b.lose();
        b.tell(0);
        if direct {
            b.direct(2)
        } else {
            b.write(2)
        }
        b.flush();
        assert_eq!(b.after_a_power_cut(), [2], "direct: {direct}");
    }
}

#[test]
fn what_a_good_flush_had_covered_a_failed_one_does_not_lose() {
    let mut b = Bench::new(0);
    b.direct(1);
    b.flush();
    b.direct(2);
    b.lose();
    b.tell(0);
    b.flush();
    assert_eq!(b.after_a_power_cut(), [1, 2]);
}

#[test]
fn a_durable_write_is_in_no_doubt() {
    let mut b = Bench::new(0);
    b.direct(1);
    b.lose();
    b.fua(2);
    assert_eq!(b.after_a_power_cut(), [2]);
}

#[test]
fn a_loss_that_nobody_is_left_to_know_of_is_either_value_until_it_is_written() {
    let mut b = Bench::new(0);
    b.direct(1);
    b.lose();
    b.tell(0);
    b.kill();
    assert_eq!(b.allowed(), [1], "the device has not forgotten it yet");
    b.flush();
    b.power_cut();
    for value in [1, 0, 1] {
        assert!(b.reads(value));
    }
    b.write(2);
    b.flush();
    assert_eq!(b.after_a_power_cut(), [2]);
}

#[test]
fn a_write_on_its_way_at_the_failure_is_told_of_only_after_its_end() {
    for told_late in [false, true] {
        let mut b = Bench::new(0);
        let one = b.start(1);
        let mut bytes = [0; SECTOR];
        fill(1, 0, 0, &mut bytes);
        b.0.origin_written(0, 0..1, Some(&bytes));
        b.lose();
        b.tell(0);
        b.end(one, 1);
        if told_late {
            b.tell(0);
        }
        b.flush();
        let expected: &[u64] = if told_late { &[0, 1] } else { &[1] };
        assert_eq!(b.after_a_power_cut(), expected);
    }
}

#[test]
fn a_read_does_not_decide_between_a_value_in_doubt_and_a_write_on_its_way() {
    let mut b = Bench::new(0);
    let one = b.start_direct(1);
    b.direct(2);
    b.lose();
    assert!(b.reads(2));
    assert_eq!(b.allowed(), [1, 2], "the older write may still be the last");
    b.end(one, 1);
    assert!(b.reads(1));
    assert_eq!(b.allowed(), [1]);
}

#[test]
fn of_concurrent_direct_writes_a_failed_flush_may_lose_either() {
    for last in [1, 2] {
        let mut b = Bench::new(0);
        let (one, two) = (b.start_direct(1), b.start_direct(2));
        b.end(one, 1);
        b.end(two, 2);
        assert!(b.reads(last));
        b.lose();
        b.tell(0);
        b.flush();
        assert_eq!(b.allowed(), [last]);
        assert_eq!(b.after_a_power_cut(), [0, 1, 2], "last: {last}");
    }
}

#[test]
fn an_image_decides_like_a_read() {
    let mut b = Bench::new(0);
    b.direct(1);
    b.lose();
    b.power_cut();
    assert_eq!(b.0.check_image(0, &[0; 4 * SECTOR]), Ok(()));
    assert_eq!(b.allowed(), [0], "the cache has to agree with the origin");
}
