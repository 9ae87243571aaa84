//! Lines and numbers as people read and write them.

use std::borrow::Cow;
use std::fmt::Display;
use std::io::{ErrorKind, Write};
use std::ops::{Bound, RangeBounds};
use std::os::fd::AsFd;
use std::str::FromStr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

pub(crate) use forebay_control::nearest::did_you_mean;
use forebay_device::Nanos;
use forebay_device::runtime::{MICROSECOND, MILLISECOND, SECOND};
use forebay_engine::ids::BLOCK_BYTES;
use forebay_engine::limits::STRIPE_BYTES;
pub(crate) use forebay_engine::text::plural;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use textwrap::core::Word;
use textwrap::{WordSeparator, WordSplitter, WrapAlgorithm};

use crate::failure::Failure;

/// Why standard output could not be written to.
static UNWRITTEN: OnceLock<std::io::Error> = OnceLock::new();

/// Notes that standard output could not be written to. Whoever has closed it has seen enough.
pub(crate) fn note_unwritten(error: std::io::Error) {
    if error.kind() != ErrorKind::BrokenPipe {
        // The first one says why.
        let _ = UNWRITTEN.set(error);
    }
}

/// Whether all that was said is written.
///
/// # Errors
/// If some is lost, and somebody may miss it.
pub(crate) fn all_written() -> Result<(), Failure> {
    match UNWRITTEN.get() {
        None => Ok(()),
        Some(error) => {
            Err(Failure::system("write the output", error).hint("give it room, or another file"))
        }
    }
}

/// Text with what would act on a terminal made visible, as in JSON: names of files may hold anything.
fn visible(text: &str) -> Cow<'_, str> {
    let acts = |c: char| c.is_control() && c != '\n' && c != '\t';
    if !text.contains(acts) {
        return text.into();
    }
    let visible = |c: char| if acts(c) { format!("\\u{:04x}", u32::from(c)) } else { c.into() };
    text.chars().map(visible).collect::<String>().into()
}

/// Some lines on standard output. `println!` panics if nobody reads it.
pub(crate) fn say(lines: impl Display) {
    say_on(lines);
}

/// The same; false if they cannot be written, or nobody reads them any more.
pub(crate) fn say_on(lines: impl Display) -> bool {
    let (lines, mut out) = (lines.to_string(), std::io::stdout().lock());
    let written = writeln!(out, "{}", visible(&lines)).and_then(|()| out.flush());
    written.map_err(note_unwritten).is_ok()
}

/// Whether somebody may read what is said: nobody does at the end of a pipe that was closed.
pub(crate) fn is_heard() -> bool {
    let (out, at_once) = (std::io::stdout(), Timespec::default());
    let mut ends = [PollFd::new(&out, PollFlags::empty())];
    poll(&mut ends, Some(&at_once)).is_err() || !ends[0].revents().contains(PollFlags::ERR)
}

/// Whether the process has a log.
static IS_LOGGING: AtomicBool = AtomicBool::new(false);

/// From now on lines for people go to the log, or to standard error again.
pub(crate) fn tell_to_log(is_logging: bool) {
    IS_LOGGING.store(is_logging, Ordering::Relaxed);
}

/// One line on standard error, broken where a terminal ends, or in the log if there is one; lost if nobody
/// reads it. `eprintln!` panics then.
pub(crate) fn tell(line: impl Display) {
    tell_fact("", &line.to_string());
}

/// The same behind `head`, below whose end further lines begin.
pub(crate) fn tell_fact(head: &str, text: &str) {
    let text = &*visible(text);
    if IS_LOGGING.load(Ordering::Relaxed) {
        tracing::info!("{head}{text}");
        return;
    }
    let _ = match columns(std::io::stderr()) {
        Some(columns) => {
            let text = wrapped(columns, head, head.chars().count(), text);
            writeln!(std::io::stderr().lock(), "{text}")
        }
        None => writeln!(std::io::stderr().lock(), "{head}{text}"),
    };
}

/// One line on standard error for a program: it is never broken. Lost if nobody reads it.
pub(crate) fn tell_whole(line: impl Display) {
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}

/// The width of text for people where nobody says which there is: the smallest terminal in use.
pub(crate) const COLUMNS: usize = 80;

/// Prose is not made wider than this, as that of `--help` is not: long lines are hard to follow.
const PROSE_COLUMNS_MAX: usize = 100;

/// Nothing is made narrower than this: it would be no easier to read.
const COLUMNS_MIN: usize = 40;

/// How wide a line may be: what COLUMNS says, or the terminal; any width where a program may read it.
pub(crate) fn columns(of: impl AsFd) -> Option<usize> {
    let said = std::env::var("COLUMNS").ok().and_then(|text| text.parse().ok());
    let is = || terminal_size::terminal_size_of(of).map(|(width, _)| usize::from(width.0));
    let columns: Option<usize> = said.filter(|columns| *columns > 0).or_else(is);
    columns.map(|columns| columns.max(COLUMNS_MIN))
}

