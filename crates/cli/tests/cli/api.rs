//! Requests of any kind to the control socket: each is answered, from the error table if it makes no
//! sense, never with a 5xx, and the daemon goes on.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use crate::common::config;
use crate::common::daemon::{Daemon, served, until};
use crate::common::routes::{left_out, plans};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Value, json};

/// Nothing that works takes longer.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Clone, Debug)]
struct Asked {
    method: String,
    path: String,
    body: Vec<u8>,
}

/// Status and body of the answer; `None` if the connection was closed without one.
fn ask(socket: &Path, asked: &Asked) -> Option<(u16, Vec<u8>)> {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let head = format!(
        "{} {} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        asked.method,
        asked.path,
        asked.body.len()
    );
    // Whoever refuses a request need not read all of it.
    let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&asked.body));
    // Who says no more is answered all the same.
    let _ = stream.shutdown(Shutdown::Write);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n")?;
    let head = String::from_utf8_lossy(&answer[..end]).into_owned();
    let status = head.split(' ').nth(1)?.parse().ok()?;
    Some((status, answer[end + 4..].to_vec()))
}

/// What `POST` of this body is answered.
pub fn post(socket: &Path, path: &str, body: &Value) -> Value {
    let (method, path) = ("POST".to_owned(), path.to_owned());
    check(socket, &Asked { method, path, body: body.to_string().into() }).1
}

/// What `GET` is answered.
pub fn get(socket: &Path, path: &str) -> Value {
    let (method, path) = ("GET".to_owned(), path.to_owned());
    check(socket, &Asked { method, path, body: Vec::new() }).1
}

/// Sends one request and checks the answer; its status, and what it says.
fn check(socket: &Path, asked: &Asked) -> (u16, Value) {
    let Some((status, body)) = ask(socket, asked) else {
        panic!("no answer: {asked:?}");
    };
    assert!(
        (200..500).contains(&status),
        "{status} {:?}: {asked:?}",
        String::from_utf8_lossy(&body)
    );
    // What is no HTTP at all is refused before anybody sees it, and an answer to HEAD has no body.
    if asked.method == "HEAD" || body.is_empty() && [400, 414, 431].contains(&status) {
        return (status, Value::Null);
    }
    let answer: Value = serde_json::from_slice(&body).unwrap_or_else(|_| {
        panic!("{status} {:?}: {asked:?}", String::from_utf8_lossy(&body));
    });
    if status >= 400 {
        let has_code = answer["code"].as_str().is_some_and(|code| !code.is_empty());
        let has_message = answer["message"].as_str().is_some_and(|text| !text.is_empty());
        assert!(has_code && has_message, "{answer}: {asked:?}");
    } else {
        assert_eq!(answer["schema"], 1, "{asked:?}");
    }
    (status, answer)
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        Just(json!(u64::MAX)),
        ".{0,20}".prop_map(Value::from),
        select(vec!["", "fast", "fast/vm", "/", "..", "writeback", "socket"]).prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 12, 4, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(Value::from),
            vec(("[a-z_]{0,8}", inner), 0..4)
                .prop_map(|pairs| Value::Object(pairs.into_iter().collect())),
        ]
    })
}

