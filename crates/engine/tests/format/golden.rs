//! Images of version 1, as it was released: what the encoder writes must not drift.
//!
//! A file has a line of 32 bytes in hex for every place that is not all zero, and the length last.
//! `FOREBAY_GOLDEN_WRITE=1 cargo test -p forebay-engine golden` writes missing files.

use std::fmt::Write;
use std::path::Path;

use crate::samples;

fn render(bytes: &[u8]) -> String {
    let mut out = String::new();
    for (index, line) in bytes.chunks(32).enumerate() {
        if line.iter().any(|&byte| byte != 0) {
            write!(out, "{:06x} ", index * 32).unwrap();
            line.iter().for_each(|byte| write!(out, "{byte:02x}").unwrap());
            out.push('\n');
        }
    }
    writeln!(out, "{:06x} end", bytes.len()).unwrap();
    out
}

#[test]
fn golden_images_of_version_1_are_what_the_encoder_writes() {
    let all = samples::all().into_iter().chain(samples::featured());
    for sample in all.chain([samples::witness_sizes()]) {
        let name = format!("{}.v1.hex", sample.name);
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
        let now = render(&sample.bytes);
        if std::env::var_os("FOREBAY_GOLDEN_WRITE").is_some() && !path.exists() {
            std::fs::write(&path, &now).unwrap();
        }
        let golden = std::fs::read_to_string(&path).unwrap();
        assert!(now == golden, "{} no longer encodes as {}", sample.name, path.display());
    }
}