/// Words, and what stands in backquotes as one word: who copies a command gets the whole of it.
fn words(line: &str) -> Box<dyn Iterator<Item = Word<'_>> + '_> {
    let is_paired = line.matches('`').count().is_multiple_of(2);
    let (mut is_quoted, mut is_behind_space) = (false, false);
    // The spaces behind a word are its own, however many.
    let begins = move |(at, c): &(usize, char)| {
        let begins = is_behind_space && !is_quoted && *c != ' ' && *at > 0;
        is_quoted ^= *c == '`' && is_paired;
        is_behind_space = *c == ' ';
        begins
    };
    let starts = line.char_indices().filter(begins).map(|(at, _)| at);
    let mut ends = starts.chain([line.len()]);
    let mut start = 0;
    Box::new(std::iter::from_fn(move || {
        let end = ends.next().filter(|end| *end > start)?;
        let word = line.get(start..end)?;
        start = end;
        Some(Word::from(word))
    }))
}

/// `text` behind `head`, broken at words; further lines are so far in. What has no room stays whole, as a path or a
/// command does.
pub(crate) fn wrapped(columns: usize, head: &str, further: usize, text: &str) -> String {
    if text.is_empty() {
        return head.to_owned();
    }
    let further = " ".repeat(further);
    let options = textwrap::Options::new(columns)
        .initial_indent(head)
        .subsequent_indent(&further)
        .break_words(false)
        .word_separator(WordSeparator::Custom(words))
        .word_splitter(WordSplitter::NoHyphenation)
        .wrap_algorithm(WrapAlgorithm::FirstFit);
    textwrap::wrap(text, options).join("\n")
}

/// Prose behind `head`, for people alone; further lines begin below it.
pub(crate) fn prose(head: &str, text: &str) -> String {
    let columns = columns(std::io::stdout()).unwrap_or(COLUMNS).min(PROSE_COLUMNS_MAX);
    wrapped(columns, head, head.chars().count(), text)
}

/// The same of what a program may read, too: one line then.
pub(crate) fn beside(head: &str, text: &str) -> String {
    match columns(std::io::stdout()) {
        Some(_) => prose(head, text),
        None => format!("{head}{text}"),
    }
}

/// One fact behind `head`: on one line where a program may read it, within the terminal elsewhere; further lines are so
/// far in.
pub(crate) fn fitted(head: &str, further: usize, text: &str) -> String {
    match columns(std::io::stdout()) {
        Some(columns) => wrapped(columns, head, further, text),
        None => format!("{head}{text}"),
    }
}

/// Prints a fact, see [`fitted`]; further lines begin below it.
pub(crate) fn fact(head: &str, text: impl Display) {
    say(fitted(head, head.chars().count(), &text.to_string()));
}

/// Whether sizes are told to the last byte: `--bytes`.
static IS_EXACT: AtomicBool = AtomicBool::new(false);

/// From now on sizes are told to the last byte, or not.
pub(crate) fn tell_bytes(is_exact: bool) {
    IS_EXACT.store(is_exact, Ordering::Relaxed);
}

/// Whether they are.
pub(crate) fn is_exact() -> bool {
    IS_EXACT.load(Ordering::Relaxed)
}

/// A size with about two digits and its unit, unless it is told to the last byte.
pub(crate) fn bytes(count: u64) -> String {
    match is_exact() {
        true => format!("{count} B"),
        false => forebay_engine::text::bytes(count),
    }
}

/// A number with its thousands apart.
pub(crate) fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A ratio as a percentage that never rounds up to 100.
pub(crate) fn percent(ratio: f64) -> String {
    format!("{:.1} %", (ratio * 1000.0).floor() / 10.0)
}

/// A span of time with about three digits.
pub(crate) fn span(nanos: Nanos) -> String {
    let (value, unit) = match nanos {
        0..MILLISECOND => (nanos as f64 / MICROSECOND as f64, "us"),
        MILLISECOND..SECOND => (nanos as f64 / MILLISECOND as f64, "ms"),
        _ => (nanos as f64 / SECOND as f64, "s"),
    };
    let decimals = if value < 10.0 { 2 } else { usize::from(value < 100.0) };
    format!("{value:.decimals$} {unit}")
}