/// Requests that are right; the SSDs and origins that they name are nobody's, in use, or not there.
fn right_requests(root: &str) -> Vec<(&'static str, &'static str, Value)> {
    let at = |name: &str| format!("{root}/{name}");
    let (pools, volumes) = ("/api/v1/pools", "/api/v1/pools/fast/volumes");
    let (vm, exports) = ("/api/v1/pools/fast/volumes/vm", "/api/v1/exports");
    let odd = ["/", "/dev/null", "/proc/self/mem"];
    vec![
        ("POST", pools, json!({"name": "other", "ssds": [at("ssd-0")], "dry_run": false})),
        ("POST", pools, json!({"name": "other", "ssds": [at("none")], "dirty_copies": 2})),
        ("POST", pools, json!({"name": "other", "ssds": odd, "dry_run": true})),
        ("POST", pools, json!({"name": "fast", "ssds": [], "dirty_copies": 255})),
        ("PATCH", "/api/v1/pools/fast", json!({"write_amplification_max_percent": 200})),
        ("PATCH", "/api/v1/pools/fast", json!({"accept_data_loss_on_ssd_failure": true})),
        ("PATCH", "/api/v1/pools/fast", json!({"dirty_copies": 2})),
        ("POST", "/api/v1/import", json!({"pool": "fast", "ssds": [at("none")]})),
        (
            "POST",
            "/api/v1/import",
            json!({"pool": "other", "accept_missing": true, "confirm": "other"}),
        ),
        ("POST", "/api/v1/pools/fast/destroy", json!({"confirm": "fast"})),
        ("POST", "/api/v1/pools/fast/bypass", json!({"confirm": "fast"})),
        ("POST", "/api/v1/pools/fast/export", json!({})),
        ("POST", "/api/v1/pools/fast/devices/add", json!({"ssd": at("ssd-0")})),
        ("POST", "/api/v1/pools/fast/devices/add", json!({"ssd": at("none")})),
        ("POST", "/api/v1/pools/fast/devices/add", json!({"ssd": "/dev/null"})),
        ("POST", "/api/v1/pools/fast/devices/grow", json!({"device": at("ssd-0")})),
        ("POST", "/api/v1/pools/fast/devices/grow", json!({"device": at("none")})),
        ("POST", "/api/v1/pools/fast/devices/spare", json!({"ssd": at("ssd-0")})),
        ("POST", "/api/v1/pools/fast/devices/spare", json!({"ssd": "relative"})),
        ("POST", "/api/v1/pools/fast/devices/remove", json!({"device": at("ssd-0")})),
        ("POST", "/api/v1/pools/fast/devices/remove", json!({"device": at("none")})),
        (
            "POST",
            "/api/v1/pools/fast/devices/replace",
            json!({"old": at("ssd-0"), "new": at("ssd-0")}),
        ),
        (
            "POST",
            "/api/v1/pools/fast/devices/replace",
            json!({"old": at("ssd-0"), "new": at("none")}),
        ),
        ("POST", "/api/v1/pools/fast/devices/can-i-pull", json!({"device": at("ssd-0")})),
        ("POST", "/api/v1/pools/fast/devices/can-i-pull", json!({"device": ""})),
        ("POST", volumes, json!({"name": "vm", "origin": at("other-origin")})),
        ("POST", volumes, json!({"name": "two", "origin": at("other-origin"), "mode": "readonly"})),
        ("POST", volumes, json!({"name": "two", "origin": at("ssd-0"), "dry_run": true})),
        ("POST", volumes, json!({"name": "two", "origin": "/dev/zero", "cache_block_bytes": 4096})),
        ("PATCH", vm, json!({"mode": "writethrough"})),
        ("PATCH", vm, json!({"mode": "writeonly"})),
        ("POST", "/api/v1/pools/fast/volumes/vm/flush", json!({})),
        ("POST", "/api/v1/pools/fast/volumes/vm/advisor", json!({"days": 3})),
        ("DELETE", "/api/v1/pools/fast/volumes/vm/advisor", json!({})),
        ("DELETE", vm, json!({})),
        ("DELETE", "/api/v1/pools/fast/volumes/two", json!({})),
        ("POST", exports, json!({"volume": "fast/vm"})),
        ("POST", exports, json!({"volume": "fast/vm", "place": {"socket": at("nbd-2")}})),
        ("POST", exports, json!({"volume": "fast/vm", "place": {"port": 0}})),
        ("POST", exports, json!({"volume": "fast/two", "place": {"port": 65536}})),
        ("DELETE", "/api/v1/exports/fast/vm", json!({})),
        ("POST", "/api/v1/pools/fast/scrub", json!({})),
        ("DELETE", "/api/v1/pools/fast/scrub", json!({})),
        ("POST", "/api/v1/pools/fast/volumes/vm/grow", json!({})),
        ("POST", "/api/v1/pools/fast/volumes/vm/accept-lost", json!({})),
        ("POST", "/api/v1/pools/fast/volumes/vm/accept-origin", json!({"dirty": "write"})),
        ("POST", "/api/v1/pools/fast/volumes/vm/accept-origin", json!({"dirty": "drop"})),
        ("POST", "/api/v1/stop", json!({})),
        ("POST", "/api/v1/stop", json!({"destage": true})),
        ("DELETE", "/api/v1/jobs/1", json!({})),
    ]
    .into_iter()
    .chain(SETTINGS.map(|(key, value)| {
        let path = "/api/v1/pools/fast/volumes/vm/settings";
        ("PATCH", path, json!({key: serde_json::from_str::<Value>(value).unwrap()}))
    }))
    .chain(LOOKS.map(|path| ("GET", path, json!({}))))
    .chain(right_plans(root).into_iter().map(|plan| ("POST", "/api/v1/plan", plan)))
    .collect()
}

