//! Everything on one page: a table, and for each row a drawing of its curves. It needs nothing beside itself.

use std::fmt::Write;

use forebay_device::Nanos;

use super::{MINUTE, Outcome, Played, Test};
use crate::page::{self, COLOURS, escaped};

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 260.0;
const LEFT: f64 = 64.0;
const BOTTOM: f64 = 32.0;
const TOP: f64 = 12.0;
const RIGHT: f64 = 12.0;

/// Points of a drawn curve at the most: more cannot be told apart.
const POINTS_MAX: usize = 400;

/// Where things are in a drawing: time from the left, rates by their logarithm from below.
struct Axes {
    minutes: f64,
    /// Powers of ten.
    low: f64,
    high: f64,
}

impl Axes {
    fn of(tests: &[(&Test, &Outcome)]) -> Self {
        let mut minutes: f64 = 1.0;
        let (mut least, mut most) = (f64::INFINITY, 1.0_f64);
        for (test, outcome) in tests {
            let rates = test.published.rates.into_iter().flat_map(|rates| [rates.0, rates.1]);
            let curve = outcome.curve.iter().map(|point| point.iops);
            let ours = curve.chain([outcome.without]);
            for rate in rates.chain(ours).filter(|&rate| rate >= 1.0) {
                (least, most) = (least.min(rate), most.max(rate));
            }
            let end = outcome.curve.last().map_or(0, |point| point.at);
            minutes = minutes.max(end.max(test.published.warm_up.unwrap_or(0)) as f64 / MINUTE);
        }
        Self { minutes, low: least.log10().floor(), high: most.log10().ceil().max(1.0) }
    }

    fn x(&self, at: Nanos) -> f64 {
        LEFT + (at as f64 / MINUTE / self.minutes) * (WIDTH - LEFT - RIGHT)
    }

    fn y(&self, rate: f64) -> f64 {
        let share = (rate.max(1.0).log10() - self.low) / (self.high - self.low).max(1.0);
        HEIGHT - BOTTOM - share.clamp(0.0, 1.0) * (HEIGHT - BOTTOM - TOP)
    }

    fn draw(&self, svg: &mut String) {
        let right = WIDTH - RIGHT;
        for power in self.low as i32..=self.high as i32 {
            let (rate, y) = (10_f64.powi(power), self.y(10_f64.powi(power)));
            let _ = write!(
                svg,
                "<line x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{right}\" y2=\"{y:.1}\" stroke=\"#ddd\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{rate:.0}/s</text>",
                LEFT - 6.0,
                y + 4.0
            );
        }
        let step = [1.0, 2.0, 5.0, 10.0, 20.0, 60.0, 120.0, 240.0];
        let step = step.into_iter().find(|step| self.minutes / step <= 10.0).unwrap_or(600.0);
        let mut at = 0.0;
        while at <= self.minutes {
            let x = self.x((at * MINUTE) as Nanos);
            let _ = write!(
                svg,
                "<text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{at:.0} min</text>",
                HEIGHT - 10.0
            );
            at += step;
        }
    }
}

fn curve(svg: &mut String, axes: &Axes, outcome: &Outcome, colour: &str) {
    let step = outcome.curve.len().div_ceil(POINTS_MAX).max(1);
    let mut points = String::new();
    for part in outcome.curve.chunks(step) {
        let rate = part.iter().map(|point| point.iops).sum::<f64>() / part.len() as f64;
        let at = part[part.len() - 1].at;
        let _ = write!(points, "{:.1},{:.1} ", axes.x(at), axes.y(rate));
    }
    let _ = write!(
        svg,
        "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.5\"/>",
        points.trim_end()
    );
}

/// The paper's final rate, dashed, from its warm-up on.
fn published(svg: &mut String, axes: &Axes, test: &Test, colour: &str) {
    let Some((_, with)) = test.published.rates else { return };
    let (x, y) = (axes.x(test.published.warm_up.unwrap_or(0)), axes.y(with));
    let _ = write!(
        svg,
        "<line x1=\"{x:.1}\" y1=\"{y:.1}\" x2=\"{:.1}\" y2=\"{y:.1}\" stroke=\"{colour}\" \
         stroke-dasharray=\"5 4\"/>",
        WIDTH - RIGHT
    );
}

fn drawing(tests: &[(&Test, &Outcome)]) -> String {
    let axes = Axes::of(tests);
    let mut svg = page::drawing(WIDTH, HEIGHT);
    axes.draw(&mut svg);
    for (number, (test, outcome)) in tests.iter().enumerate() {
        let colour = COLOURS[number % COLOURS.len()];
        published(&mut svg, &axes, test, colour);
        curve(&mut svg, &axes, outcome, colour);
    }
    svg.push_str("</svg>");
    svg
}

