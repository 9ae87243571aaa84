//! The report as a page by itself: tables, curves, and everything that is needed to do it again.

use std::collections::BTreeMap;
use std::fmt::Write;

use forebay_lab::page::{self, COLOURS, drawing, escaped};
use serde_json::Value;

use super::ab::{self, Pair};
use super::report::{Row, groups, head};

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 200.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 12.0;
const TOP: f64 = 10.0;
const BOTTOM: f64 = 26.0;

/// Lines of the grid in a chart of shares, and points of a drawn curve at the most: more cannot be told apart.
const SHARES: u32 = 4;
const POINTS_MAX: usize = 400;

/// Seconds, and a value.
type Curve = Vec<(f64, f64)>;

/// What a chart shows.
#[derive(Clone, Copy)]
enum Kind {
    /// Requests per second, by their logarithm.
    Rate,
    /// Nanoseconds, by their logarithm.
    Latency,
    /// 0 to 1.
    Share,
}

/// One target's phases, one behind the other.
struct Series {
    name: String,
    colour: &'static str,
    /// Names and ends of its phases, in seconds.
    phases: Vec<(&'static str, f64)>,
    rates: Curve,
    latencies: Curve,
    hits: Curve,
}

impl Series {
    fn of(rows: &[&Row], number: usize) -> Series {
        let mut series = Series {
            name: rows[0].target.clone(),
            colour: COLOURS[number % COLOURS.len()],
            phases: Vec::new(),
            rates: Curve::new(),
            latencies: Curve::new(),
            hits: Curve::new(),
        };
        let mut start = 0.0;
        for row in rows {
            let at = |ms: u64| start + ms as f64 / 1e3;
            for point in &row.ran.answer.curve {
                series.rates.push((at(point.at_ms), point.iops));
                series.latencies.extend(point.latency_ns.map(|ns| (at(point.at_ms), ns)));
            }
            series.hits.extend(row.ran.hits.iter().map(|&(ms, ratio)| (at(ms), ratio)));
            start = at(row.ran.answer.span_ms);
            series.phases.push((row.phase, start));
        }
        series
    }

    fn curve(&self, kind: Kind) -> &Curve {
        match kind {
            Kind::Rate => &self.rates,
            Kind::Latency => &self.latencies,
            Kind::Share => &self.hits,
        }
    }

    fn end(&self) -> f64 {
        self.phases.last().map_or(0.0, |phase| phase.1)
    }
}

impl Kind {
    /// Where a value is, on a scale whose ends belong to the chart.
    fn scaled(self, value: f64) -> f64 {
        match self {
            Kind::Share => value,
            Kind::Rate | Kind::Latency => value.max(1.0).log10(),
        }
    }

    fn title(self) -> &'static str {
        match self {
            Kind::Rate => "Requests per second",
            Kind::Latency => "Latency, mean",
            Kind::Share => "Read hits",
        }
    }

    fn label(self, scaled: f64) -> String {
        match self {
            Kind::Rate => format!("{:.0}/s", 10_f64.powf(scaled)),
            Kind::Latency => crate::text::span(10_f64.powf(scaled).round() as u64),
            Kind::Share => format!("{:.0} %", scaled * 100.0),
        }
    }
}

/// Where things are in a chart.
struct Axes {
    kind: Kind,
    seconds: f64,
    low: f64,
    high: f64,
}

impl Axes {
    fn of(kind: Kind, all: &[Series]) -> Axes {
        let seconds = all.iter().map(Series::end).fold(1.0, f64::max);
        let values = all.iter().flat_map(|series| series.curve(kind).iter());
        let scaled: Vec<f64> = values.map(|&(_, value)| kind.scaled(value)).collect();
        let (low, high) = match kind {
            Kind::Share => (0.0, 1.0),
            Kind::Rate | Kind::Latency => {
                let low = scaled.iter().copied().fold(f64::INFINITY, f64::min).floor();
                let high = scaled.iter().copied().fold(0.0, f64::max).ceil();
                let low = if low.is_finite() { low } else { 0.0 };
                (low, high.max(low + 1.0))
            }
        };
        Axes { kind, seconds, low, high }
    }

