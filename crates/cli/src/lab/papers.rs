//! `forebay lab papers`: published measurements, replayed by the engine on modelled devices.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use forebay_lab::papers::{self, Outcome, Played, SCALE_DEFAULT, SCALE_MAX, Test, Verdict, html};
use serde_json::{Value, json};

use super::clock;
use crate::Result;
use crate::admin::table;
use crate::failure::Failure;
use crate::output::Output;
use crate::progress::Progress;
use crate::text::{self, left, say, tell, thousands, whole};

#[derive(Args)]
pub(crate) struct Options {
    /// Rows to play (qsan-1), or single tests of them (qsan-1/4); without any, all
    #[arg(value_name = "ROW")]
    rows: Vec<String>,
    /// Play 1/N of the papers' sizes; times are scaled back
    #[arg(long, value_name = "N", default_value_t = SCALE_DEFAULT,
        value_parser = whole::<u64>(1..=SCALE_MAX), conflicts_with = "full")]
    scale: u64,
    /// Play the papers' sizes: hours
    #[arg(long)]
    full: bool,
    /// Tests at a time
    #[arg(long, value_name = "N", default_value_t = 2,
        value_parser = whole::<u64>(1..=64))]
    jobs: u64,
    /// Write the table and all curves to this file, as a page by itself
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
}

impl Options {
    pub(super) fn run(&self) -> Result<()> {
        let tests = self.tests()?;
        let scale = if self.full { 1 } else { self.scale };
        // Whoever names a file that cannot be written hears so now, not after a quarter of an hour.
        let page = self.page()?;
        let outcomes = self.play(&tests, scale);
        self.report(&tests.into_iter().zip(outcomes).collect::<Vec<_>>(), scale, page)
    }

    fn page(&self) -> Result<Option<Output>> {
        let hint = "name a file in a directory that you can write to, and that has room";
        self.html.as_deref().map(|path| Output::open(path, hint)).transpose()
    }

    /// Shows everything that was played.
    ///
    /// # Errors
    /// If a test failed, after the others were shown, or the page cannot be written.
    fn report(&self, played: &[Played], scale: u64, page: Option<Output>) -> Result<()> {
        if self.json {
            let tests: Vec<_> = played.iter().map(in_json).collect();
            say(json!({ "schema": 1, "scale": scale, "tests": tests }));
        } else {
            print(played, scale);
        }
        if let Some(page) = page {
            let path = page.path().display().to_string();
            page.write(&html::page(played, scale))?;
            tell(format_args!("the curves are in {path}"));
        }
        let failed: Vec<_> = played
            .iter()
            .filter_map(|(test, played)| Some(format!("{}: {}", test.name, played.as_ref().err()?)))
            .collect();
        if failed.is_empty() {
            return Ok(());
        }
        let what =
            format!("{} of {} tests failed: {}", failed.len(), played.len(), failed.join("; "));
        Err(Failure::new(what)
            .hint("this is a fault of Forebay's, as it comes the same every time; the other results stand"))
    }

    /// What was asked for, in the usual order.
    fn tests(&self) -> Result<Vec<Test>> {
        let all = papers::all();
        let names = || all.iter().flat_map(|test| [test.row, test.name]);
        for wanted in &self.rows {
            if names().any(|name| name == wanted) {
                continue;
            }
            let (nearest, rows) = (text::did_you_mean(wanted, names()), papers::rows().join(", "));
            return Err(Failure::new(format!("no row \"{wanted}\""))
                .hint(format!("{nearest}The rows are {rows}")));
        }
        let is_wanted = |test: &Test| {
            self.rows.is_empty() || self.rows.iter().any(|row| row == test.row || row == test.name)
        };
        Ok(all.into_iter().filter(is_wanted).collect())
    }

    fn play(&self, tests: &[Test], scale: u64) -> Vec<std::result::Result<Outcome, String>> {
        let work: u64 = tests.iter().map(Test::work).sum();
        let (progress, elapsed) = (Progress::watch("playing"), clock());
        let (mut done, mut ended) = (0, 0);
        let about = |share: f64, elapsed: Duration| {
            left((elapsed.as_secs_f64() * (1.0 - share) / share.max(1e-9)).ceil() as u64)
        };
        let outcomes = papers::play_all(tests, scale, self.jobs as usize, |number| {
            ended += 1;
            done += tests[number].work();
            let (took, count) = (elapsed(), tests.len());
            let rest = about(done as f64 / work.max(1) as f64, took);
            let name = tests[number].name;
            let rest = if ended < count { format!("; about {rest} left") } else { String::new() };
            let message = format!("{name} has ended, {ended} of {count}{rest}");
            progress.tell(took.as_nanos() as u64, &message);
        });
        progress.finish();
        outcomes
    }
}