/// Settings of volumes, as they have them.
const SETTINGS: [(&str, &str); 14] = [
    ("dirty_age_max_s", "60"),
    ("dirty_age_max_s", "4294967295"),
    ("destage_hours", "\"00:00-06:00\""),
    ("sequential_cutoff_bytes", "4194304"),
    ("sequential_writes", "\"bypass\""),
    ("sequential_when", "\"full\""),
    ("profile", "\"database\""),
    ("populate_on_read", "2"),
    ("populate_on_write", "0"),
    ("cache_block_bytes", "4096"),
    ("reservation_bytes", "1048576"),
    ("reservation_bytes", "18446744073709551615"),
    ("limit_bytes", "16777216"),
    ("priority", "\"high\""),
];

/// What is only looked at.
const LOOKS: [&str; 13] = [
    "/api/v1/status",
    "/api/v1/stats",
    "/api/v1/events",
    "/api/v1/pools",
    "/api/v1/pools/fast",
    "/api/v1/import",
    "/api/v1/volumes",
    "/api/v1/pools/fast/volumes/vm",
    "/api/v1/pools/fast/volumes/vm/advisor",
    "/api/v1/advisors",
    "/api/v1/exports",
    "/api/v1/jobs",
    "/api/v1/jobs/1",
];

/// Changes of every kind that can be planned.
fn right_plans(root: &str) -> Vec<Value> {
    let at = |name: &str| format!("{root}/{name}");
    let set = |settings: Value| json!({"volume": "fast/vm", "settings": settings});
    vec![
        json!({"import-pool": {"pool": "fast", "accept_missing": true}}),
        json!({"import-pool": {"pool": "other", "ssds": [at("ssd-0"), at("none")]}}),
        json!({"set-pool": {"pool": "fast", "settings": {"scrub_rate_bytes_per_s": 1 << 20}}}),
        json!({"export-pool": "fast"}),
        json!({"destroy-pool": "fast"}),
        json!({"bypass-pool": "fast"}),
        json!({"add-device": {"pool": "fast", "ssd": at("ssd-2")}}),
        json!({"add-device": {"pool": "fast", "ssd": "/dev/null"}}),
        json!({"add-spare": {"pool": "fast", "ssd": at("ssd-2")}}),
        json!({"replace-device": {"pool": "fast", "old": at("ssd-0"), "new": at("ssd-2")}}),
        json!({"grow-device": {"pool": "fast", "device": at("ssd-0")}}),
        json!({"remove-device": {"pool": "fast", "device": at("ssd-0")}}),
        json!({"start-scrub": "fast"}),
        json!({"stop-scrub": "fast"}),
        json!({"flush-volume": "fast/vm"}),
        json!({"set-volume": {"volume": "fast/vm", "mode": "writeback"}}),
        json!({"set-volume-settings": set(json!({"limit_bytes": u64::MAX}))}),
        json!({"set-volume-settings": set(json!({"profile": "web", "dirty_age_max_s": 1}))}),
        json!({"grow-volume": "fast/vm"}),
        json!({"accept-lost": "fast/vm"}),
        json!({"accept-origin": {"volume": "fast/vm", "dirty": "drop"}}),
        json!({"remove-volume": "fast/vm"}),
        json!({"add-export": {"volume": "fast/vm", "place": {"socket": at("nbd-2")}}}),
        json!({"add-export": {"volume": "fast/vm", "place": {"port": 0}}}),
        json!({"remove-export": "fast/vm"}),
        json!({"cancel-job": 1}),
        json!({"start-advisor": {"volume": "fast/vm", "days": 3}}),
        json!({"stop-advisor": "fast/vm"}),
        json!({"stop": {}}),
        json!({"stop": {"destage": true}}),
    ]
}

