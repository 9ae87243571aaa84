//! What is written about the command line is what the command line is.

use std::path::{Path, PathBuf};

use crate::common::routes::{plans, routes};
use crate::common::{Dir, commands, forebay, run, stderr};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn reference() -> String {
    std::fs::read_to_string(root().join("docs/user/reference.md")).unwrap()
}

#[test]
fn the_reference_is_written_from_the_definitions() {
    let dir = Dir::new("reference");
    let copy = dir.path("reference.md");
    std::fs::write(&copy, reference()).unwrap();
    let output = run(forebay().args(["dev", "reference"]).arg(&copy));
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(
        std::fs::read_to_string(&copy).unwrap() == reference(),
        "docs/user/reference.md is stale; renew it: \
         `cargo run -p forebay-cli -- dev reference docs/user/reference.md`"
    );
    std::fs::write(&copy, "no place for anything").unwrap();
    let output = run(forebay().args(["dev", "reference"]).arg(&copy));
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("hint: write `<!-- exit codes"), "{}", stderr(&output));
}

#[test]
fn the_reference_has_every_address_of_the_api() {
    let addresses = routes().into_iter().map(|(_, address)| address.replace("/api/v1", ""));
    let reference = reference();
    for address in addresses {
        let named =
            address.replace("{pool}", "POOL").replace("{volume}", "NAME").replace("{number}", "N");
        let is_there = ["`", "?"].iter().any(|end| reference.contains(&format!("{named}{end}")));
        assert!(is_there, "{named}");
    }
}

/// What can be planned is known by the words that the API expects.
#[test]
fn the_reference_has_every_change_that_can_be_planned() {
    let (expected, reference) = (plans(), reference());
    assert!(expected.len() > 15, "{expected:?}");
    let row = reference.lines().find(|line| line.starts_with("| `POST /plan`")).unwrap();
    for change in expected {
        assert!(row.contains(&format!("`{change}`")), "{change}");
    }
}

#[test]
fn there_is_a_man_page_for_each_command() {
    let dir = Dir::new("man");
    let pages = dir.path("man1");
    let output = run(forebay().arg("man").arg(&pages));
    assert!(output.status.success() && output.stdout.is_empty(), "{}", stderr(&output));
    let name = |path: &Vec<String>| {
        ["forebay"].into_iter().chain(path.iter().map(String::as_str)).collect::<Vec<_>>().join("-")
    };
    let expected: Vec<String> = commands().iter().map(name).collect();
    for name in &expected {
        let page = std::fs::read_to_string(pages.join(format!("{name}.1"))).unwrap();
        for section in [".SH NAME", ".SH SYNOPSIS", ".SH \"EXIT STATUS\""] {
            assert!(page.contains(section), "{name}: {section}");
        }
    }
    // As it is typed: values, what can be given again, and what may be left out.
    let create = std::fs::read_to_string(pages.join("forebay-pool-create.1")).unwrap();
    for word in ["[\\-\\-dry\\-run]", "\\-\\-ssd <PATH>...", "[\\-\\-ram <SIZE>]", "<NAME>"] {
        assert!(
            create
                .lines()
                .any(|line| line.starts_with("\\fBforebay pool create\\fR") && line.contains(word)),
            "{word}: {create}"
        );
    }
    assert_eq!(std::fs::read_dir(&pages).unwrap().count(), expected.len());
    assert!(expected.len() >= 25 && expected.contains(&"forebay-pool-create".to_owned()));
    let output = run(forebay().args(["man", "/proc/nowhere"]));
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("hint: "), "{}", stderr(&output));
}

#[test]
fn a_shell_offers_no_command_that_help_does_not_show() {
    for shell in ["bash", "zsh", "fish"] {
        let output = run(forebay().args(["completion", shell]));
        let script = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && script.contains("pool"), "{shell}");
        for hidden in ["forebay,dev)", "'dev:", "-a \"dev\""] {
            assert!(!script.contains(hidden), "{shell}: {hidden}");
        }
    }
}