fn print(played: &[Played], scale: u64) {
    let sizes = if scale == 1 { "the papers' sizes".to_owned() } else { format!("1/{scale}") };
    say(format_args!(
        "Requests per second; first the paper's figure, then ours. Sizes: {sizes}.\n"
    ));
    let (head, lines) = html::table(played);
    say(table(&head, &lines));
    for tests in
        played.chunk_by(|one, two| one.0.source.split(' ').next() == two.0.source.split(' ').next())
    {
        say(format_args!("\n{}: assumed", tests[0].0.source.split(' ').next().unwrap_or_default()));
        tests[0].0.assumed.iter().for_each(|assumed| say(format_args!("- {assumed}")));
    }
    for (test, outcome) in played {
        match (test.bar.judge(&test.published, outcome), outcome) {
            (Verdict::Missed, _) => say(format_args!("\n{} missed: {}", test.name, test.cause)),
            (_, Err(error)) => say(format_args!("\n{} failed: {error}", test.name)),
            _ => (),
        }
    }
    let outcomes = played.iter().filter_map(|(_, outcome)| outcome.as_ref().ok());
    let requests: u64 = outcomes.map(|outcome| outcome.requests).sum();
    tell(format_args!("{} requests played", thousands(requests)));
}

fn in_json((test, played): &Played) -> Value {
    let seconds = |nanos: Option<u64>| nanos.map(|nanos| nanos as f64 / 1e9);
    let curve = |outcome: &Outcome| -> Vec<_> {
        let points = outcome.curve.iter();
        points.map(|point| json!([seconds(Some(point.at)), point.iops])).collect()
    };
    let ours = |outcome: &Outcome| {
        json!({
            "iops_without": outcome.without, "iops_with": outcome.with,
            "factor": outcome.factor(), "warm_up_s": seconds(outcome.warm_up),
            "counted_from_s": seconds(Some(outcome.counted_from)),
            "hit_ratio": outcome.hit_ratio, "ssd_bytes_per_byte_admitted": outcome.write_amplification,
            "cpu_share": outcome.cpu_share, "requests": outcome.requests,
        })
    };
    let outcome = played.as_ref().ok();
    json!({
        "row": test.row, "test": test.name, "what": test.what, "source": test.source,
        "disks": test.system.text(), "assumed": test.assumed,
        "paper": {
            "iops_without": test.published.rates.map(|rates| rates.0),
            "iops_with": test.published.rates.map(|rates| rates.1),
            "factor": test.published.factor, "warm_up_s": seconds(test.published.warm_up),
        },
        "ours": outcome.map(ours),
        "bar": test.bar.text(&test.published),
        "verdict": test.bar.judge(&test.published, played).word(),
        "error": played.as_ref().err(),
        "curve": outcome.map(curve).unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_failed_is_shown_beside_what_did_not_and_fails_the_command() {
        let path = std::env::temp_dir().join(format!("forebay-papers-{}", std::process::id()));
        let options = Options {
            rows: vec!["qsan-1/2".to_owned(), "qsan-1/4".to_owned()],
            scale: 128,
            full: false,
            jobs: 1,
            html: Some(path.clone()),
            json: true,
        };
        let mut tests = options.tests().unwrap();
        // No pool is as small.
        tests[1].cache.ssd_bytes = 0;
        let outcomes = options.play(&tests, 128);
        let played: Vec<Played> = tests.into_iter().zip(outcomes).collect();
        let shown = played.iter().map(in_json).collect::<Vec<_>>();
        assert_eq!((&shown[0]["verdict"], &shown[1]["verdict"]), (&"met".into(), &"failed".into()));
        assert!(shown[1]["error"].is_string() && shown[1]["ours"].is_null());
        let error = options.report(&played, 128, options.page().unwrap()).unwrap_err();
        assert!(error.what().contains("1 of 2 tests failed: qsan-1/4: "), "{}", error.what());
        let page = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert!(page.contains("FAILED") && page.contains("<polyline"), "{page}");
    }
}