#[test]
fn requests_go_to_every_address_and_plan_every_change() {
    let right = right_requests("/nowhere");
    let left_out = left_out(right.iter().map(|(method, path, _)| (*method, *path)));
    assert!(left_out.is_empty(), "nothing is sent to {left_out:?}");
    let planned: BTreeSet<String> = right_plans("/nowhere")
        .iter()
        .flat_map(|plan| plan.as_object().unwrap().keys().cloned().collect::<Vec<_>>())
        .collect();
    assert_eq!(planned, plans());
}

/// Waits for the end that was asked for, and starts the daemon again. What has to be destaged first may fail.
fn after_stop(daemon: &mut Daemon, answer: &Value) {
    let number = answer["job"]["number"].as_u64();
    let goes_on = |daemon: &Daemon| {
        let Some(number) = number else { return false };
        let job = daemon.ask(&["job", "show", &number.to_string(), "--json"]);
        let job = serde_json::from_slice::<Value>(&job.stdout).unwrap_or_default();
        job["state"] == "failed" || job["state"] == "cancelled"
    };
    until("it has ended, or goes on", || daemon.has_ended() || goes_on(daemon));
    if daemon.has_ended() {
        assert!(daemon.wait());
        daemon.start();
    }
}

/// A body that is right but for one thing, which may be in what it is about.
fn almost(body: Value, which: usize, how: u8, other: Value) -> Vec<u8> {
    let mut body = body;
    let fields = body.as_object().filter(|fields| fields.len() == 1 && !which.is_multiple_of(3));
    if let Some((key, inner @ Value::Object(_))) = fields.and_then(|fields| fields.iter().next()) {
        let inner = String::from_utf8(almost(inner.clone(), which / 3, how, other)).unwrap();
        return format!("{{\"{key}\":{inner}}}").into_bytes();
    }
    if let Value::Object(fields) = &mut body {
        let keys: Vec<String> = fields.keys().cloned().collect();
        let key = keys.get(which % keys.len().max(1)).cloned();
        match (how % 6, key) {
            (0, Some(key)) => drop(fields.remove(&key)),
            (1, Some(key)) => drop(fields.insert(key, other)),
            (2, Some(key)) => {
                let value = fields.remove(&key).unwrap();
                fields.insert(format!("{key}x"), value);
            }
            (3, _) => drop(fields.insert("more".to_owned(), other)),
            (4, Some(key)) => {
                // The same field twice.
                let value = &fields[&key];
                let text = serde_json::to_string(&Value::Object(fields.clone())).unwrap();
                return format!("{{\"{key}\":{value},{}", &text[1..]).into_bytes();
            }
            _ => {}
        }
    }
    serde_json::to_vec(&body).unwrap()
}

fn any_path() -> impl Strategy<Value = String> {
    let names = vec![
        "fast",
        "vm",
        "other",
        "two",
        "..",
        ".",
        "-x",
        "%2e%2e",
        "%ff",
        "%00",
        "a%2fb",
        "0",
        "1",
        "18446744073709551616",
        "-1",
        "",
    ];
    let name = move || {
        prop_oneof![
            8 => select(names.clone()).prop_map(str::to_owned),
            1 => "[!-~&&[^ #?]]{1,12}",
            1 => Just("n".repeat(300)),
        ]
    };
    let shape = select(vec![
        "status",
        "events",
        "pools",
        "pools/A",
        "pools/A/export",
        "pools/A/destroy",
        "pools/A/bypass",
        "pools/A/volumes",
        "pools/A/volumes/B",
        "pools/A/volumes/B/flush",
        "pools/A/volumes/B/settings",
        "pools/A/volumes/B/grow",
        "pools/A/volumes/B/accept-lost",
        "pools/A/volumes/B/accept-origin",
        "pools/A/scrub",
        "pools/A/devices/B",
        "plan",
        "volumes",
        "import",
        "exports",
        "exports/A/B",
        "jobs",
        "jobs/A",
        "A",
        "A/B",
        "pools/A/B",
    ]);
    let query = prop_oneof![
        6 => Just(String::new()),
        1 => Just("?after=1".to_owned()),
        1 => "\\?[a-z=&%0-9]{0,12}".prop_map(String::from),
    ];
    let prefix = select(vec!["/api/v1/", "/api/v1/", "/api/v1/", "/api/v2/", "/", "/api/v1//"]);
    (prefix, shape, name(), name(), query).prop_map(|(prefix, shape, a, b, query)| {
        format!("{prefix}{}{query}", shape.replace('A', &a).replace('B', &b))
    })
}

