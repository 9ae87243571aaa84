//! The loads that people know by name, and the job files that fio runs for them.
//!
//! Who flushes waits for it, as a database's or sysbench's thread does. One job with a queue would send its flush
//! beside its own other writes, which that flush need not cover. So requests in flight are writers with a queue of
//! one then, each a job of its own. A write that is durable by itself (O_DSYNC) is no way: fio's engine for NBD
//! has none, and both sides are to do the same.

use std::fmt::Write;

use crate::text;

/// A load as it is known.
#[derive(PartialEq)]
pub(crate) struct Profile {
    /// On the command line.
    pub(crate) name: &'static str,
    /// What it does, and who says so; behind a semicolon what nobody says and we assume.
    pub(crate) what: &'static str,
    /// Reads of all requests.
    pub(crate) read_percent: u8,
    /// Requests at random places of all requests.
    pub(crate) random_percent: u8,
    blocks: Blocks,
    /// Requests in flight.
    pub(crate) depth: u32,
    /// A flush after so many writes; 0: none.
    flush_every: u32,
}

/// Sizes of requests, as fio has them.
#[derive(Clone, Copy, PartialEq)]
enum Blocks {
    /// All of one size.
    One(&'static str),
    /// Sizes with their shares in percent; the smallest one.
    Shares(&'static str, &'static str),
    /// Reads, writes; the smaller one.
    Two(&'static str, &'static str),
}

/// What most of the profiles have in common.
const MIXED_8K: Profile = Profile {
    name: "",
    what: "",
    read_percent: 67,
    random_percent: 100,
    blocks: Blocks::One("8k"),
    depth: 32,
    flush_every: 0,
};

const FOUR_K: Profile = Profile { blocks: Blocks::One("4k"), ..MIXED_8K };

/// All of them, in the order in which they are listed.
pub(crate) const PROFILES: [Profile; 18] = [
    Profile { name: "sql", what: "8K, 67 % reads, random: a database", ..MIXED_8K },
    Profile {
        name: "oltp",
        what: "4K, 8K and 32K, 70 % reads, random; a third of each size",
        read_percent: 70,
        blocks: Blocks::Shares("4k/34:8k/33:32k/33", "4k"),
        ..MIXED_8K
    },
    Profile {
        name: "fileserver",
        what: "0.5K to 64K (most of them 4K), 80 % reads, random",
        read_percent: 80,
        blocks: Blocks::Shares("512/10:1k/5:2k/5:4k/60:8k/2:16k/4:32k/4:64k/10", "512"),
        ..MIXED_8K
    },
    Profile {
        name: "web",
        what: "0.5K to 512K, reads, random",
        read_percent: 100,
        blocks: Blocks::Shares(
            "512/22:1k/15:2k/8:4k/23:8k/15:16k/2:32k/6:64k/7:128k/1:512k/1",
            "512",
        ),
        ..MIXED_8K
    },
    Profile {
        name: "workstation",
        what: "8K, 80 % reads, 80 % random",
        read_percent: 80,
        random_percent: 80,
        ..MIXED_8K
    },
    Profile {
        name: "mail",
        what: "32K, 68 % reads, random",
        read_percent: 68,
        blocks: Blocks::One("32k"),
        ..MIXED_8K
    },
    Profile {
        name: "vdi-steady",
        what: "4K and 8K, 30 % reads, random; half of each size",
        read_percent: 30,
        blocks: Blocks::Shares("4k/50:8k/50", "4k"),
        ..MIXED_8K
    },
    Profile {
        name: "vdi-boot",
        what: "reads of 32K, writes of 5K, 87 % of the bytes are read; random",
        // 87/32 reads to 13/5 writes.
        read_percent: 51,
        blocks: Blocks::Two("32k", "5k"),
        ..MIXED_8K
    },
    Profile {
        name: "synology-read",
        what: "4K, reads, random (Synology's tests A and B); 128 in flight",
        read_percent: 100,
        depth: 128,
        ..FOUR_K
    },
    Profile {
        name: "synology-write",
        what: "4K, writes, random (Synology's tests A and B); 128 in flight",
        read_percent: 0,
        depth: 128,
        ..FOUR_K
    },
    Profile {
        name: "synology-mix",
        what: "4K, 70 % reads, random (Synology's tests A and B); 128 in flight",
        read_percent: 70,
        depth: 128,
        ..FOUR_K
    },
    Profile {
        name: "qsan-read",
        what: "4K, reads, random, 128 in flight (QSAN's test cases 1 and 4)",
        read_percent: 100,
        depth: 128,
        ..FOUR_K
    },
    Profile {
        name: "qsan-write",
        what: "4K, writes, random, 128 in flight (QSAN's test cases 2 and 5)",
        read_percent: 0,
        depth: 128,
        ..FOUR_K
    },
    Profile {
        name: "qsan-database",
        what: "8K, 67 % reads, random, 128 in flight (QSAN's test case 3)",
        depth: 128,
        ..MIXED_8K
    },
    Profile {
        name: "sysbench-rndrd",
        what: "16K, reads, random (sysbench's fileio); 32 in flight",
        read_percent: 100,
        blocks: Blocks::One("16k"),
        ..MIXED_8K
    },
    Profile {
        name: "sysbench-rndwr",
        what: "16K, writes, random, a flush after each 100 (sysbench's fileio); 32 in flight",
        read_percent: 0,
        blocks: Blocks::One("16k"),
        flush_every: 100,
        ..MIXED_8K
    },
    Profile {
        name: "sequential",
        what: "1M, reads, one after the other; 8 in flight",
        read_percent: 100,
        random_percent: 0,
        blocks: Blocks::One("1m"),
        depth: 8,
        ..MIXED_8K
    },
    Profile {
        name: "sequential-write",
        what: "1M, writes, one after the other; 8 in flight",
        read_percent: 0,
        random_percent: 0,
        blocks: Blocks::One("1m"),
        depth: 8,
        ..MIXED_8K
    },
];

/// The list for the end of a help page.
pub(crate) fn help() -> String {
    let line = |profile: &Profile| {
        let head = format!("  {:<17} ", profile.name);
        crate::text::wrapped(crate::text::COLUMNS, &head, head.len(), profile.what)
    };
    let lines: Vec<_> = PROFILES.iter().map(line).collect();
    format!(
        "Profiles; behind a semicolon stands what their sources leave open:\n{}",
        lines.join("\n")
    )
}

/// The profile of this name.
///
/// # Errors
/// With the nearest name there is.
pub(crate) fn parse(name: &str) -> Result<&'static Profile, String> {
    let found = PROFILES.iter().find(|profile| profile.name == name);
    found.ok_or_else(|| {
        let names: Vec<_> = PROFILES.iter().map(|profile| profile.name).collect();
        let nearest = text::did_you_mean(name, names.iter().copied());
        format!("no such profile; {nearest}there are {}", names.join(", "))
    })
}

