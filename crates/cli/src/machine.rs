//! Which machine this is, for those who may open the same pools; and which process.

use std::fs::read_to_string;

use forebay_engine::format::Host;
use forebay_engine::limits::NAME_BYTES_MAX;

/// 32 hexadecimal digits, with or without dashes.
pub(crate) fn parse_id(text: &str) -> Option<[u8; 16]> {
    let digits: Vec<u8> = text.trim().bytes().filter(|&byte| byte != b'-').collect();
    if digits.len() != 32 {
        return None;
    }
    let mut id = [0; 16];
    for (byte, pair) in id.iter_mut().zip(digits.chunks_exact(2)) {
        let [high, low] = [pair[0], pair[1]].map(|digit| char::from(digit).to_digit(16));
        *byte = (high? << 4 | low?) as u8;
    }
    Some(id)
}

/// When a process was started, in the kernel's clock ticks; `None` if it cannot be seen. Numbers of
/// processes are given out again, this tells them apart.
pub(crate) fn started(pid: u32) -> Option<u64> {
    let stat = read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, after_name) = stat.rsplit_once(')')?;
    // proc(5): field 3 is the first one after the name, a zombie has ended; 22 is the start time.
    let mut fields = after_name.split_whitespace();
    if fields.next()? == "Z" {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

/// This machine since its start; `id` counts for more than what the system says.
pub(crate) fn this(id: Option<&str>) -> Option<Host> {
    let id = match id {
        Some(id) => parse_id(id)?,
        None => parse_id(&read_to_string("/etc/machine-id").ok()?)?,
    };
    let boot = parse_id(&read_to_string("/proc/sys/kernel/random/boot_id").ok()?)?;
    let name = read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let mut name: String = name.chars().filter(|c| !c.is_control()).collect();
    while name.len() > NAME_BYTES_MAX {
        name.pop();
    }
    if name.is_empty() {
        name.push_str("localhost");
    }
    Some(Host { id, boot, name })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_has_32_digits() {
        let id = parse_id("3d1219c7c4c5404aaa1f6d2a48adfda4\n").unwrap();
        assert_eq!((id[0], id[15]), (0x3d, 0xa4));
        assert_eq!(parse_id("3d1219c7-c4c5-404a-aa1f-6d2a48adfda4"), Some(id));
        for bad in [
            "",
            "uninitialized",
            "3d1219c7c4c5404aaa1f6d2a48adfda",
            "gg1219c7c4c5404aaa1f6d2a48adfda4",
        ] {
            assert_eq!(parse_id(bad), None);
        }
    }
}
