use super::*;
use forebay_device::executor::block_on_ready;

const MIB: u64 = 1 << 20;

/// Lets `clients` of each volume write 4 KiB each time after time until `until`; the bytes of each.
fn play(pacer: &mut Pacer, clients: &[usize], until: Nanos) -> Vec<u64> {
    let volumes: Vec<_> = clients.iter().map(|&clients| (clients, Priority::Normal)).collect();
    play_with(pacer, &volumes, until)
}

/// The same with volumes of these priorities.
fn play_with(pacer: &mut Pacer, clients: &[(usize, Priority)], until: Nanos) -> Vec<u64> {
    let mut done = vec![0; clients.len()];
    let volumes: Vec<_> =
        clients.iter().map(|(_, priority)| Rc::new(Flow::of(*priority))).collect();
    let mut waiting: Vec<(usize, Rc<Flow>, Io)> = Vec::new();
    let ask = |pacer: &mut Pacer, now, v: usize, client: Rc<Flow>, done: &mut Vec<u64>| loop {
        match pacer.passes(now, &volumes[v], &client, 4096, false) {
            Ok(()) => done[v] += 4096,
            Err(at) => break (v, Rc::clone(&client), pacer.wait(at, &volumes[v], &client)),
        }
    };
    for (v, &(clients, _)) in clients.iter().enumerate() {
        for _ in 0..clients {
            waiting.push(ask(pacer, pacer.now, v, Rc::default(), &mut done));
        }
    }
    while let Some(now) = pacer.due().filter(|&now| now < until) {
        while let Some(turn) = pacer.next(now) {
            turn.done(Ok(()));
            let is_done = |io: &mut Io| {
                let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
                std::pin::Pin::new(io).poll(&mut cx).is_ready()
            };
            let at = waiting.iter_mut().position(|(.., io)| is_done(io)).unwrap();
            let (v, client, _) = waiting.swap_remove(at);
            done[v] += 4096;
            waiting.push(ask(pacer, now, v, client, &mut done));
        }
    }
    done
}

fn short(shortage: u64, rate: u64) -> Pacer {
    Pacer { shortage, rate, ..Pacer::new() }
}

#[test]
fn the_rate_falls_without_a_step_and_has_bounds() {
    let rate = 100 * MIB;
    let allowed: Vec<u64> = (0..=FULL + 5).map(|shortage| allowance(rate, shortage)).collect();
    assert_eq!(allowed[0], ALLOWANCE_MAX);
    assert!(allowed.windows(2).all(|pair| pair[1] <= pair[0]));
    // From a hundredth of the band on no step is a fifth, and down there none is a half.
    assert!(allowed[10..].windows(2).all(|pair| pair[1] * 5 >= pair[0] * 4));
    assert!(allowed[1] > 1000 * rate && allowed[FULL as usize] == rate / SLOWEST / EARLY);
    assert!(allowed[FULL as usize + 5] == allowed[FULL as usize]);
    let even = allowed.iter().position(|&allowed| allowed <= rate).unwrap();
    assert!((430..460).contains(&even), "{even}");
    assert_eq!(allowance(u64::MAX, 1), ALLOWANCE_MAX);
}

#[test]
fn writers_get_what_is_allowed_and_volumes_the_same_of_it() {
    let allowed = allowance(8 * MIB, FULL / 2);
    let done = play(&mut short(FULL / 2, 8 * MIB), &[1, 8, 1], 10 * SECOND);
    let all: u64 = done.iter().sum();
    assert!((all as f64 / (10 * allowed) as f64 - 1.0).abs() < 0.07, "{all} of {allowed}");
    let (most, least) = (done.iter().max().unwrap(), done.iter().min().unwrap());
    assert!(*least as f64 > 0.85 * *most as f64, "{done:?}");
}

#[test]
fn volumes_get_shares_by_their_priorities_however_many_clients_they_have() {
    use Priority::{High, Low, Normal};
    let allowed = allowance(8 * MIB, FULL / 2);
    let volumes = [(8, Low), (1, Normal), (1, High)];
    let done = play_with(&mut short(FULL / 2, 8 * MIB), &volumes, 10 * SECOND);
    let all: u64 = done.iter().sum();
    assert!((all as f64 / (10 * allowed) as f64 - 1.0).abs() < 0.07, "{all} of {allowed}");
    let part = |v: usize| done[v] as f64 * 7.0 / all as f64;
    for (v, wanted) in [1.0, 2.0, 4.0].into_iter().enumerate() {
        assert!((part(v) / wanted - 1.0).abs() < 0.15, "{done:?}");
    }
}

