//! Quantities as people read them.

const UNITS: [(&str, u32); 5] = [("KiB", 10), ("MiB", 20), ("GiB", 30), ("TiB", 40), ("PiB", 50)];

/// A number of things: `1 block`, `2 blocks`.
pub fn plural(count: usize, thing: &str) -> String {
    format!("{count} {thing}{}", if count == 1 { "" } else { "s" })
}

/// Bytes, in the largest unit that leaves a whole part.
pub fn bytes(count: u64) -> String {
    match UNITS.iter().rev().find(|(_, shift)| count >= 1 << shift) {
        None => format!("{count} B"),
        Some((unit, shift)) if count.trailing_zeros() >= *shift => {
            format!("{} {unit}", count >> shift)
        }
        Some((unit, shift)) => format!("{:.1} {unit}", count as f64 / (1u64 << shift) as f64),
    }
}
