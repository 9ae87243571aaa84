//! `forebay inspect`: what is on cache devices, in the words of the format's specification.
//!
//! * Only reads, without claiming the device, so it works beside a running pool; what changes
//!   meanwhile may show as damaged.
//! * Any bytes may be there: what does not decode is shown as damaged, with the reason.

mod images;
mod json;
mod member;
mod segments;
#[cfg(test)]
mod tests;

use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use forebay_control::api::SCHEMA;
use forebay_engine::format::{Spare, Superblock};

use self::member::Member;
use crate::Result;
use crate::failure::Failure;
use crate::text::{self, whole};

/// See the head of the file.
#[derive(Args)]
pub(crate) struct Options {
    /// A cache device or an image of one; images of shards may need all members of the pool
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Print the records of this segment (its number in the pool)
    #[arg(long, value_name = "N", value_parser = whole::<u32>(..), conflicts_with = "images")]
    segment: Option<u32>,
    /// Summarise the images of all shards that the newest root names
    #[arg(long)]
    images: bool,
    /// Print the answer as JSON, with the version of its form as `schema`
    #[arg(long, display_order = 901)]
    json: bool,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let members =
        options.files.iter().map(|path| Member::open(path)).collect::<Result<Vec<_>>>()?;
    let mut out = BufWriter::new(std::io::stdout().lock());
    let columns = text::columns(std::io::stdout()).filter(|_| !options.json);
    let printed = match columns {
        Some(columns) => {
            let mut fitted = Fitted { columns, line: Vec::new(), out };
            print(&members, options, &mut fitted).and_then(|()| fitted.flush())
        }
        None => print(&members, options, &mut out).and_then(|()| out.flush()),
    };
    if let Err(error) = printed {
        text::note_unwritten(error);
    }
    match members.iter().find_map(|member| member.superblock()) {
        None => Err(members[0].why_unreadable()),
        Some(_) => match options.segment {
            Some(number) if segments::find(&members, number).is_none() => {
                let what = format!("segment {number} is on none of the devices given");
                Err(Failure::new(what).hint(
                    "give all members of the pool; without --segment each shows which it has",
                ))
            }
            _ => Ok(()),
        },
    }
}

/// The superblock of what is at `path`, if it has one. It is read, not claimed.
///
/// # Errors
/// If it cannot be opened.
pub(crate) fn superblock_at(path: &Path) -> Result<Option<Superblock>> {
    Ok(Member::open(path)?.superblock().cloned())
}

/// The mark of a device that is a spare.
///
/// # Errors
/// If it cannot be opened.
pub(crate) fn spare_at(path: &Path) -> Result<Option<Spare>> {
    Ok(Member::open(path)?.spare())
}

/// What was asked for, as JSON.
fn value(members: &[Member], options: &Options) -> serde_json::Value {
    let (name, value) = match options.segment {
        Some(number) => ("segment", json::records(members, number)),
        None if options.images => ("root", images::value(members)),
        None => ("devices", members.iter().map(json::device).collect()),
    };
    serde_json::json!({ "schema": SCHEMA, name: value })
}

fn print(members: &[Member], options: &Options, out: &mut dyn Write) -> std::io::Result<()> {
    if options.json {
        serde_json::to_writer_pretty(&mut *out, &value(members, options))?;
        return writeln!(out);
    }
    if let Some(number) = options.segment {
        return segments::print_records(members, number, out);
    }
    if options.images {
        return images::print(members, out);
    }
    for member in members {
        member.print(out)?;
        segments::print_all(member, out)?;
    }
    Ok(())
}

/// Breaks lines where a terminal ends; further ones are further in.
struct Fitted<W: Write> {
    columns: usize,
    line: Vec<u8>,
    out: W,
}

impl<W: Write> Write for Fitted<W> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.line.extend_from_slice(part);
            let Some(line) = self.line.strip_suffix(b"\n") else { break };
            let line = String::from_utf8_lossy(line);
            let text = line.trim_start_matches(' ');
            let (head, _) = line.split_at(line.len() - text.len());
            writeln!(self.out, "{}", text::wrapped(self.columns, head, head.len() + 4, text))?;
            self.line.clear();
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.out.flush()
    }
}
