//! `forebay advisor`: how much cache a volume deserves.

use clap::Subcommand;
use forebay_control::api::{
    ADVISOR_DAYS_DEFAULT, ADVISOR_DAYS_MAX, Advisor, Change, Done, Many, One, StartAdvisor,
};
use forebay_control::name::VolumeName;

use super::pool::finish;
use super::{Asking, Daemon, events, table};
use crate::Result;
use crate::text::{self, plural, say, tell};

/// See the head of the file.
#[derive(Subcommand)]
pub(crate) enum Command {
    /// Watch what clients read and write of a volume, whatever its mode; it ends by itself after 30 days
    Start {
        /// POOL/NAME
        volume: VolumeName,
        /// Days from which the advice counts as sure, 1 to 30
        #[arg(long, value_name = "N", default_value_t = ADVISOR_DAYS_DEFAULT, value_parser = days())]
        days: u32,
        /// Only say what would be done
        #[arg(long)]
        dry_run: bool,
    },
    /// Show what caches of several sizes would have hit, and which one is enough
    Show {
        /// POOL/NAME [default: all that are or were watched]
        volume: Option<VolumeName>,
    },
    /// End the watch; what was seen stays until the next one
    Stop {
        /// POOL/NAME
        volume: VolumeName,
        /// Only say what would be done
        #[arg(long)]
        dry_run: bool,
    },
}

fn days() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..=i64::from(ADVISOR_DAYS_MAX))
}

fn at(volume: &VolumeName) -> String {
    format!("/api/v1/pools/{}/volumes/{}/advisor", volume.pool, volume.volume)
}

/// Runs the command.
pub(crate) fn run(command: Command, asking: &Asking) -> Result<()> {
    let daemon = asking.daemon()?;
    match command {
        Command::Start { volume, days, dry_run: true } => {
            daemon.plan(&Change::StartAdvisor { volume, days })
        }
        Command::Start { volume, days, dry_run: false } => {
            let begun: One<Advisor> = daemon.post(&at(&volume), &StartAdvisor { days })?;
            daemon.print(&begun, |_| {
                tell(format_args!(
                    "volume \"{volume}\" is watched; next: `forebay advisor show {volume}`"
                ));
            });
            Ok(())
        }
        Command::Show { volume: Some(volume) } => {
            let seen: One<Advisor> = daemon.get(&at(&volume))?;
            daemon.print(&seen, |seen| print(&seen.item));
            Ok(())
        }
        Command::Show { volume: None } => show_all(&daemon),
        Command::Stop { volume, dry_run: true } => daemon.plan(&Change::StopAdvisor(volume)),
        Command::Stop { volume, dry_run: false } => {
            let done: Done = daemon.delete(&at(&volume))?;
            finish(&daemon, &done);
            Ok(())
        }
    }
}

fn show_all(daemon: &Daemon<'_>) -> Result<()> {
    let all: Many<Advisor> = daemon.get("/api/v1/advisors")?;
    daemon.print(&all, |all| match all.items.as_slice() {
        [] => tell("no volume is watched; `forebay advisor start VOLUME` begins"),
        items => say(overview(items)),
    });
    Ok(())
}

fn overview(items: &[Advisor]) -> String {
    let row = |seen: &Advisor| {
        let sure = if seen.sure { "yes" } else { "not yet" };
        vec![
            seen.volume.to_string(),
            text::left(seen.watched_s),
            if seen.watching { "yes" } else { "no" }.to_owned(),
            text::bytes(seen.cache_bytes),
            text::percent(seen.cache_hit_ratio),
            seen.advised_bytes.map_or("none".to_owned(), text::bytes),
            seen.advised_hit_ratio.map_or("-".to_owned(), text::percent),
            sure.to_owned(),
        ]
    };
    let rows: Vec<_> = items.iter().map(row).collect();
    table(&["VOLUME", "FOR", "STILL", "CACHE", "HITS", "ENOUGH", "HITS", "SURE"], &rows)
}