fn any_request(root: &str) -> impl Strategy<Value = Asked> {
    let methods = ["GET", "POST", "PATCH", "DELETE", "POST", "PUT", "HEAD", "OPTIONS", "FOREBAY"];
    let body = prop_oneof![
        2 => vec(any::<u8>(), 0..200),
        4 => any_json().prop_map(|value| serde_json::to_vec(&value).unwrap()),
        1 => (1usize..400).prop_map(|depth| "[".repeat(depth * 100).into_bytes()),
    ];
    let asked = |(method, path, body): (&str, String, Vec<u8>)| Asked {
        method: method.to_owned(),
        path,
        body,
    };
    let right = (select(right_requests(root)), any::<usize>(), any::<u8>(), any_json());
    prop_oneof![
        1 => (select(methods.to_vec()), any_path(), body.clone()).prop_map(asked),
        1 => (select(right_requests(root)), body)
            .prop_map(|((method, path, _), body)| (method, path.to_owned(), body))
            .prop_map(asked),
        3 => right
            .prop_map(|((method, path, body), which, how, other)| {
                (method, path.to_owned(), almost(body, which, how, other))
            })
            .prop_map(asked),
    ]
}

/// Puts back what requests that made sense have taken away.
fn restore(daemon: &Daemon) {
    let path = |name: &str| daemon.dir.path(name).to_str().unwrap().to_owned();
    let (first, second, origin) = (path("ssd-0"), path("ssd-1"), path("origin"));
    daemon.ask(&["pool", "import", "fast"]);
    daemon.ask(&["pool", "destroy", "other", "--yes"]);
    daemon.ask(&["pool", "create", "fast", "--ssd", &first, "--ssd", &second]);
    daemon.ask(&["volume", "add", "fast/vm", "--origin", &origin]);
    daemon.ask(&["export", "add", "fast/vm", "--socket", &path("nbd")]);
}

#[test]
fn requests_of_any_kind_are_answered_and_break_nothing() {
    let daemon = served("api");
    let root = daemon.dir.0.to_str().unwrap().to_owned();
    std::fs::write(daemon.dir.path("other-origin"), vec![0; 8 << 20]).unwrap();
    let socket = daemon.dir.path("control.sock");
    let config = config(600);
    let mut runner = proptest::test_runner::TestRunner::new(config);
    let seen = RefCell::new(std::collections::BTreeMap::<u16, u32>::new());
    let daemon = RefCell::new(daemon);
    let result = runner.run(&any_request(&root), |asked| {
        let (status, answer) = check(&socket, &asked);
        let mut daemon = daemon.borrow_mut();
        if (asked.path.as_str(), status) == ("/api/v1/stop", 200) {
            after_stop(&mut daemon, &answer);
        }
        let mut seen = seen.borrow_mut();
        *seen.entry(status).or_default() += 1;
        if seen.values().sum::<u32>() % 20 == 0 {
            restore(&daemon);
        }
        Ok(())
    });
    result.unwrap_or_else(|failure| panic!("{failure}"));
    // It went as far as the daemon, and was refused there in each way.
    let seen = seen.into_inner();
    println!("answers by status: {seen:?}");
    let often = |status| seen.get(&status).is_some_and(|&count| count >= 5);
    assert!([200, 400, 404, 405, 409].into_iter().all(often), "{seen:?}");
    let mut daemon = daemon.into_inner();
    daemon.tell(&["status"]);
    daemon.stop();
}