/// Parses whole numbers of a range; one that is none is told what is expected.
pub(crate) fn whole<T>(
    range: impl RangeBounds<T> + Clone,
) -> impl Fn(&str) -> Result<T, String> + Clone
where
    T: FromStr + PartialOrd + Display,
{
    move |text| {
        let number = text.parse().ok().filter(|number| range.contains(number));
        number.ok_or_else(|| {
            let bounds = match (range.start_bound(), range.end_bound()) {
                (Bound::Included(from), Bound::Included(to)) => format!(" from {from} to {to}"),
                (Bound::Included(from), _) => format!(" from {from} on"),
                (_, Bound::Included(to)) => format!(" from 0 to {to}"),
                _ => String::new(),
            };
            format!("{text:?} is no whole number{bounds}")
        })
    }
}

/// The size of a cache block in bytes, as people type it.
///
/// # Errors
/// A sentence that says what is wrong.
pub(crate) fn parse_cache_block(text: &str) -> Result<u32, String> {
    let bytes = parse_bytes(text)?;
    let fits = bytes.is_power_of_two() && (BLOCK_BYTES..=STRIPE_BYTES).contains(&bytes);
    let bytes = u32::try_from(bytes).ok().filter(|_| fits);
    bytes.ok_or_else(|| "a cache block is a power of two from 4K to 4M".to_owned())
}

/// A size as people type it: `1048576`, `512M`, `1GiB`. Units count in powers of 1024.
///
/// # Errors
/// A sentence that says what is wrong.
pub(crate) fn parse_bytes(text: &str) -> Result<u64, String> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(end);
    let number: u64 =
        digits.parse().map_err(|_| "a size is a number and a unit, as 512M".to_owned())?;
    let shift = match unit.trim().to_ascii_uppercase().as_str() {
        "" | "B" => 0,
        "K" | "KIB" => 10,
        "M" | "MIB" => 20,
        "G" | "GIB" => 30,
        "T" | "TIB" => 40,
        _ if unit.starts_with(['.', ',']) => {
            return Err("a size is a whole number of its unit: 1536M, not 1.5G".to_owned());
        }
        _ => return Err(format!("the unit \"{unit}\" is none of K, M, G, T")),
    };
    number.checked_mul(1 << shift).ok_or_else(|| "the size is too large".to_owned())
}

/// Units of a duration, largest first.
const DURATIONS: [(char, u32); 4] = [('d', 86_400), ('h', 3_600), ('m', 60), ('s', 1)];

/// Seconds, in the largest unit that leaves nothing over.
pub(crate) fn duration(seconds: u32) -> String {
    let fits = DURATIONS.iter().find(|(_, unit)| seconds >= *unit && seconds.is_multiple_of(*unit));
    let (unit, length) = fits.copied().unwrap_or(('s', 1));
    format!("{}{unit}", seconds / length)
}

/// Milliseconds, in the largest unit that leaves nothing over.
pub(crate) fn millis(ms: u64) -> String {
    match u32::try_from(ms / 1_000) {
        Ok(seconds) if ms.is_multiple_of(1_000) => duration(seconds),
        _ => format!("{ms}ms"),
    }
}

/// A short duration as people type it, in milliseconds: `500ms`, or as [`parse_duration`] takes it.
///
/// # Errors
/// A sentence that says what is wrong.
pub(crate) fn parse_millis(text: &str) -> Result<u32, String> {
    let wrong = || "a time is a number and one of ms, s, m, h, d, as 5s or 500ms".to_owned();
    let ms = match text.strip_suffix("ms") {
        Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => digits.parse().ok(),
        Some(_) => None,
        None => parse_duration(text).map_err(|_| wrong())?.checked_mul(1_000),
    };
    ms.ok_or_else(wrong)
}

/// Seconds to go, no finer than anybody can know.
pub(crate) fn left(seconds: u64) -> String {
    match seconds {
        0..100 => format!("{} s", seconds.max(1)),
        100..6_000 => format!("{} min", (seconds + 30) / 60),
        6_000..172_800 => format!("{} h", (seconds + 1_800) / 3_600),
        _ => format!("{} days", (seconds.saturating_add(43_200)) / 86_400),
    }
}

/// A duration as people type it, in seconds: `90s`, `10m`, `2h`, `1d`.
///
/// # Errors
/// A sentence that says what is wrong.
pub(crate) fn parse_duration(text: &str) -> Result<u32, String> {
    let wrong = || "a duration is a number and one of s, m, h, d, as 10m".to_owned();
    let unit = text.chars().next_back().ok_or_else(wrong)?;
    let (_, length) = DURATIONS.iter().find(|(name, _)| *name == unit).ok_or_else(wrong)?;
    let digits = &text[..text.len() - 1];
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(wrong());
    }
    let seconds = digits.parse().ok().and_then(|number: u32| number.checked_mul(*length));
    seconds.ok_or_else(|| "the duration is too long".to_owned())
}