/// Since when, for how long, and what comes of it.
fn watched(seen: &Advisor) -> String {
    let (begun, span) = (events::date(seen.begun_unix_s), text::left(seen.watched_s));
    match seen.ended_unix_s {
        None => {
            format!("since {begun}, for {span}; it ends by itself after {ADVISOR_DAYS_MAX} days")
        }
        Some(ended) => format!("from {begun} until {}, for {span}; ended", events::date(ended)),
    }
}

/// How much is in use on a day.
fn a_day(seen: &Advisor) -> String {
    let [usual, most] = [seen.day_bytes, seen.day_bytes_max].map(text::bytes);
    match seen.days {
        0 => "nothing was touched yet".to_owned(),
        1 => format!("{usual} touched"),
        days => {
            let days = plural(days as usize, "day");
            format!("{usual} touched on a usual one, {most} on the one with most, of {days}")
        }
    }
}

fn print(seen: &Advisor) {
    say(format_args!("volume   {}", seen.volume));
    say(text::beside("watched  ", &watched(seen)));
    let [read, written] = [seen.read_bytes, seen.written_bytes].map(text::bytes);
    say(text::beside("asked    ", &format!("{read} read, {written} written")));
    say(text::beside("a day    ", &a_day(seen)));
    if seen.read_bytes + seen.written_bytes > 0 {
        say(curve(seen));
    }
    say(text::beside("advice   ", &seen.advice));
    say(text::beside(
        "         ",
        "(Estimated for LRU caches that the volume has alone, from a sample of what was touched.)",
    ));
}

/// What caches would have hit.
fn curve(seen: &Advisor) -> String {
    let mut lines = vec!["cache size    hits of all accesses".to_owned()];
    for point in &seen.curve {
        let [size, hits] = [text::bytes(point.cache_bytes), text::percent(point.hit_ratio)];
        let now = if point.cache_bytes == seen.cache_bytes { "   now" } else { "" };
        lines.push(format!("{size:>10}    {hits:>8}{now}"));
    }
    let hits = text::percent(seen.endless_hit_ratio);
    lines.push(format!("{:>10}    {hits:>8}", "endless"));
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen() -> Advisor {
        serde_json::from_value(serde_json::json!({
            "volume": "fast/vm", "watching": true, "begun_unix_s": 1_700_000_000,
            "ended_unix_s": null, "watched_s": 864_000, "days_min": 7, "sure": true,
            "read_bytes": 9_u64 << 40, "written_bytes": 5_u64 << 38, "day_bytes": 90_u64 << 30,
            "day_bytes_max": 300_u64 << 30, "days": 9, "days_left_out": 1,
            "cache_bytes": 64_u64 << 30, "cache_hit_ratio": 0.7, "endless_hit_ratio": 0.9,
            "advised_bytes": 112_u64 << 30, "advised_hit_ratio": 0.86, "advice": "Buy one.",
            "curve": [
                { "cache_bytes": 1_u64 << 20, "hit_ratio": 0.05 },
                { "cache_bytes": 64_u64 << 30, "hit_ratio": 0.7 },
                { "cache_bytes": 128_u64 << 30, "hit_ratio": 0.88 },
            ],
        }))
        .unwrap()
    }

    #[test]
    fn what_was_seen_fits_a_terminal() {
        let lines = [
            "cache size    hits of all accesses",
            "     1 MiB       5.0 %",
            "    64 GiB      70.0 %   now",
            "   128 GiB      88.0 %",
            "   endless      90.0 %",
        ];
        assert_eq!(curve(&seen()), lines.join("\n"));
        let lines = [
            "VOLUME   FOR      STILL  CACHE   HITS    ENOUGH   HITS    SURE",
            "fast/vm  10 days  yes    64 GiB  70.0 %  112 GiB  86.0 %  yes",
        ];
        assert_eq!(overview(&[seen()]), lines.join("\n"));
        let since = "since 2023-11-14T22:13:20Z, for 10 days; it ends by itself after 30 days";
        assert_eq!(watched(&seen()), since);
        let ended = Advisor { ended_unix_s: Some(1_700_864_000), ..seen() };
        assert!(watched(&ended).ends_with("until 2023-11-24T22:13:20Z, for 10 days; ended"));
        assert_eq!(
            a_day(&seen()),
            "90 GiB touched on a usual one, 300 GiB on the one with most, of 9 days"
        );
    }
}