#[test]
fn limits_of_requests_are_told() {
    let mut daemon = Daemon::new("api-limits");
    let socket = daemon.dir.path("control.sock");
    let post = |path: &str, body: &[u8]| {
        let (method, path, body) = ("POST".to_owned(), path.to_owned(), body.to_vec());
        let (status, answer) = ask(&socket, &Asked { method, path, body }).unwrap();
        let answer: Value = serde_json::from_slice(&answer).unwrap();
        (status, answer["code"].as_str().unwrap().to_owned())
    };
    assert_eq!(post("/api/v1/pools", &vec![b' '; (64 << 10) + 1]), (413, "too-large".to_owned()));
    assert_eq!(post("/api/v1/pools", b"{"), (400, "bad-request".to_owned()));
    assert_eq!(post("/api/v1/stop", b"{\"destage\":1}"), (400, "bad-request".to_owned()));
    assert_eq!(post("/api/v1/nowhere", b""), (404, "not-found".to_owned()));
    assert_eq!(post("/api/v1/status", b""), (405, "bad-method".to_owned()));
    assert_eq!(post("/api/v1/stop", b" [false]"), (400, "bad-request".to_owned()));
    // A crowd of connections that ask nothing: others wait their turn, and the crowd's end lets
    // them in.
    let crowd: Vec<UnixStream> =
        (0..200).map_while(|_| UnixStream::connect(&socket).ok()).collect();
    assert!(crowd.len() >= 128, "{}", crowd.len());
    drop(crowd);
    until("it answers", || daemon.ask(&["status"]).status.success());
    // A header that never ends keeps nobody from stopping the daemon.
    let mut slow = UnixStream::connect(&socket).unwrap();
    slow.write_all(b"GET /api/v1/status HTTP/1.1\r\nhost: ").unwrap();
    daemon.stop();
}

#[test]
fn a_dry_run_where_there_is_none_is_not_the_real_thing() {
    let mut daemon = served("api-bare");
    let socket = daemon.dir.path("control.sock");
    let volume = "/api/v1/pools/fast/volumes/vm";
    let bare = [
        ("POST", format!("{volume}/flush")),
        ("POST", format!("{volume}/grow")),
        ("POST", format!("{volume}/accept-lost")),
        ("POST", "/api/v1/pools/fast/scrub".to_owned()),
        ("DELETE", "/api/v1/pools/fast/scrub".to_owned()),
        ("DELETE", "/api/v1/exports/fast/vm".to_owned()),
        ("DELETE", volume.to_owned()),
        ("DELETE", "/api/v1/jobs/1".to_owned()),
        ("POST", "/api/v1/pools/fast/export".to_owned()),
    ];
    for (method, path) in &bare {
        for body in ["{\"dry_run\":true}", "x", "[]", "{\"a\":1}"] {
            let (method, path, body) = (method.to_string(), path.clone(), body.into());
            let (status, answer) = check(&socket, &Asked { method, path, body });
            assert_eq!((status, &answer["code"]), (400, &json!("bad-request")), "{answer}");
        }
    }
    let volumes = daemon.json(&["volume", "list"]);
    assert_eq!(volumes["items"].as_array().unwrap().len(), 1, "{volumes}");
    assert_eq!(daemon.json(&["job", "list"])["items"], json!([]), "nothing was begun");
    for (method, path) in bare {
        let (method, path) = (method.to_owned(), format!("{path}?dry_run=true"));
        let (status, answer) = check(&socket, &Asked { method, path, body: Vec::new() });
        assert_eq!((status, &answer["code"]), (400, &json!("bad-request")), "{answer}");
    }
    let volumes = daemon.json(&["volume", "list"]);
    assert_eq!(volumes["items"].as_array().unwrap().len(), 1, "{volumes}");
    for body in ["", " {} \n", "{ \n}", "null"] {
        let (method, path) = ("POST".to_owned(), format!("{volume}/flush"));
        assert_eq!(check(&socket, &Asked { method, path, body: body.into() }).0, 200);
    }
    daemon.stop();
}