/// What fingers make of a name: two neighbours swapped, or one letter that is another.
#[cfg(test)]
pub(crate) fn slips(name: &str) -> Vec<String> {
    let mut all = Vec::new();
    for at in 0..name.len() {
        let mut letters: Vec<char> = name.chars().collect();
        letters[at] = 'q';
        all.push(letters.iter().collect());
        if at > 0 {
            let mut letters: Vec<char> = name.chars().collect();
            letters.swap(at - 1, at);
            all.push(letters.iter().collect());
        }
    }
    all.retain(|slip: &String| slip != name);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_and_written() {
        assert_eq!(parse_bytes("512M"), Ok(512 << 20));
        assert_eq!(parse_bytes("1 GiB"), Ok(1 << 30));
        assert_eq!(parse_bytes("4096"), Ok(4096));
        for wrong in ["", "M", "1X", "99999999999T"] {
            assert!(parse_bytes(wrong).is_err(), "{wrong}");
        }
        assert_eq!(bytes(512 << 20), "512 MiB");
        assert_eq!(bytes(1536 << 20), "1.5 GiB");
        assert_eq!(bytes(0), "0 B");
    }

    #[test]
    fn durations_are_read_and_written() {
        for (text, seconds) in [("90s", 90), ("10m", 600), ("2h", 7_200), ("3d", 259_200)] {
            assert_eq!((parse_duration(text), duration(seconds).as_str()), (Ok(seconds), text));
        }
        assert_eq!((duration(0), parse_duration("0s")), ("0s".to_owned(), Ok(0)));
        for wrong in ["", "m", "10", "10x", "-1s", "+1s", "1 m", "99999999d", "5\u{e4}"] {
            assert!(parse_duration(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn time_to_go_is_rounded() {
        let cases = [(0, "1 s"), (99, "99 s"), (100, "2 min"), (7_300, "2 h"), (180_000, "2 days")];
        for (seconds, text) in cases {
            assert_eq!(left(seconds), text);
        }
        assert!(left(u64::MAX).ends_with(" days"));
    }

    #[test]
    fn long_text_is_broken_below_itself() {
        let beside = |head: &str, text: &str| wrapped(80, head, head.len(), text);
        let words = ["word"; 20].join(" ");
        let text = beside("  head  ", &words);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0].len(), 77);
        assert!(lines[0].starts_with("  head  word") && lines[1].starts_with("        word"));
        assert_eq!(lines.len(), 2);
        let path = "/".repeat(100);
        assert_eq!(beside("a ", &path), format!("a {path}"));
        assert_eq!(beside("a ", ""), "a ");
        assert_eq!(wrapped(40, "head  ", 2, &words).lines().nth(1).unwrap().len(), 2 + 34);
    }

    /// Half of a command may do something else than the whole one.
    #[test]
    fn a_command_is_not_broken() {
        let text =
            "write it in full: `dd if=/dev/zero of=/tmp/ssd bs=1M count=64`; or give another one";
        let lines = wrapped(40, "hint: ", 6, text);
        let lines: Vec<_> = lines.lines().collect();
        assert_eq!(lines[0], "hint: write it in full:");
        assert_eq!(lines[1], "      `dd if=/dev/zero of=/tmp/ssd bs=1M count=64`;");
        assert_eq!(lines[2], "      or give another one");
        assert_eq!(
            wrapped(40, "", 0, &format!("{}  two", "x".repeat(38))),
            format!("{}\ntwo", "x".repeat(38))
        );
        // One that never ends is none.
        assert_eq!(wrapped(40, "", 0, &format!("` {}", ["word"; 9].join(" "))).lines().count(), 2);
    }

    #[test]
    fn what_acts_on_a_terminal_is_made_visible() {
        assert_eq!(visible("caf\u{e9} /dev/sda\n"), "caf\u{e9} /dev/sda\n");
        assert_eq!(visible("a\u{1b}[2Jb\r\u{7}"), "a\\u001b[2Jb\\u000d\\u0007");
    }

    #[test]
    fn numbers_and_spans_are_short() {
        assert_eq!(thousands(1_234_567), "1,234,567");
        assert_eq!(thousands(12), "12");
        assert_eq!(span(1_234), "1.23 us");
        assert_eq!(span(45_600_000), "45.6 ms");
        assert_eq!(span(2 * SECOND), "2.00 s");
    }

    #[test]
    fn short_durations_are_read_and_written_in_milliseconds() {
        for (text, ms) in [("5s", 5_000), ("500ms", 500), ("2m", 120_000), ("1500ms", 1_500)] {
            assert_eq!((parse_millis(text), millis(ms.into()).as_str()), (Ok(ms), text));
        }
        for text in ["", "ms", "s", "5", "-5s", "5 s", "+5ms", "5xs", "99999999999ms", "5000000s"] {
            assert!(parse_millis(text).is_err(), "{text}");
        }
    }
}
