//! One file while it is read.

use std::io::{BufRead, BufReader, Read};

use super::source::{self, BUFFER_BYTES, HEAD_BYTES};
use super::{Bad, Format, LINE_BYTES_MAX, Parsed, Run, binary, lines, text};
use crate::{Error, Result};

/// What follows the records of one file.
enum Records {
    Text(text::Parser),
    Binary(binary::Parser),
}

/// A file while it is read.
pub(super) struct File {
    pub(super) name: String,
    input: Box<dyn BufRead>,
    records: Records,
    /// Lines, or records of a binary format, read so far.
    number: u64,
    ended: bool,
    /// It ended before its end: where the next record begins is not known.
    left_off: bool,
}

impl File {
    /// A file of this format, of which nothing was read yet.
    pub(super) fn new(name: &str, input: Box<dyn Read>, format: Format) -> Result<Self> {
        let (head, input) =
            source::peek(input, HEAD_BYTES).map_err(|error| source::failed(name, &error))?;
        let records = match format {
            Format::Vscsi | Format::Blktrace => {
                Records::Binary(binary::Parser::new(format, name, &head))
            }
            _ => Records::Text(text::Parser::new(format, name)),
        };
        let input = Box::new(BufReader::with_capacity(BUFFER_BYTES, input));
        let name = name.to_owned();
        Ok(Self { name, input, records, number: 0, ended: false, left_off: false })
    }

    /// Whether there is nothing more in it.
    pub(super) fn ended(&self) -> bool {
        self.ended
    }

    /// Whether it ended at something after which nothing is understood.
    pub(super) fn left_off(&self) -> bool {
        self.left_off
    }

    /// What the next line or record comes to.
    pub(super) fn next(&mut self, line: &mut Vec<u8>, run: &mut Run) -> Result<Parsed> {
        self.number += 1;
        let parsed = match &mut self.records {
            Records::Text(_) => self.next_line(line, run),
            Records::Binary(_) => self.next_record(run),
        };
        parsed.map_err(|error| source::failed(&self.name, &error))
    }

    fn next_line(&mut self, line: &mut Vec<u8>, run: &mut Run) -> std::io::Result<Parsed> {
        let Records::Text(parser) = &mut self.records else { unreachable!("asked for a line") };
        match lines::read_line(&mut self.input, line)? {
            lines::Line::End => self.ended = true,
            lines::Line::Long => {
                let why = format!("longer than {LINE_BYTES_MAX} bytes");
                return Ok(Err(Bad::new("line", why)));
            }
            lines::Line::Whole => {
                let Ok(text) = std::str::from_utf8(line) else {
                    return Ok(Err(Bad::new("line", "not text")));
                };
                // Files that were joined to one stream may have one each.
                let text = text.strip_prefix(text::BYTE_ORDER_MARK).unwrap_or(text);
                return Ok(parser.parse(text.trim(), run));
            }
        }
        Ok(Ok(None))
    }

    fn next_record(&mut self, run: &mut Run) -> std::io::Result<Parsed> {
        let Records::Binary(parser) = &mut self.records else { unreachable!("asked for a record") };
        Ok(match parser.next(&mut self.input, run)? {
            binary::Next::Record(parsed) => parsed,
            binary::Next::End => {
                self.ended = true;
                Ok(None)
            }
            binary::Next::CutOff => {
                self.ended = true;
                Err(Bad::new("record", "the file ends inside of it"))
            }
            binary::Next::Lost(bad) => {
                (self.ended, self.left_off) = (true, true);
                Err(bad)
            }
        })
    }

    /// The error that a line or record of this file is.
    pub(super) fn refuse(&self, bad: &Bad) -> Error {
        let (place, places) = match self.records {
            Records::Text(_) => ("line", "lines"),
            Records::Binary(_) => ("record", "records"),
        };
        let mut hint = format!(
            "correct it, name the right format with --format, or let --skip-bad pass over such \
             {places} and count them"
        );
        if self.left_off {
            hint += &format!("; the rest of {} is not read then", self.name);
        }
        Error::new(
            format!("{}, {place} {}, field \"{}\": {}", self.name, self.number, bad.field, bad.why),
            hint,
        )
    }
}