/// Which places are asked for how often.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Distribution {
    Uniform,
    /// With its exponent.
    Zipf(f64),
    /// With its power.
    Pareto(f64),
}

/// A distribution as it is typed: `uniform`, `zipf:1.2`, `pareto:0.2`.
///
/// # Errors
/// A sentence that says what is wrong.
pub(crate) fn parse_distribution(text: &str) -> Result<Distribution, String> {
    let (name, value) =
        text.split_once(':').map_or((text, None), |(name, rest)| (name, Some(rest)));
    let number = |usual: f64, low: f64, high: f64| match value.map(str::parse::<f64>) {
        None => Ok(usual),
        Some(Ok(number)) if number > low && number < high && number != 1.0 => Ok(number),
        Some(_) => Err(format!("{name} takes a number between {low} and {high}, but not 1")),
    };
    match name {
        "uniform" if value.is_none() => Ok(Distribution::Uniform),
        "zipf" => number(1.2, 0.0, 5.0).map(Distribution::Zipf),
        "pareto" => number(0.2, 0.0, 1.0).map(Distribution::Pareto),
        _ => {
            let nearest = text::did_you_mean(name, ["uniform", "zipf", "pareto"].into_iter());
            Err(format!("{nearest}a distribution is uniform, zipf:THETA or pareto:POWER"))
        }
    }
}

