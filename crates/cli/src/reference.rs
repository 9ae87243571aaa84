//! The parts of docs/user/reference.md that are written from definitions: exit codes, commands,
//! keys of the configuration, codes of events.
//!
//! A part stands between two comments; the rest of the file is a person's.

use std::fmt::Write;

use clap::{Arg, Command};

use crate::Result;
use crate::admin::codes::CODES;
use crate::daemon::config::keys;
use crate::failure::{EXIT_CODES, Failure};

/// The parts, in the order of the file.
const PARTS: [&str; 4] = ["exit codes", "commands", "configuration", "codes"];

fn begin(part: &str) -> String {
    format!("<!-- {part}: written by `forebay dev reference` -->\n")
}

fn end(part: &str) -> String {
    format!("<!-- end of {part} -->\n")
}

/// The same text with its parts written anew.
///
/// # Errors
/// If a part has no place in it.
pub(crate) fn renew(text: &str, root: Command) -> Result<String> {
    let mut root = root.disable_help_subcommand(true);
    root.build();
    let mut rest = text;
    let mut renewed = String::new();
    for part in PARTS {
        let (begin, end) = (begin(part), end(part));
        let found = rest.split_once(&begin).and_then(|(before, after)| {
            let (_, after) = after.split_once(&end)?;
            Some((before, after))
        });
        let Some((before, after)) = found else {
            return Err(Failure::new(format!("there is no place for the part \"{part}\""))
                .hint(format!("write `{}` and `{}` in this order", begin.trim(), end.trim())));
        };
        let body = match part {
            "commands" => commands(&root),
            "exit codes" => exit_codes(),
            "configuration" => configuration(),
            _ => codes(),
        };
        let _ = write!(renewed, "{before}{begin}\n{body}\n{end}");
        rest = after;
    }
    renewed.push_str(rest);
    Ok(renewed)
}

/// Rows below a head, as Markdown.
fn table(head: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut text = format!("| {} |\n|{}\n", head.join(" | "), "---|".repeat(head.len()));
    for row in rows {
        let row: Vec<_> = row.iter().map(|cell| cell.replace('|', "\\|")).collect();
        let _ = writeln!(text, "| {} |", row.join(" | "));
    }
    text
}

fn exit_codes() -> String {
    let rows = EXIT_CODES.iter().map(|(code, meaning)| vec![code.to_string(), (*meaning).into()]);
    table(&["exit code", "meaning"], rows)
}

fn configuration() -> String {
    let rows = keys().into_iter().map(|key| {
        let default = if key.default.is_empty() { key.default } else { quoted(&key.default) };
        vec![quoted(&key.name), default, key.meaning]
    });
    table(&["key", "default", "meaning"], rows)
}

fn codes() -> String {
    let rows = CODES.iter().map(|known| {
        vec![quoted(known.code), known.means.into(), known.risk.into(), known.action.into()]
    });
    table(&["code", "what it means", "what is at risk", "what to do"], rows)
}

fn quoted(text: &str) -> String {
    format!("`{text}`")
}

/// All commands that are shown, each below the one that it belongs to.
fn commands(root: &Command) -> String {
    let mut text = String::new();
    let shown = root.get_subcommands().filter(|command| !command.is_hide_set());
    for command in shown {
        let below: Vec<_> = command.get_subcommands().filter(|c| !c.is_hide_set()).collect();
        if below.is_empty() {
            describe(command, &mut text);
        }
        for command in below {
            describe(command, &mut text);
        }
    }
    text.trim_end().to_owned() + "\n"
}

fn describe(command: &Command, text: &mut String) {
    let name = command.get_bin_name().unwrap_or_else(|| command.get_name());
    let about = command.get_long_about().or(command.get_about());
    let about = about.map(ToString::to_string).unwrap_or_default();
    let usage = command.clone().render_usage().to_string();
    let usage = usage.trim().trim_start_matches("Usage: ");
    let about = if about.ends_with(['.', '|']) { about } else { format!("{about}.") };
    let _ = write!(text, "### {name}\n\n{about}\n\n```text\n{usage}\n```\n\n");
    // What all commands have that ask the daemon is described once.
    let own: Vec<_> = command
        .get_arguments()
        .filter(|arg| !arg.is_global_set() && !arg.is_hide_set() && arg.get_id() != "help")
        .map(|arg| vec![quoted(&spelled(arg)), meaning(arg)])
        .collect();
    if !own.is_empty() {
        let _ = writeln!(text, "{}", table(&["argument", "meaning"], own));
    }
}

/// An argument as it is typed.
fn spelled(arg: &Arg) -> String {
    let names = arg.get_value_names().unwrap_or_default();
    let value = names.first().map(ToString::to_string).unwrap_or_default();
    let takes_value = arg.get_action().takes_values();
    match arg.get_long() {
        None => value,
        Some(long) if takes_value => format!("--{long} {value}"),
        Some(long) => format!("--{long}"),
    }
}

fn meaning(arg: &Arg) -> String {
    let help = arg.get_long_help().or(arg.get_help());
    let mut text = help.map(ToString::to_string).unwrap_or_default();
    let values: Vec<_> = arg
        .get_possible_values()
        .iter()
        .filter(|value| arg.get_action().takes_values() && !value.is_hide_set())
        .map(|value| quoted(value.get_name()))
        .collect();
    if !values.is_empty() {
        let _ = write!(text, ": {}", values.join(", "));
    }
    if let Some(variable) = arg.get_env() {
        let _ = write!(text, " [or `{}`]", variable.to_string_lossy());
    }
    let defaults: Vec<_> = arg.get_default_values().iter().map(|v| v.to_string_lossy()).collect();
    if !defaults.is_empty() && arg.get_action().takes_values() {
        let _ = write!(text, " [default: {}]", defaults.join(", "));
    }
    text
}
