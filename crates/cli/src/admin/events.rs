//! `forebay events`.

use std::collections::VecDeque;
use std::time::Duration;

use clap::Args;
use forebay_control::api::{Event, Events as Answer, Severity};

use super::{Asking, Daemon};
use crate::Result;
use crate::text::{self, say_on, tell, whole};

/// `forebay events`.
#[derive(Args)]
pub(crate) struct Events {
    /// Only events with a higher number; what pools have kept of earlier lives of the daemon has none
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = whole::<u64>(..))]
    after: u64,
    /// The life of the daemon that N is of, as `life` of --json has it: after a start all is shown again
    #[arg(long, value_name = "LIFE")]
    life: Option<String>,
    /// Only what matters as much, or more: `warning` is what somebody should look at, `critical` what needs
    /// somebody to act
    #[arg(long, value_name = "SEVERITY", value_enum, default_value = "info")]
    severity: Least,
    /// Go on with what happens from now on, also when the daemon is restarted, until interrupted; with --json one
    /// event a line
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

/// Events that a follower knows again: as many as a daemon has of its life and of earlier ones.
const SEEN_MAX: usize = 2048;

/// `forebay events`.
pub(crate) fn events(options: &Events) -> Result<()> {
    let daemon = options.asking.daemon()?;
    let least = Severity::from(options.severity);
    if !options.follow {
        let mut answer: Answer = daemon.get(&address(options.after, options.life.as_deref()))?;
        answer.items.retain(|event| event.severity >= least);
        daemon.print(&answer, |answer| {
            answer.items.iter().all(say_event);
        });
        return Ok(());
    }
    let mut answer: Answer = daemon.get(&address(0, None))?;
    let mut follower = Follower::new(options.after, options.life.clone(), &answer);
    let mut is_away = false;
    loop {
        for event in follower.news(answer) {
            if event.severity >= least && !daemon.print_line(&event, say_event) {
                return Ok(());
            }
        }
        answer = loop {
            super::wait(FOLLOW_INTERVAL);
            if !text::is_heard() {
                return Ok(());
            }
            let answer = daemon.get_if_there(&follower.address())?;
            if answer.is_none() != is_away {
                is_away = answer.is_none();
                tell(follower_note(&daemon, is_away));
            }
            if let Some(answer) = answer {
                break answer;
            }
        };
    }
}

fn follower_note(daemon: &Daemon<'_>, is_away: bool) -> String {
    let socket = daemon.socket.display();
    match is_away {
        true => format!("the daemon at {socket} does not answer; waiting for it"),
        false => format!("the daemon at {socket} answers again"),
    }
}

/// Where to ask for events.
fn address(after: u64, life: Option<&str>) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric();
    // What no life is called is another one's, whatever it is; an address takes not everything.
    let life = life.map(|life| if life.chars().all(is_plain) { life } else { "-" });
    let life = life.map_or(String::new(), |life| format!("&life={life}"));
    format!("/api/v1/events?after={after}{life}")
}

/// What somebody who follows has seen.
///
/// Numbers begin anew with each life of the daemon. What was told in an earlier one comes again, without its
/// number, with the pool that has kept it: once that has been opened, and then the last things of that life may be
/// among it that nobody has seen.
#[derive(Default)]
struct Follower {
    life: String,
    /// The number of the last event of this life.
    last: u64,
    /// When the newest event was of the lives before, once there is one: nothing older than that is news.
    since: Option<u64>,
    /// Whether to ask for what pools have kept.
    asks_all: bool,
    seen: VecDeque<Event>,
}

impl Follower {
    /// One who asks for what comes after an event of a life, or of the one that the daemon has. What there was till then
    /// is known, out of all that there is: it comes again, with the pool that has kept it, in the next life.
    fn new(after: u64, life: Option<String>, answer: &Answer) -> Follower {
        let life = life.unwrap_or_else(|| answer.life.clone());
        let is_known = |event: &&Event| after > 0 && life == answer.life && event.number <= after;
        let newest = answer.items.len().saturating_sub(SEEN_MAX);
        let seen = answer.items.iter().skip(newest).filter(is_known).cloned().collect();
        Follower { life, last: after, seen, ..Follower::default() }
    }

    fn address(&self) -> String {
        address(if self.asks_all { 0 } else { self.last }, Some(&self.life))
    }

    /// What of an answer was not seen before.
    fn news(&mut self, answer: Answer) -> Vec<Event> {
        if self.life != answer.life {
            self.since = self.seen.iter().map(|event| event.unix_s).max().or(Some(0));
            (self.life, self.last) = (answer.life, 0);
        }
        self.asks_all = false;
        let mut news = Vec::new();
        for event in answer.items {
            let is_new = match event.number {
                0 => {
                    self.since.is_none_or(|since| event.unix_s >= since)
                        && !self.seen.iter().any(|seen| is_same(seen, &event))
                }
                number => number > self.last,
            };
            if !is_new {
                continue;
            }
            self.last = self.last.max(event.number);
            self.asks_all |= self.since.is_some() && event.code == "pool-opened";
            if self.seen.len() == SEEN_MAX {
                self.seen.pop_front();
            }
            self.seen.push_back(event.clone());
            news.push(event);
        }
        news
    }
}