impl Distribution {
    /// As it is typed.
    pub(crate) fn text(self) -> String {
        match self {
            Distribution::Uniform => "uniform".to_owned(),
            Distribution::Zipf(theta) => format!("zipf:{theta}"),
            Distribution::Pareto(power) => format!("pareto:{power}"),
        }
    }
}

/// What fio asks for.
#[derive(Clone, Copy)]
pub(crate) enum Target<'a> {
    /// A file of this path, past the page cache.
    File(&'a str),
    /// An export.
    Nbd(&'a str),
}

/// The share of a writer in a sequential load, in bytes, is a multiple of this: one request.
const SHARE_STEP_BYTES: u64 = 1 << 20;

/// What a user may change of every profile.
#[derive(Clone, Copy)]
pub(crate) struct Terms {
    pub(crate) distribution: Distribution,
    /// A flush after every write.
    pub(crate) sync: bool,
    /// Requests in flight instead of the profile's.
    pub(crate) depth: Option<u32>,
}

/// A stretch of a profile's load.
#[derive(Clone, Copy)]
pub(crate) struct Stretch {
    /// Bytes from the target's beginning on.
    pub(crate) size_bytes: u64,
    /// How long it runs before it is measured.
    pub(crate) ramp_ms: u64,
    pub(crate) span_ms: u64,
    /// Another one for each stretch: the same places in the same order would all be hits.
    pub(crate) seed: u32,
}

impl Stretch {
    /// How long it runs at all, in milliseconds.
    pub(crate) fn whole_ms(&self) -> u64 {
        self.ramp_ms + self.span_ms
    }
}

/// Milliseconds that a point of fio's logs stands for.
pub(crate) const POINT_MS: u64 = 500;

impl Profile {
    /// Whether it writes.
    pub(crate) fn writes(&self) -> bool {
        self.read_percent < 100
    }

    fn kind(&self) -> &'static str {
        match (self.random_percent, self.read_percent) {
            (0, 100) => "read",
            (0, 0) => "write",
            (0, _) => "rw",
            (_, 100) => "randread",
            (_, 0) => "randwrite",
            _ => "randrw",
        }
    }

    /// A flush after so many writes; 0: none.
    fn flush_every(&self, terms: Terms) -> u32 {
        match self.writes() {
            true if terms.sync => 1,
            true => self.flush_every,
            false => 0,
        }
    }

    /// Requests in flight.
    pub(crate) fn depth(&self, terms: Terms) -> u32 {
        terms.depth.unwrap_or(self.depth)
    }

    /// How many write and wait for their flushes, each with one request in flight; `None` where nobody flushes.
    pub(crate) fn writers(&self, terms: Terms, size_bytes: u64) -> Option<u32> {
        let depth = self.depth(terms);
        // Each has its own part of what is written in order.
        let parts = u32::try_from(size_bytes / SHARE_STEP_BYTES).unwrap_or(u32::MAX).max(1);
        let most = if self.random_percent == 0 { parts } else { u32::MAX };
        (self.flush_every(terms) > 0).then(|| depth.min(most))
    }

    /// fio's job file; its logs begin with `name`.
    pub(crate) fn job(&self, name: &str, target: Target, terms: Terms, stretch: Stretch) -> String {
        let mut job = String::from("[global]\n");
        let mut add = |key: &str, value: &dyn std::fmt::Display| {
            let _ = writeln!(job, "{key}={value}");
        };
        match target {
            Target::File(path) => {
                add("ioengine", &"io_uring");
                add("direct", &1);
                add("filename", &path);
                // The file was written in full, and stays as it is.
                add("fallocate", &"none");
                add("invalidate", &0);
            }
            Target::Nbd(uri) => {
                add("ioengine", &"nbd");
                add("uri", &uri);
            }
        }
        // A job that is a process of its own outlives fio if that is killed.
        add("thread", &1);
        let writers = self.writers(terms, stretch.size_bytes);
        match writers {
            Some(writers) if self.random_percent == 0 => {
                let steps = stretch.size_bytes / SHARE_STEP_BYTES / u64::from(writers);
                add("size", &(steps * SHARE_STEP_BYTES));
                add("offset_increment", &(steps * SHARE_STEP_BYTES));
            }
            _ => add("size", &stretch.size_bytes),
        }
        add("rw", &self.kind());
        if (1..100).contains(&self.read_percent) {
            add("rwmixread", &self.read_percent);
        }
        self.add_places(&mut add, terms.distribution);
        match writers {
            None => add("iodepth", &self.depth(terms)),
            Some(writers) => {
                add("iodepth", &1);
                add("numjobs", &writers);
                add("group_reporting", &1);
                // The nbd engine knows no fdatasync; its fsync is the protocol's FLUSH.
                let key = if matches!(target, Target::File(_)) { "fdatasync" } else { "fsync" };
                add(key, &self.flush_every(terms));
            }
        }
        add("randseed", &stretch.seed);
        add("time_based", &1);
        if stretch.ramp_ms > 0 {
            add("ramp_time", &format_args!("{}ms", stretch.ramp_ms));
        }
        add("runtime", &format_args!("{}ms", stretch.span_ms));
        add("log_avg_msec", &POINT_MS);
        add("write_iops_log", &name);
        match writers {
            None => {
                add("write_lat_log", &name);
                add("per_job_logs", &0);
            }
            // fio logs latencies without flushes: what a writer waits for follows from their rate.
            Some(_) => add("per_job_logs", &1),
        }
        let _ = writeln!(job, "\n[{}]", self.name);
        job
    }

    /// Sizes of requests, and where they go.
    fn add_places(
        &self,
        add: &mut dyn FnMut(&str, &dyn std::fmt::Display),
        distribution: Distribution,
    ) {
        let smallest = match self.blocks {
            Blocks::One(size) => {
                add("bs", &size);
                None
            }
            Blocks::Shares(shares, smallest) => {
                add("bssplit", &shares);
                Some(smallest)
            }
            Blocks::Two(reads, writes) => {
                add("bs", &format_args!("{reads},{writes}"));
                Some(writes)
            }
        };
        if self.random_percent == 0 {
            return;
        }
        if self.random_percent < 100 {
            add("percentage_random", &self.random_percent);
        }
        // Places are drawn anew each time: without this no block comes twice before all came once.
        add("norandommap", &1);
        // A file system's blocks. With the other distributions fio counts places in units of the
        // smallest request, whatever the alignment, and would leave the target.
        let align = match distribution {
            Distribution::Uniform => "4k",
            _ => smallest.unwrap_or_default(),
        };
        if smallest.is_some() {
            add("blockalign", &align);
        }
        // The centre stands still: by itself it would be another one with every seed.
        match distribution {
            Distribution::Uniform => {}
            other => add("random_distribution", &format_args!("{}:0.5", other.text())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNIFORM: Terms = Terms { distribution: Distribution::Uniform, sync: false, depth: None };
    const SECOND: Stretch = Stretch { size_bytes: 16 << 20, ramp_ms: 0, span_ms: 1000, seed: 3 };

    fn job(name: &str, terms: Terms) -> String {
        parse(name).unwrap().job("log", Target::Nbd("nbd://localhost"), terms, SECOND)
    }

    #[test]
    fn shares_of_sizes_make_a_whole_and_names_differ() {
        for profile in &PROFILES {
            if let Blocks::Shares(shares, smallest) = profile.blocks {
                let percent: u32 = shares
                    .split(':')
                    .map(|share| share.split_once('/').unwrap().1.parse::<u32>().unwrap())
                    .sum();
                assert_eq!(percent, 100, "{}", profile.name);
                assert!(shares.starts_with(&format!("{smallest}/")), "{}", profile.name);
            }
            let same = PROFILES.iter().filter(|other| other.name == profile.name).count();
            assert_eq!(same, 1, "{}", profile.name);
        }
        let meant = "no such profile; did you mean sql? there are ";
        assert!(parse("sqll").is_err_and(|why| why.starts_with(meant)));
        assert!(
            parse_distribution("zpif:1.2").is_err_and(|why| why.starts_with("did you mean zipf? "))
        );
    }

    #[test]
    fn a_job_says_what_its_profile_is() {
        let text = job("sql", UNIFORM);
        for line in ["rw=randrw", "rwmixread=67", "bs=8k", "iodepth=32", "randseed=3"] {
            assert!(text.lines().any(|it| it == line), "{line}: {text}");
        }
        assert!(!text.contains("sync") && !text.contains("random_distribution"), "{text}");
        let text = job("web", Terms { sync: true, depth: Some(4), ..UNIFORM });
        assert!(text.contains("rw=randread\n") && text.contains("iodepth=4\n"), "{text}");
        assert!(!text.contains("sync"), "nothing is written: {text}");
        assert!(job("sequential", UNIFORM).contains("rw=read\n") && !text.contains("ramp_time"));
        let ramp = Stretch { ramp_ms: 200, ..SECOND };
        let text = parse("sql").unwrap().job("log", Target::File("/f"), UNIFORM, ramp);
        assert!(text.contains("\nramp_time=200ms\nruntime=1000ms\n"), "{text}");
        assert_eq!(ramp.whole_ms(), 1200);
    }

    #[test]
    fn who_flushes_waits_for_it() {
        let sync = Terms { sync: true, ..UNIFORM };
        let writers = |text: &str, count: u32| {
            let count = format!("\nnumjobs={count}\n");
            ["\niodepth=1\n", "\ngroup_reporting=1\n", "\nper_job_logs=1\n", count.as_str()]
                .iter()
                .all(|line| text.contains(line))
        };
        let text = job("mail", sync);
        assert!(writers(&text, 32) && text.contains("\nfsync=1\n"), "{text}");
        let text = parse("mail").unwrap().job("log", Target::File("/f"), sync, SECOND);
        assert!(writers(&text, 32) && text.contains("\nfdatasync=1\n"), "{text}");
        let text = job("sysbench-rndwr", Terms { depth: Some(5), ..UNIFORM });
        assert!(writers(&text, 5) && text.contains("\nfsync=100\n"), "{text}");
        assert!(!job("mail", UNIFORM).contains("numjobs"));
        assert_eq!(parse("web").unwrap().writers(sync, 1 << 30), None, "it only reads");
    }

    #[test]
    fn writers_in_order_have_a_part_each() {
        let sync = |depth| Terms { sync: true, depth, ..UNIFORM };
        let text = job("sequential-write", sync(Some(3)));
        let part = 5 << 20;
        assert!(text.contains(&format!("\nsize={part}\noffset_increment={part}\n")), "{text}");
        // No part is smaller than a request.
        let text = job("sequential-write", sync(Some(64)));
        assert!(text.contains("\nnumjobs=16\n") && text.contains("\nsize=1048576\n"), "{text}");
        assert!(job("synology-write", sync(Some(64))).contains("\nnumjobs=64\n"));
    }

    #[test]
    fn places_of_a_distribution_stay_on_the_target() {
        let zipf = Terms { distribution: Distribution::Zipf(1.2), ..UNIFORM };
        let text = job("vdi-boot", zipf);
        assert!(
            text.contains("blockalign=5k\n") && text.contains("random_distribution=zipf:1.2:0.5\n")
        );
        assert!(job("vdi-boot", UNIFORM).contains("blockalign=4k\n"));
        assert!(!job("sql", zipf).contains("blockalign"));
    }

    #[test]
    fn distributions_are_read_and_written() {
        for text in ["uniform", "zipf:0.9", "pareto:0.3"] {
            assert_eq!(parse_distribution(text).unwrap().text(), text);
        }
        assert_eq!(parse_distribution("zipf"), Ok(Distribution::Zipf(1.2)));
        for text in
            ["", "uniform:1", "zipf:", "zipf:1", "zipf:x", "pareto:1.5", "normal", "zipf:NaN"]
        {
            assert!(parse_distribution(text).is_err(), "{text}");
        }
    }
}