    fn x(&self, seconds: f64) -> f64 {
        LEFT + seconds / self.seconds * (WIDTH - LEFT - RIGHT)
    }

    fn y(&self, scaled: f64) -> f64 {
        let share = ((scaled - self.low) / (self.high - self.low)).clamp(0.0, 1.0);
        HEIGHT - BOTTOM - share * (HEIGHT - BOTTOM - TOP)
    }

    fn draw(&self, svg: &mut String) {
        let steps = match self.kind {
            Kind::Share => SHARES,
            Kind::Rate | Kind::Latency => (self.high - self.low) as u32,
        };
        for step in 0..=steps {
            let scaled = self.low + (self.high - self.low) * f64::from(step) / f64::from(steps);
            let (y, label) = (self.y(scaled), self.kind.label(scaled));
            let _ = write!(
                svg,
                "<line x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{:.1}\" y2=\"{y:.1}\" stroke=\"#ddd\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>",
                WIDTH - RIGHT,
                LEFT - 6.0,
                y + 4.0
            );
        }
        for tenth in (0..=10).step_by(2) {
            let seconds = self.seconds * f64::from(tenth) / 10.0;
            let _ = write!(
                svg,
                "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{seconds:.0} s</text>",
                self.x(seconds),
                HEIGHT - 8.0
            );
        }
    }

    /// The curve, and a dotted line at the end of each phase but the last one.
    fn draw_series(&self, svg: &mut String, series: &Series) {
        let curve = series.curve(self.kind);
        let mut points = String::new();
        for part in curve.chunks(curve.len().div_ceil(POINTS_MAX).max(1)) {
            let (seconds, _) = part[part.len() - 1];
            let mean = part.iter().map(|point| point.1).sum::<f64>() / part.len() as f64;
            let scaled = self.kind.scaled(mean);
            let _ = write!(points, "{:.1},{:.1} ", self.x(seconds), self.y(scaled));
        }
        let colour = series.colour;
        let _ = write!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.5\"/>",
            points.trim_end()
        );
        for (_, end) in series.phases.iter().rev().skip(1) {
            let x = self.x(*end);
            let _ = write!(
                svg,
                "<line x1=\"{x:.1}\" y1=\"{TOP}\" x2=\"{x:.1}\" y2=\"{:.1}\" stroke=\"{colour}\" \
                 stroke-dasharray=\"2 4\"/>",
                HEIGHT - BOTTOM
            );
        }
    }
}

fn chart(page: &mut String, kind: Kind, all: &[Series]) {
    if all.iter().all(|series| series.curve(kind).is_empty()) {
        return;
    }
    let axes = Axes::of(kind, all);
    let mut svg = drawing(WIDTH, HEIGHT);
    axes.draw(&mut svg);
    all.iter().for_each(|series| axes.draw_series(&mut svg, series));
    let _ = write!(page, "<h3>{}</h3>{svg}</svg>", kind.title());
}

/// The charts of a load, with whose curve is which.
fn charts(page: &mut String, rows: &[&Row]) {
    let targets = rows.chunk_by(|one, two| one.target == two.target);
    let all: Vec<Series> =
        targets.enumerate().map(|(number, rows)| Series::of(rows, number)).collect();
    page.push_str("<ul>");
    for series in &all {
        let phases: Vec<_> =
            series.phases.iter().map(|(name, end)| format!("{name} until {end:.0} s")).collect();
        let _ = write!(
            page,
            "<li><span style=\"color:{}\">&#9632;</span> {}: {}</li>",
            series.colour,
            escaped(&series.name),
            phases.join(", ")
        );
    }
    page.push_str("</ul>");
    [Kind::Rate, Kind::Latency, Kind::Share].iter().for_each(|&kind| chart(page, kind, &all));
}

