//! What has been told of a run so far.

use serde_json::json;

use super::engines::NAMES;
use super::protocol::Line;
use crate::bench::{Bench, Result};
use crate::nbd::table::Told;

/// What whoever measures has told.
#[derive(Default)]
pub(super) struct Said {
    pub facts: Vec<String>,
    pub told: Told,
}

impl Said {
    /// Takes a line, shows it and keeps its figures; true if it was the last.
    ///
    /// # Errors
    /// If the raw results cannot be written.
    pub(super) fn hear(&mut self, bench: &mut Bench, line: Line) -> Result<bool> {
        show(&line);
        if let Line::Figures { row, side, values } = &line {
            bench.keep(&json!({ "row": row, "side": NAMES.get(*side), "values": values }))?;
        }
        Ok(self.add(line))
    }

    /// Takes a line; true if it was the last.
    pub(super) fn add(&mut self, line: Line) -> bool {
        match line {
            Line::Fact(text) => self.facts.push(text),
            Line::Figures { row, side, values } => {
                if !self.told.is_missing(&row, side) {
                    self.told.add(&row, side, values);
                }
            }
            Line::Missing { row, side, reason } => self.told.miss(&row, side, &reason),
            Line::End => return true,
        }
        false
    }
}

/// What of a line somebody who waits wants to know.
fn show(line: &Line) {
    let name = |side: &usize| NAMES.get(*side).copied().unwrap_or("?");
    match line {
        Line::Fact(text) => eprintln!("  {text}"),
        Line::Figures { row, side, values } if row.is_empty() => {
            let ram = values.get("ram").copied().unwrap_or_default();
            eprintln!("  {} is warm, with {ram:.0} MiB of memory for a GiB", name(side));
        }
        Line::Figures { row, side, values } => {
            let rate = values.get("rate").copied().unwrap_or_default();
            eprintln!("  {row}: {} {rate:.0}/s", name(side));
        }
        Line::Missing { row, side, reason } => {
            eprintln!("  {row}: {} failed: {reason}", name(side))
        }
        Line::End => {}
    }
}
