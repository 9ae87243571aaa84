//! Which format a file has, from its first bytes.

use super::{Format, binary, text};

/// What the beginning of a file tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Told {
    /// Its format.
    Format(Format),
    /// Either our CSV with a column that we do not know, or Alibaba's format: both have an
    /// operation in the second column, and numbers around it.
    CsvOrAlibaba,
    /// Nothing.
    Nothing,
}

/// Times in microseconds from 2001 to 2286. Traces of Alibaba have such times, and neither a
/// latency nor a number of a process is that large.
const DATES_US: std::ops::Range<u64> = 1_000_000_000_000_000..10_000_000_000_000_000;

/// What the beginning of a file tells.
pub(super) fn format_of(head: &[u8]) -> Told {
    if let Some(format) = binary::format_of(head) {
        return Told::Format(format);
    }
    let text = String::from_utf8_lossy(head);
    let mut lines =
        text.strip_prefix(text::BYTE_ORDER_MARK).unwrap_or(&text).lines().map(str::trim);
    let first = lines.find(|line| !line.is_empty() && !line.starts_with('#'));
    first.map_or(Told::Nothing, format_of_line)
}

fn format_of_line(line: &str) -> Told {
    if line.starts_with("fio version") {
        return Told::Format(Format::Fio);
    }
    if text::is_about_input(line) || is_event(line) {
        return Told::Format(Format::Blkparse);
    }
    let fields: Vec<_> = line.split(',').map(str::trim).collect();
    format_of_header(&fields).map_or_else(|| format_of_fields(&fields), Told::Format)
}

/// Whether a line is an event of blkparse.
fn is_event(line: &str) -> bool {
    text::is_of_device(line) && line.split_whitespace().count() > 6
}

fn format_of_header(fields: &[&str]) -> Option<Format> {
    let names: Vec<_> = fields.iter().map(|field| field.to_ascii_lowercase()).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    match names[..] {
        ["ts_us", ..] => Some(Format::Forebay),
        ["device_id", ..] => Some(Format::Alibaba),
        ["timestamp", "hostname", ..] => Some(Format::Msr),
        ["timestamp", "offset", "size", ..] => Some(Format::Tencent),
        _ => None,
    }
}

fn format_of_fields(fields: &[&str]) -> Told {
    let is_op = |field: &str| text::op(field).is_some();
    match *fields {
        [_, op, offset, size] if is_op(op) && is_number(offset) && is_number(size) => {
            Told::Format(Format::Forebay)
        }
        // MSR writes the operation as a word, SPC as a letter.
        [_, _, _, op, ..] if is_op(op) && op.len() > 1 => Told::Format(Format::Msr),
        [_, _, _, op, ..] if is_op(op) => Told::Format(Format::Spc),
        [device, op, _, _, time] if is_op(op) && is_date(time) && !is_date(device) => {
            Told::Format(Format::Alibaba)
        }
        [_, op, _, _, _] if is_op(op) => Told::CsvOrAlibaba,
        [time, sector, sectors, "0" | "1", volume]
            if [time, sector, sectors, volume].into_iter().all(is_number) =>
        {
            Told::Format(Format::Tencent)
        }
        _ => Told::Nothing,
    }
}

fn is_date(field: &str) -> bool {
    field.parse().is_ok_and(|time| DATES_US.contains(&time))
}

pub(super) fn is_number(field: &str) -> bool {
    !field.is_empty() && field.bytes().all(|byte| byte.is_ascii_digit())
}