#[test]
fn a_priority_that_changes_while_writes_wait_counts_from_then_on() {
    let throttle = Throttle::new();
    *throttle.pacer.borrow_mut() = short(FULL, MIB);
    let (volume, client) = (Rc::<Flow>::default(), Rc::default());
    let mut pacer = throttle.pacer.borrow_mut();
    while let Ok(()) = pacer.passes(0, &volume, &client, 4096, false) {}
    let turn = pacer.wait(u64::MAX, &volume, &client);
    drop(pacer);
    throttle.set_priority(&volume, Priority::High);
    assert_eq!(throttle.pacer.borrow().weight_waiting, 4);
    let mut pacer = throttle.pacer.borrow_mut();
    pacer.update(MILLISECOND, 0, ALLOWANCE_MAX, 0);
    pacer.next(MILLISECOND).unwrap().done(Ok(()));
    block_on_ready(turn.done()).unwrap();
    assert_eq!(pacer.weight_waiting, 0);
}

#[test]
fn who_asks_for_less_than_its_share_does_not_wait() {
    let mut pacer = short(FULL / 2, 8 * MIB);
    let (greedy, modest): (Rc<Flow>, Rc<Flow>) = (Rc::default(), Rc::default());
    let client = Rc::default();
    while let Err(at) = pacer.passes(0, &greedy, &client, 64 << 10, false) {
        drop(pacer.wait(at, &greedy, &client));
        if pacer.arrivals == 100 {
            break;
        }
    }
    let mine = Rc::default();
    for tick in 1..1000 {
        assert!(pacer.passes(tick * MILLISECOND, &modest, &mine, 4096, false).is_ok(), "{tick}");
        while pacer.next(tick * MILLISECOND).is_some() {}
    }
}

#[test]
fn who_rewrites_waits_for_the_log_and_not_for_origins() {
    let passed = |pacer: &mut Pacer, rewrites| {
        let (volume, client) = (Rc::default(), Rc::default());
        (0..1000).take_while(|_| pacer.passes(0, &volume, &client, MIB, rewrites).is_ok()).count()
    };
    // Origins take next to nothing.
    let mut pacer = Pacer { limit: 4096, ..Pacer::new() };
    assert_eq!((passed(&mut pacer, false), passed(&mut pacer, true)), (1, 1000));
    // The log is nearly full as well.
    let mut pacer = Pacer { limit: 4096, ..short(FULL, 8 * MIB) };
    assert!(passed(&mut pacer, true) < 10);
}

#[test]
fn all_go_on_in_the_order_of_their_turns_once_nothing_is_short() {
    let mut pacer = short(FULL, MIB);
    let (volume, client) = (Rc::default(), Rc::default());
    let mut turns = Vec::new();
    while turns.len() < 5 {
        if let Err(at) = pacer.passes(0, &volume, &client, 4096, false) {
            turns.push(pacer.wait(at, &volume, &client));
        }
    }
    assert!(pacer.next(0).is_none());
    pacer.update(MILLISECOND, 0, ALLOWANCE_MAX, 0);
    assert_eq!(pacer.due(), Some(pacer.now));
    for turn in turns {
        pacer.next(MILLISECOND).unwrap().done(Ok(()));
        block_on_ready(turn.done()).unwrap();
    }
    assert!(pacer.due().is_none() && pacer.weight_waiting == 0);
    assert!(pacer.passes(MILLISECOND, &volume, &client, 1 << 30, false).is_ok());
}

#[test]
fn the_measured_rate_neither_runs_away_nor_forgets_what_nobody_asked_for() {
    let mut pacer = Pacer::new();
    let mut written = 0;
    for tick in 1..1000 {
        written += MIB;
        pacer.update(tick * 10 * MILLISECOND, 0, ALLOWANCE_MAX, written);
    }
    assert!((95 * MIB..101 * MIB).contains(&pacer.rate), "{}", pacer.rate);
    let known = pacer.rate;
    pacer.update(1000 * SECOND, 0, ALLOWANCE_MAX, written);
    assert_eq!(pacer.rate, known, "a night without writes says nothing");
    pacer.shortage = FULL;
    let (volume, client) = (Rc::default(), Rc::default());
    while pacer.passes(1000 * SECOND, &volume, &client, MIB, false).is_ok() {}
    let _turn = pacer.wait(u64::MAX, &volume, &client);
    for second in 1001..1100 {
        pacer.update(second * SECOND, FULL, ALLOWANCE_MAX, written);
    }
    assert_eq!(pacer.rate, THROTTLE_RATE_MIN, "held back all the time, and it has a bound");
}
