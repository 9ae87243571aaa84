//! Reactors on several threads that call each other.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall say where")]

use std::cell::Cell;
use std::os::unix::process::ExitStatusExt;
use std::rc::Rc;

use forebay_device::Buf;
use forebay_device::Runtime;
use forebay_device::io::pair;
use forebay_device::real::reactor::{Config, Reactor};
use forebay_device::real::thread::ReactorThread;
use forebay_device::relay::{Caller, Gone, relay};
use forebay_device::runtime::MILLISECOND;

const CALLS: u64 = 20_000;
const CALLERS: u64 = 24;

/// Makes its share of the calls from `CALLERS` tasks and checks every answer.
async fn call_often(reactor: Rc<Reactor>, caller: Caller<Buf, Buf>) {
    let caller = Rc::new(caller);
    let mut ends = Vec::new();
    for task in 0..CALLERS {
        let (completer, end) = pair();
        ends.push(end);
        let caller = Rc::clone(&caller);
        reactor.spawn(Box::pin(async move {
            for number in (task..CALLS).step_by(CALLERS as usize) {
                let answer = caller.call(Buf::copy_of(&number.to_le_bytes())).await;
                let answer = answer.expect("the server lives");
                assert_eq!(*answer, (number + 1).to_le_bytes());
            }
            completer.done(Ok(()));
        }));
    }
    for end in ends {
        end.done().await.expect("no task is lost");
    }
}

#[test]
fn every_call_between_threads_gets_its_own_answer() {
    let reactor = Reactor::new(Config::default()).unwrap();
    let mut threads = Vec::new();
    let served = Rc::new(Cell::new(0));
    let mut ends = Vec::new();
    for name in ["caller 1", "caller 2", "caller 3"] {
        // Fewer places than callers, so that they wait for each other.
        let (caller, server) = relay::<Buf, Buf>(16);
        let body = |reactor| call_often(reactor, caller);
        threads.push(ReactorThread::start(name, Config::default(), body).unwrap());
        let (runtime, served) = (Rc::clone(&reactor), Rc::clone(&served));
        let (completer, end) = pair();
        ends.push(end);
        reactor.spawn(Box::pin(async move {
            let handler = move |mut buf: Buf| {
                served.set(served.get() + 1);
                async move {
                    let number = u64::from_le_bytes(buf[..8].try_into().expect("8 bytes"));
                    buf.copy_from_slice(&(number + 1).to_le_bytes());
                    buf
                }
            };
            server.serve(&*runtime, handler).await;
            completer.done(Ok(()));
        }));
    }
    reactor.block_on(async {
        for end in ends {
            end.done().await.expect("serving ends with its caller");
        }
    });
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(served.get(), 3 * CALLS);
    reactor.close();
}

#[test]
fn callers_on_other_threads_learn_that_the_server_is_gone() {
    let reactor = Reactor::new(Config::default()).unwrap();
    let (caller, server) = relay::<u32, u32>(4);
    let body = |_| async move {
        assert_eq!(caller.call(1).await, Ok(1));
        assert_eq!(caller.call(2).await, Err(Gone));
        assert_eq!(caller.call(3).await, Err(Gone));
    };
    let thread = ReactorThread::start("caller", Config::default(), body).unwrap();
    reactor.block_on(async {
        let (completer, stuck) = pair();
        let completer = Cell::new(Some(completer));
        let runtime = Rc::clone(&reactor);
        reactor.spawn(Box::pin(async move {
            let handler = move |number| {
                let completer = if number == 2 { completer.take() } else { None };
                async move {
                    if let Some(completer) = completer {
                        completer.done(Ok(()));
                        std::future::pending::<()>().await;
                    }
                    number
                }
            };
            server.serve(&*runtime, handler).await;
        }));
        stuck.done().await.expect("the second call arrives");
    });
    reactor.close();
    thread.join().unwrap();
}

/// Set for the process that [`a_panic_on_a_reactors_thread_ends_the_process`] starts.
const PANICS: &str = "FOREBAY_TEST_PANICS";

#[test]
fn a_panic_on_a_reactors_thread_ends_the_process() {
    if std::env::var_os(PANICS).is_some() {
        let (caller, server) = relay::<u32, u32>(1);
        let body = |reactor: Rc<Reactor>| async move {
            let handler = |_| async { panic!("the handler is wrong") };
            server.serve(&*reactor, handler).await;
        };
        let _thread = ReactorThread::start("server", Config::default(), body).unwrap();
        let reactor = Reactor::new(Config::default()).unwrap();
        // While the thread unwinds, the call may end before the process does.
        let _ = reactor.block_on(caller.call(1));
        return reactor.block_on(std::future::pending());
    }
    let name = "a_panic_on_a_reactors_thread_ends_the_process";
    let mut child = std::process::Command::new(std::env::current_exe().unwrap())
        .args([name, "--exact", "--nocapture"])
        .env(PANICS, "1")
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let reactor = Reactor::new(Config::default()).unwrap();
    let runtime: &dyn Runtime = &*reactor;
    let status = reactor.block_on(async {
        for _ in 0..200 {
            if let Some(status) = child.try_wait().unwrap() {
                return Some(status);
            }
            let _ = runtime.sleep(50 * MILLISECOND).done().await;
        }
        None
    });
    let _ = child.kill();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(status.is_some(), "the caller waited for 10 s: {said}");
    assert_eq!(status.and_then(|status| status.signal()), Some(libc::SIGABRT), "{said}");
    assert!(said.contains("thread 'server' cannot go on"), "{said}");
}