/// Whether a pool has kept this event as that one; what is too long it has cut.
fn is_same(seen: &Event, kept: &Event) -> bool {
    seen.unix_s == kept.unix_s
        && (&seen.pool, &seen.code) == (&kept.pool, &kept.code)
        && seen.subject.starts_with(&kept.subject)
        && seen.what.starts_with(&kept.what)
}

/// False if it cannot be written.
fn say_event(event: &Event) -> bool {
    let (time, severity) = (date(event.unix_s), event.severity.name());
    let Event { number, code, what, .. } = event;
    let number = if *number == 0 { "-".to_owned() } else { number.to_string() };
    let head = format!("{number:>4}  {time}  {severity:8}  {code:16}  ");
    // Below the date: what is left behind the head of a narrow terminal is too little.
    say_on(text::fitted(&head, 6, what))
}

/// A second since 1970 as a date and a time, UTC.
pub(super) fn date(unix_s: u64) -> String {
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
    use super::{Answer, Event, Follower, address, date};

    fn event(number: u64, unix_s: u64, code: &str, what: &str) -> Event {
        let (code, what) = (code.to_owned(), what.to_owned());
        let (pool, subject) = ("fast".to_owned(), String::new());
        Event { number, unix_s, severity: Default::default(), code, pool, subject, what }
    }

    #[test]
    fn who_follows_sees_each_event_once_over_the_lives_of_a_daemon() {
        let mut follower = Follower { life: "one".to_owned(), ..Follower::default() };
        let news = |follower: &mut Follower, life: &str, items: Vec<Event>| {
            let answer = Answer { schema: 1, life: life.to_owned(), items };
            follower.news(answer).into_iter().map(|event| event.what).collect::<Vec<_>>()
        };
        let old = || event(0, 5, "volume-added", "a");
        let told = || event(1, 10, "volume-set", "b, at length");
        assert_eq!(news(&mut follower, "one", vec![old(), told()]), ["a", "b, at length"]);
        assert_eq!(follower.address(), "/api/v1/events?after=1&life=one");
        assert!(news(&mut follower, "one", vec![]).is_empty());
        // Another life, in which the pool is not open yet.
        let started = || event(1, 12, "daemon-started", "c");
        assert_eq!(news(&mut follower, "two", vec![started()]), ["c"]);
        assert_eq!(follower.address(), "/api/v1/events?after=1&life=two");
        // It is, and has kept what was seen, what was not, and what happened elsewhere long ago.
        let opened = || event(2, 13, "pool-opened", "d");
        assert_eq!(news(&mut follower, "two", vec![opened()]), ["d"]);
        assert_eq!(follower.address(), "/api/v1/events?after=0&life=two");
        let kept = event(0, 10, "volume-set", "b, at");
        let foreign = event(0, 4, "volume-added", "z");
        let unseen = event(0, 11, "pool-set", "e");
        let all = vec![foreign, old(), kept, unseen, started(), opened()];
        assert_eq!(news(&mut follower, "two", all), ["e"]);
        assert_eq!(follower.address(), "/api/v1/events?after=2&life=two");
    }

    /// Whatever it was that came first: nothing, before the daemon was started again.
    #[test]
    fn who_asks_for_what_is_new_is_not_told_what_is_old_when_it_comes_again() {
        let of = |life: &str, items: &[Event]| Answer {
            schema: 1,
            life: life.to_owned(),
            items: items.to_vec(),
        };
        let told = |news: Vec<Event>| news.into_iter().map(|event| event.what).collect::<Vec<_>>();
        let old = event(0, 5, "damage-unhealed", "a");
        let last = event(2, 10, "volume-set", "c");
        let all = of("one", &[old.clone(), event(1, 9, "daemon-started", "b"), last.clone()]);
        let mut follower = Follower::new(2, None, &all);
        assert!(told(follower.news(all.clone())).is_empty());
        assert!(told(follower.news(of("one", &[]))).is_empty());
        let begun = [event(1, 12, "daemon-started", "d"), event(2, 13, "pool-opened", "e")];
        assert_eq!(told(follower.news(of("two", &begun))), ["d", "e"]);
        let kept = [old, event(0, 10, "volume-set", "c"), event(0, 11, "pool-set", "f")];
        assert_eq!(told(follower.news(of("two", &[&kept[..], &begun].concat()))), ["f"]);
        // Of a life that is over everything is told, and of this one what comes after that.
        let mut follower = Follower::new(2, Some("zero".to_owned()), &all);
        assert_eq!(told(follower.news(all.clone())), ["a", "b", "c"]);
        let mut follower = Follower::new(1, Some("one".to_owned()), &all);
        assert_eq!(told(follower.news(all.clone())), ["c"]);
        let mut follower = Follower::new(0, None, &all);
        assert_eq!(told(follower.news(all)), ["a", "b", "c"]);
    }

    #[test]
    fn a_life_of_a_strange_name_is_another_one() {
        assert_eq!(address(7, None), "/api/v1/events?after=7");
        assert_eq!(address(7, Some("5f")), "/api/v1/events?after=7&life=5f");
        assert_eq!(address(7, Some("5 &after=1")), "/api/v1/events?after=7&life=-");
    }

    #[test]
    fn seconds_become_dates() {
        assert_eq!(date(0), "1970-01-01T00:00:00Z");
        assert_eq!(date(951_782_399), "2000-02-28T23:59:59Z");
        assert_eq!(date(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(date(1_795_273_130), "2026-11-21T14:58:50Z");
    }
}
