//! Which format a file has, from its first bytes.

use super::{Format, binary};

/// The format, if the beginning of a file tells.
pub(super) fn format_of(head: &[u8]) -> Option<Format> {
    if let Some(format) = binary::format_of(head) {
        return Some(format);
    }
    let text = String::from_utf8_lossy(head);
    text.lines().map(str::trim).find(|line| !line.is_empty()).and_then(format_of_line)
}

fn format_of_line(line: &str) -> Option<Format> {
    if line.starts_with("fio version") {
        return Some(Format::Fio);
    }
    let words = line.split_whitespace().count();
    let first = line.split_whitespace().next()?;
    if words >= 7 && first.split(',').all(is_number) && first.contains(',') {
        return Some(Format::Blkparse);
    }
    let fields: Vec<_> = line.split(',').map(str::trim).collect();
    let is_op = |field: &str| matches!(field.to_ascii_lowercase().as_str(), "r" | "w");
    let named = |field: &str| matches!(field.to_ascii_lowercase().as_str(), "read" | "write");
    match fields[..] {
        [_, op, offset, size] if is_op(op) && is_number(offset) && is_number(size) => {
            Some(Format::Forebay)
        }
        ["ts_us", ..] => Some(Format::Forebay),
        [_, _, _, op, ..] if named(op) => Some(Format::Msr),
        [_, _, _, op, ..] if is_op(op) => Some(Format::Spc),
        [_, op, ..] if is_op(op) => Some(Format::Alibaba),
        ["device_id", ..] => Some(Format::Alibaba),
        [time, sector, sectors, "0" | "1", volume]
            if [time, sector, sectors, volume].into_iter().all(is_number) =>
        {
            Some(Format::Tencent)
        }
        _ => None,
    }
}

fn is_number(field: &str) -> bool {
    !field.is_empty() && field.bytes().all(|byte| byte.is_ascii_digit())
}