/// Heads and cells of the table, which people read in a terminal, too.
pub fn table(tests: &[Played]) -> (Vec<&'static str>, Vec<Vec<String>>) {
    let head = vec![
        "test", "without", "model", "", "with", "ours", "factor", "ours", "warm-up", "ours",
        "verdict",
    ];
    let minutes = |warm_up: Option<Nanos>| {
        warm_up.map_or("-".to_owned(), |span| format!("{:.1} min", span as f64 / MINUTE))
    };
    let known = |figure: Option<f64>, digits: usize| {
        figure.map_or("-".to_owned(), |figure| format!("{figure:.digits$}"))
    };
    let line = |(test, played): &Played| {
        let published = &test.published;
        let (without, with) = published.rates.unzip();
        let ours = played.as_ref().ok();
        let deviation = without.zip(ours).map(|(paper, ours)| (ours.without / paper - 1.0) * 100.0);
        let warm_up = match ours {
            Some(ours) if ours.warm_up.is_none() && !test.prefilled => "never".to_owned(),
            ours => minutes(ours.and_then(|ours| ours.warm_up)),
        };
        vec![
            test.name.to_owned(),
            known(without, 0),
            known(ours.map(|ours| ours.without), 0),
            deviation.map_or("-".to_owned(), |percent| format!("{percent:+.0} %")),
            known(with, 0),
            known(ours.map(|ours| ours.with), 0),
            known(published.factor, 1),
            known(ours.map(Outcome::factor), 1),
            minutes(published.warm_up),
            warm_up,
            test.bar.judge(published, played).word().to_owned(),
        ]
    };
    (head, tests.iter().map(line).collect())
}

/// A line of the list below a drawing.
fn item(page: &mut String, test: &Test, colour: &str, text: &str) {
    let _ = write!(
        page,
        "<li><span style=\"color:{colour}\">&#9632;</span> {}: {} ({}), {}. Bar: {}. {}</li>",
        test.name,
        escaped(&test.what),
        test.source,
        escaped(&test.system.text()),
        escaped(&test.bar.text(&test.published)),
        escaped(text)
    );
}

fn section(page: &mut String, row: &str, tests: &[&Played]) {
    let played = tests.iter().filter_map(|(test, played)| Some((test, played.as_ref().ok()?)));
    let _ = write!(page, "<h2 id=\"{row}\">{row}</h2>{}<ul>", drawing(&played.collect::<Vec<_>>()));
    let mut colours = COLOURS.into_iter().cycle();
    for (test, played) in tests {
        match played {
            Ok(outcome) => {
                let text = format!(
                    "Served without the disks {:.1} %, {:.2} bytes to the SSDs per byte admitted, \
                     processor {:.0} % busy. The rate is that from {:.1} min on.",
                    outcome.hit_ratio * 100.0,
                    outcome.write_amplification,
                    outcome.cpu_share * 100.0,
                    outcome.counted_from as f64 / MINUTE
                );
                item(page, test, colours.next().unwrap_or_default(), &text);
            }
            Err(error) => item(page, test, "#b00020", &format!("FAILED: {error}")),
        }
    }
    page.push_str("</ul><p>Assumed:</p><ul>");
    for assumed in tests[0].0.assumed {
        let _ = write!(page, "<li>{}</li>", escaped(assumed));
    }
    page.push_str("</ul>");
}

/// The page of these tests, which were played at 1/`scale` of the papers' sizes.
pub fn page(tests: &[Played], scale: u64) -> String {
    let sizes = match scale {
        1 => "The papers' sizes.".to_owned(),
        _ => format!("1/{scale} of the papers' sizes, disks included; times are scaled back."),
    };
    let mut page = page::begin("Papers, replayed");
    let _ = write!(
        page,
        "<p>The engine in virtual time on models of the papers' disks and SSDs. {sizes} Requests per \
         second; the model's disks without a cache are always those of the paper. Solid: ours. Dashed: the \
         paper's rate, from its warm-up on.</p>"
    );
    let (head, lines) = table(tests);
    page::table(&mut page, &head, &lines);
    for tests in tests.chunk_by(|one, two| one.0.row == two.0.row) {
        let tests: Vec<_> = tests.iter().collect();
        section(&mut page, tests[0].0.row, &tests);
    }
    page::end(page)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::papers::{Point, qsan};

    #[test]
    fn a_test_that_failed_stands_beside_the_others() {
        let mut tests = qsan::tests().into_iter();
        let (one, two) = (tests.next().unwrap(), tests.next().unwrap());
        let outcome = Outcome {
            without: 5_000.0,
            with: 250_000.0,
            warm_up: None,
            counted_from: 0,
            curve: vec![Point { at: 1, iops: 250_000.0 }],
            hit_ratio: 1.0,
            write_amplification: 1.0,
            cpu_share: 0.5,
            requests: 1,
        };
        let played = [(one, Err("WRONG DATA: <block> 7".to_owned())), (two, Ok(outcome))];
        let (_, lines) = table(&played);
        assert_eq!(lines[0][5..], ["-", "26.9", "-", "7.5 min", "-", "failed"].map(str::to_owned));
        let ours = ["250000", "42.6", "50.0", "7.0 min", "never", "missed"];
        assert_eq!(lines[1][5..], ours.map(str::to_owned));
        let page = page(&played, 16);
        assert!(page.contains("FAILED: WRONG DATA: &lt;block&gt; 7"), "{page}");
        assert_eq!(page.matches("<polyline").count(), 1);
    }
}
