//! `forebay lab scale` from the command line to its tables: sizes that take seconds.

use crate::common::{forebay, run, stderr};
use serde_json::Value;

fn play(more: &[&str]) -> String {
    let output = run(forebay().args(["lab", "scale", "--tiny"]).args(more));
    assert!(output.status.success(), "{}", stderr(&output));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn json_has_what_is_the_same_everywhere_apart_from_what_is_not() {
    let answer: Value = serde_json::from_str(&play(&["bytes", "--json"])).unwrap();
    assert_eq!(answer["schema"], 1);
    let series = answer["series"].as_array().unwrap();
    assert_eq!(series.len(), 1);
    let points = series[0]["points"].as_array().unwrap();
    assert_eq!(points.len(), 2);
    for point in points {
        assert_eq!(point["counted"]["crash_lost_blocks"], 0, "{point}");
        assert_eq!(point["counted"]["blocks"], point["device_bytes"].as_u64().unwrap() / 8192);
        assert!(point["processor_ns"]["hit"].as_f64().is_some(), "{point}");
    }
    let whats: Vec<_> = series[0]["bars"].as_array().unwrap().iter().map(|b| &b["what"]).collect();
    assert!(whats.contains(&&"start after a crash".into()), "{whats:?}");
}

#[test]
fn the_tables_say_how_each_column_grows_and_what_is_smaller_than_it_says() {
    let text = play(&["segments"]);
    assert!(text.contains("segments of 256 KiB instead of its own"), "{text}");
    assert_eq!(text.matches("grows by").count(), 2, "{text}");
    assert!(text.contains("64 GiB") && text.contains("start after a clean stop"), "{text}");
}
