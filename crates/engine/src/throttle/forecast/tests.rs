use super::*;

const MIB: u64 = 1 << 20;

fn outlook(free: u64, owed: &[(usize, u64)]) -> Outlook {
    let mut levels = [0; OWED_LEVELS];
    owed.iter().for_each(|&(level, count)| levels[level] = count);
    Outlook {
        total: 1000,
        awaiting_flush: 0,
        live: 900.0,
        free,
        rewritten_blocks: 0,
        owed: levels,
        unpackable: owed.iter().map(|&(_, count)| count as f64).sum(),
    }
}

#[test]
fn sets_that_can_be_packed_leave_writers_alone_for_longer() {
    let limit = |unpackable| {
        let outlook =
            Outlook { live: 150.0, unpackable, ..outlook(300, &[(OWED_LEVELS - 1, 600)]) };
        Forecast::new().limit(&outlook, 60, MIB as f64)
    };
    assert!(limit(600.0) < ALLOWANCE_MAX);
    assert_eq!(limit(455.0), ALLOWANCE_MAX);
    let nothing = Outlook { total: 0, ..outlook(0, &[]) };
    assert_eq!(Forecast::new().limit(&nothing, 60, MIB as f64), ALLOWANCE_MAX);
}

#[test]
fn what_can_be_sustained_fits_the_room_until_the_elevator_comes_round() {
    let forecast = Forecast::new();
    let full = OWED_LEVELS - 1;
    let rate = |outlook: &Outlook| forecast.sustained(outlook, OWED_FEW) / DRAIN_GUESS;
    // Half of the pool is full of owed data: nearly all of it must be destaged first.
    let half = rate(&outlook(400, &[(full, 500)]));
    assert!((half - PACKED * 400.0 / (0.96 * 500.0)).abs() < 0.01, "{half}");
    assert!(rate(&outlook(100, &[(full, 800)])) < 0.2);
    // The same sets, some of which are nearly done.
    let mixed: Vec<_> = (1..=full).map(|level| (level, 25)).collect();
    let steady = rate(&outlook(100, &mixed));
    assert!((0.7..1.1).contains(&steady), "{steady}");
    assert_eq!(rate(&outlook(0, &[(full, 500)])), 0.0);
    assert!(rate(&outlook(500, &[])).is_infinite());
}

#[test]
fn writers_are_slowed_down_to_that_without_a_step() {
    let forecast = Forecast::new();
    let full = OWED_LEVELS - 1;
    let limit = |owed| forecast.limit(&outlook(960 - owed, &[(full, owed)]), 60, MIB as f64);
    assert_eq!(limit(500), ALLOWANCE_MAX);
    let limits: Vec<u64> = (510..900).map(limit).collect();
    assert!(limits.windows(2).all(|pair| pair[1] <= pair[0]));
    assert!(limits.windows(2).all(|pair| pair[1] * 5 >= pair[0] * 3), "{limits:?}");
    assert!(limit(960) >= THROTTLE_RATE_MIN / 4, "it has a bound");
    // A large pool takes a burst first.
    let large = outlook(300, &[(full, 660)]);
    assert_eq!(forecast.limit(&large, 60, 32.0 * MIB as f64), ALLOWANCE_MAX);
}

#[test]
fn what_packs_now_is_counted_on_no_more_than_what_is_written_lets_it() {
    let limit = |grows: u64| {
        let mut forecast = Forecast::new();
        let count = |written: u64, live: u64| Counts { written, live, ..Counts::default() };
        (1..100).for_each(|i| forecast.look(i * SECOND, false, count(i * 8 * MIB, i * grows)));
        // A log that was filled to half for the first time.
        let outlook = Outlook { live: 450.0, ..outlook(450, &[(OWED_LEVELS - 1, 450)]) };
        forecast.limit(&outlook, 40, MIB as f64)
    };
    // Writes of what is new leave nothing to pack in the end, those of what is there leave half of it.
    assert!(limit(8 * MIB) * 5 < limit(0) * 4, "{} {}", limit(8 * MIB), limit(0));
    assert!(limit(4 * MIB) <= limit(0) && limit(8 * MIB) <= limit(4 * MIB));
}

#[test]
fn what_is_live_at_a_start_was_not_written_since() {
    let limit = |live: u64| {
        let mut forecast = Forecast::new();
        forecast.look(SECOND, false, Counts { written: MIB, live, ..Counts::default() });
        let outlook = Outlook { live: 450.0, ..outlook(450, &[(OWED_LEVELS - 1, 450)]) };
        forecast.limit(&outlook, 40, MIB as f64)
    };
    assert_eq!(limit(450 * MIB), limit(0));
}
