//! `forebay explain`: what the codes of events, errors and states mean.

use super::codes::{CODES, Code};
use super::say_json;
use crate::Result;
use crate::failure::Failure;
use crate::text::{self, prose, say};
use clap::Args;
use forebay_control::api::Many;

/// See the head of the file.
#[derive(Args)]
pub(crate) struct Options {
    /// A code, as `forebay events`, an error or a state has it; without it all are listed
    code: Option<String>,
    /// Print the answer as JSON, with the version of its form as `schema`
    #[arg(long, display_order = 901)]
    json: bool,
}

/// Runs the command.
pub(crate) fn run(options: &Options) -> Result<()> {
    let wanted = match &options.code {
        Some(code) => vec![find(code)?],
        None => CODES.iter().collect(),
    };
    if options.json {
        say_json(&Many::of(wanted));
    } else if options.code.is_none() {
        wanted.iter().for_each(|known| say(known.code));
    } else {
        for Code { code, means, risk, action } in wanted {
            say(code);
            say(prose("  means   ", means));
            say(prose("  risk    ", risk));
            say(prose("  action  ", action));
        }
    }
    Ok(())
}

/// The row of a code.
fn find(wanted: &str) -> Result<&'static Code> {
    CODES.iter().find(|known| known.code == wanted).ok_or_else(|| {
        // Codes are in small letters and have hyphens.
        let plain = wanted.to_lowercase().replace('_', "-");
        let nearest = text::did_you_mean(&plain, CODES.iter().map(|known| known.code));
        Failure::new(format!("there is no code \"{wanted}\""))
            .hint(format!("{nearest}`forebay explain` lists all"))
    })
}

#[cfg(test)]
mod tests {
    use super::{CODES, find};
    use forebay_control::{api, error};
    use forebay_engine::EventKind;
    use serde_json::json;

    #[test]
    fn a_code_that_is_like_one_is_known_again_and_nothing_is_guessed() {
        let hint = |wanted: &str| find(wanted).err().unwrap().hint_text().to_owned();
        for like in ["ORIGIN-MISSING", "origin_missing", "orign-missing", "Origin-mis"] {
            assert!(hint(like).starts_with("did you mean origin-missing? "), "{}", hint(like));
        }
        for unlike in ["nope", "x", "everything"] {
            assert_eq!(hint(unlike), "`forebay explain` lists all", "{unlike}");
        }
    }

    #[test]
    fn every_error_code_is_explained_with_its_status() {
        for (_, status, name) in error::CODES {
            let explained = CODES.iter().find(|known| known.code == name);
            let is_right = explained.is_some_and(|known| {
                known.means.contains(&status.to_string()) || name == "needs-decision"
            });
            assert!(is_right, "{name}");
        }
    }

    #[test]
    fn every_kind_of_a_pools_events_is_explained_under_a_code_of_its_own() {
        let mut codes: Vec<_> = EventKind::ALL.iter().map(|kind| kind.code()).collect();
        for code in &codes {
            assert!(CODES.iter().any(|known| known.code == *code), "{code}");
        }
        codes.sort_unstable();
        codes.dedup();
        assert_eq!(codes.len(), EventKind::ALL.len());
    }

    #[test]
    fn every_state_is_explained() {
        use api::{HealthVerdict as Health, MemberState as Member, PoolHealth, PoolState as Pool};
        use api::{SpareState as Spare, VolumeState as Volume};
        let words = [
            json!([Pool::Online, Pool::Degraded, Pool::Rebuilding, Pool::Protecting]),
            json!([Pool::Protected, Pool::Latched, Pool::Waiting, Pool::NeedsDecision]),
            json!([Pool::HeldElsewhere, Pool::LeaseLost, Pool::Failed, Pool::Exported]),
            json!([Pool::Bypassed, Volume::Bypassed, Volume::Withheld]),
            json!([PoolHealth::Good, PoolHealth::Degraded, PoolHealth::Failed]),
            json!([Volume::Online, Volume::OriginMissing, Volume::OriginRefused]),
            json!([Volume::OriginFailed, Volume::Offline, Volume::Planned]),
            json!([Member::Present, Member::Flushing, Member::Missing, Member::Lost]),
            json!([Spare::Ready, Spare::Missing, Spare::Failed]),
            json!([Health::Unknown, Health::Good, Health::Warning, Health::Failing]),
        ];
        for word in words.iter().flat_map(|words| words.as_array().unwrap()) {
            assert!(CODES.iter().any(|known| word == known.code), "{word}");
        }
    }

    #[test]
    fn every_critical_code_is_explained() {
        for code in crate::daemon::journal::CRITICAL {
            assert!(CODES.iter().any(|known| known.code == code), "{code}");
        }
    }

    /// What a source says is quoted, of the form of a code.
    fn codes_in(source: &str) -> Vec<&str> {
        let quoted = source.split('"').skip(1).step_by(2);
        let is_code =
            |it: &&str| it.contains('-') && it.chars().all(|c| c.is_ascii_lowercase() || c == '-');
        quoted.filter(is_code).collect()
    }

    /// The codes that calls of the journal in a source note: the first argument, also if it is on the next line,
    /// or, where that is `code`, what this was set to before.
    fn noted_in(source: &str) -> Vec<&str> {
        let mut noted = Vec::new();
        for call in ["journal.note(", "journal.warn("] {
            for (at, _) in source.match_indices(call) {
                let rest = source[at + call.len()..].trim_start();
                if let Some(literal) = rest.strip_prefix('"') {
                    noted.push(literal.split('"').next().unwrap_or_default());
                    continue;
                }
                assert!(
                    rest.starts_with("code,"),
                    "who can read {}?",
                    rest.lines().next().unwrap()
                );
                let before = &source[..at];
                let set = before.rfind("let code =").or(before.rfind("let (code,")).unwrap();
                noted.extend(codes_in(&before[set..]));
            }
        }
        noted
    }

    #[test]
    fn every_code_that_the_daemon_notes_is_explained() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/daemon");
        let mut calls = 0;
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let whole = std::fs::read_to_string(&path).unwrap();
            let (source, _) = whole.split_once("#[cfg(test)]").unwrap_or((&whole, ""));
            let noted = noted_in(source);
            for code in &noted {
                let is_known = CODES.iter().any(|known| known.code == *code);
                assert!(is_known, "{}: {code}", path.display());
            }
            calls += source.matches("journal.note(").count();
            calls += source.matches("journal.warn(").count();
        }
        assert!(calls >= 45, "{calls}");
    }

    #[test]
    fn calls_of_the_journal_are_found_however_they_are_broken() {
        let source = "journal.note(\n    \"a-b\", x);\n\
                      let code = match it { A => \"c-d\", _ => \"e-f\" };\n\
                      self.journal.warn(code, x, \"Not a code\"); journal.warn(\"g\", x);";
        assert_eq!(noted_in(source), ["a-b", "c-d", "e-f", "g"]);
    }
}