/// What stands beside the results.
pub(crate) struct Facts<'a> {
    /// Its version.
    pub(crate) fio: &'a str,
    pub(crate) machine: &'a str,
    pub(crate) explanation: &'a str,
    /// What all of it was made with.
    pub(crate) command: &'a str,
    /// What that comes to, with what it leaves to defaults.
    pub(crate) settings: &'a BTreeMap<&'static str, Value>,
    /// Why it ended before everything was measured, if it did.
    pub(crate) failure: Option<&'a str>,
    /// What does it again, one by one.
    pub(crate) commands: &'a [String],
    /// Names and texts.
    pub(crate) jobs: &'a [(String, String)],
}

/// Tables and charts of rows.
pub(crate) fn of_rows(rows: &[Row]) -> String {
    let mut part = String::new();
    for (group, (title, lines)) in rows.chunk_by(Row::is_beside).zip(groups(rows)) {
        let _ = write!(part, "<h2>{}</h2>", escaped(&title));
        page::table(&mut part, &head(rows), &lines);
        charts(&mut part, &group.iter().collect::<Vec<_>>());
    }
    part
}

/// The table of two builds.
pub(crate) fn of_pairs(pairs: &[Pair]) -> String {
    let mut part = String::new();
    page::table(&mut part, &ab::HEAD, &ab::lines(pairs));
    part
}

/// The page with what was measured.
pub(crate) fn page(measured: &str, facts: &Facts) -> String {
    let mut page = page::begin("Forebay on this machine");
    let version = env!("CARGO_PKG_VERSION");
    let (command, machine) = (escaped(facts.command), escaped(facts.machine));
    let (fio, explanation) = (escaped(facts.fio), escaped(facts.explanation));
    let _ = write!(page, "<p>Made with</p><pre>{command}</pre>");
    let _ = write!(page, "<p>Forebay {version}, {fio}. {machine}</p>");
    if let Some(failure) = facts.failure {
        let why = escaped(failure);
        let _ = write!(page, "<p class=\"failed\">Not everything was measured: {why}</p>");
    }
    let _ = write!(page, "<p>{explanation}</p>{measured}<h2>Settings</h2>");
    let line = |(name, value): (&&str, &Value)| vec![(*name).to_owned(), value.to_string()];
    let settings: Vec<_> = facts.settings.iter().map(line).collect();
    page::table(&mut page, &["setting", "value"], &settings);
    let commands = escaped(&facts.commands.join("\n"));
    let _ = write!(page, "<h2>Commands to do it again</h2><pre>{commands}</pre><h2>Job files</h2>");
    for (name, text) in facts.jobs {
        let _ = write!(page, "<h3>{}</h3><pre>{}</pre>", escaped(name), escaped(text));
    }
    page::end(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn charts_have_room_for_what_is_shown_and_for_nothing() {
        let series = |rates: Curve| Series {
            name: "x".to_owned(),
            colour: COLOURS[0],
            phases: vec![("cold", 2.0), ("steady", 4.0)],
            rates,
            latencies: Curve::new(),
            hits: Curve::new(),
        };
        let all = [series(vec![(1.0, 90.0), (4.0, 120_000.0)])];
        let axes = Axes::of(Kind::Rate, &all);
        assert_eq!((axes.low, axes.high, axes.seconds), (1.0, 6.0, 4.0));
        assert!((axes.x(4.0) - (WIDTH - RIGHT)).abs() < 1e-9);
        assert!((axes.y(6.0) - TOP).abs() < 1e-9);
        let mut page = String::new();
        chart(&mut page, Kind::Share, &all);
        assert!(page.is_empty(), "nobody has hits");
        chart(&mut page, Kind::Rate, &all);
        assert_eq!(page.matches("<polyline").count(), 1);
        assert_eq!(page.matches("stroke-dasharray").count(), 1, "where the cold phase ends");
        assert!(page.contains(">100/s<") && page.ends_with("</svg>"), "{page}");
        for odd in [f64::INFINITY, 0.0] {
            let _ = Axes::of(Kind::Rate, &[series(vec![(1.0, odd)])]).y(3.0);
        }
    }
}
