//! `forebay status` and `forebay events`.

use std::time::Duration;

use clap::Args;
use forebay_control::api::{Event, Many, Severity, Status};

use super::Asking;
use crate::Result;
use crate::text::{bytes, say};

/// `forebay status`.
pub(crate) fn status(asking: &Asking) -> Result<()> {
    let daemon = asking.daemon()?;
    let status: Status = daemon.get("/api/v1/status")?;
    daemon.print(&status, |status| {
        say(&status.summary);
        let memory = &status.memory;
        say(format_args!(
            "memory   {} now; index up to {}, {}buffers up to {}; {}, {}",
            memory.resident_bytes.map_or("-".to_owned(), bytes),
            bytes(memory.index_bytes_max),
            match memory.ram_bytes_max {
                0 => String::new(),
                most => format!("RAM tiers up to {}, ", bytes(most)),
            },
            bytes(memory.buffers_bytes_max),
            if memory.locked { "locked" } else { "not locked" },
            if memory.io_flusher { "freed without I/O" } else { "freed with I/O" },
        ));
        for pool in &status.pools {
            say("");
            super::pool::print_pool(pool);
        }
        if !status.exports.is_empty() {
            say("");
        }
        for export in &status.exports {
            match export.reason.as_str() {
                "" => say(format_args!(
                    "export   {}  {} clients, {}",
                    export.volume, export.clients, export.uri
                )),
                reason => say(format_args!("export   {}  not served: {reason}", export.volume)),
            }
        }
    });
    Ok(())
}

/// `forebay events`.
#[derive(Args)]
pub(crate) struct Events {
    /// Only events with a higher number; what pools have kept of earlier lives of the daemon has none
    #[arg(long, value_name = "N", default_value_t = 0)]
    after: u64,
    /// Only what matters as much, or more: `warning` is what somebody should look at, `critical` what needs
    /// somebody to act
    #[arg(long, value_name = "SEVERITY", value_enum, default_value = "info")]
    severity: Least,
    /// Go on with what happens from now on, until interrupted; with --json one event a line
    #[arg(long, short)]
    follow: bool,
    #[command(flatten)]
    asking: Asking,
}

/// The least severity that is shown.
#[derive(Clone, Copy, clap::ValueEnum)]
enum Least {
    Info,
    Warning,
    Critical,
}

impl From<Least> for Severity {
    fn from(least: Least) -> Severity {
        match least {
            Least::Info => Severity::Info,
            Least::Warning => Severity::Warning,
            Least::Critical => Severity::Critical,
        }
    }
}

/// Time between two questions for what is new: people do not notice less.
const FOLLOW_INTERVAL: Duration = Duration::from_millis(500);

/// `forebay events`.
pub(crate) fn events(options: &Events) -> Result<()> {
    let daemon = options.asking.daemon()?;
    let least = Severity::from(options.severity);
    let ask = |after: u64| -> Result<(u64, Many<Event>)> {
        let mut events: Many<Event> = daemon.get(&format!("/api/v1/events?after={after}"))?;
        let last = events.items.last().map_or(after, |event| event.number);
        events.items.retain(|event| event.severity >= least);
        Ok((last, events))
    };
    let (mut last, events) = ask(options.after)?;
    if !options.follow {
        daemon.print(&events, |events| events.items.iter().for_each(say_event));
        return Ok(());
    }
    let mut news = events.items;
    loop {
        for event in &news {
            daemon.print_line(event, say_event);
        }
        super::wait(FOLLOW_INTERVAL);
        let (newest, events) = ask(last)?;
        (last, news) = (newest, events.items);
    }
}

fn say_event(event: &Event) {
    let (time, severity) = (date(event.unix_s), event.severity.name());
    let Event { number, code, what, .. } = event;
    let number = if *number == 0 { "-".to_owned() } else { number.to_string() };
    say(format_args!("{number:>4}  {time}  {severity:8}  {code:16}  {what}"));
}

/// A second since 1970 as a date and a time, UTC.
fn date(unix_s: u64) -> String {
    let (days, second) = (unix_s / 86_400, unix_s % 86_400);
    // Days from civil, backwards (Howard Hinnant's algorithm), from 0000-03-01 on.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::date;

    #[test]
    fn seconds_become_dates() {
        assert_eq!(date(0), "1970-01-01T00:00:00Z");
        assert_eq!(date(951_782_399), "2000-02-28T23:59:59Z");
        assert_eq!(date(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(date(1_795_273_130), "2026-11-21T14:58:50Z");
    }
}
