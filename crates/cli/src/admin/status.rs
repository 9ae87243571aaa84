//! `forebay status`.

use forebay_control::api::Status;

use super::Asking;
use crate::Result;
use crate::text::{bytes, fact, plural, say};

/// `forebay status`.
pub(crate) fn status(asking: &Asking) -> Result<()> {
    let daemon = asking.daemon()?;
    let status: Status = daemon.get("/api/v1/status")?;
    daemon.print(&status, |status| {
        fact("", &status.summary);
        let memory = &status.memory;
        fact(
            "memory   ",
            format_args!(
                "{} now; index up to {}, {}buffers up to {}; {}, {}",
                memory.resident_bytes.map_or("-".to_owned(), bytes),
                bytes(memory.index_bytes_max),
                match memory.ram_bytes_max {
                    0 => String::new(),
                    most => format!("RAM tiers up to {}, ", bytes(most)),
                },
                bytes(memory.buffers_bytes_max),
                if memory.locked { "locked" } else { "not locked" },
                if memory.io_flusher { "freed without I/O" } else { "freed with I/O" },
            ),
        );
        for pool in &status.pools {
            say("");
            super::pool::print_pool(pool);
        }
        if !status.exports.is_empty() {
            say("");
        }
        for export in &status.exports {
            match export.reason.as_str() {
                "" => {
                    let clients = plural(export.clients, "client");
                    fact("export   ", format_args!("{}  {clients}, {}", export.volume, export.uri));
                }
                reason => {
                    fact("export   ", format_args!("{}  not served: {reason}", export.volume));
                }
            }
        }
    });
    Ok(())
}
