//! `forebay man`: a page for each command, from the definitions that parse the command line.

use std::path::{Path, PathBuf};

use clap::{ArgAction, Args};
use clap_mangen::Man;

use crate::Result;
use crate::failure::{EXIT_CODES, Failure};
use crate::text::tell;

/// See the head of the file.
#[derive(Args)]
pub(crate) struct Options {
    /// The directory; it is made if need be
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

/// Writes the pages of `root` and of all commands below it.
pub(crate) fn run(options: &Options, root: clap::Command) -> Result<()> {
    let failed = |path: &Path, error: std::io::Error| {
        Failure::system(format!("write {}", path.display()), &error)
            .hint("name a directory that you may write to")
    };
    std::fs::create_dir_all(&options.dir).map_err(|error| failed(&options.dir, error))?;
    let mut root = root.disable_help_subcommand(true);
    root.build();
    let pages = pages(&root);
    for (name, page) in &pages {
        let path = options.dir.join(format!("{name}.1"));
        std::fs::write(&path, page).map_err(|error| failed(&path, error))?;
    }
    let dir = options.dir.display();
    tell(format_args!("{} pages are in {dir}; next: `man -l {dir}/forebay.1`", pages.len()));
    Ok(())
}

/// Name and text of each page.
fn pages(command: &clap::Command) -> Vec<(String, Vec<u8>)> {
    let name = command.get_display_name().unwrap_or_else(|| command.get_name()).to_owned();
    let mut page = Vec::new();
    // Writing to memory does not fail.
    let shown = command.clone().override_usage(synopsis(command));
    let _ = Man::new(shown).title(&name).render(&mut page);
    page.extend(end(command, &name).into_bytes());
    let mut pages = vec![(name, page)];
    for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
        pages.extend(self::pages(below));
    }
    pages
}

/// A command's line as it is typed: with the values of options, and what can be given again.
fn synopsis(command: &clap::Command) -> String {
    let shown = command.get_arguments().filter(|argument| !argument.is_hide_set());
    let (places, options): (Vec<_>, Vec<_>) = shown.partition(|argument| argument.is_positional());
    let option = |argument: &clap::Arg| {
        let again = if matches!(argument.get_action(), ArgAction::Append) { "..." } else { "" };
        match argument.is_required_set() {
            true => format!("{argument}{again}"),
            false => format!("[{argument}]{again}"),
        }
    };
    let name = command.get_bin_name().unwrap_or(command.get_name());
    let mut words = vec![name.to_owned()];
    words.extend(options.into_iter().map(option));
    words.extend(places.into_iter().map(ToString::to_string));
    if command.has_subcommands() {
        words.push("<COMMAND>".to_owned());
    }
    words.join(" ")
}

/// What clap does not know of.
fn end(command: &clap::Command, name: &str) -> String {
    let mut text = ".SH \"EXIT STATUS\"\n".to_owned();
    for (code, meaning) in EXIT_CODES {
        text.push_str(&format!(".TP\n\\fB{code}\\fR\n{meaning}\n"));
    }
    // The pages of the commands below stand in the page itself.
    if command.get_subcommands().next().is_none()
        && let Some((above, _)) = name.rsplit_once('-')
    {
        text.push_str(&format!(".SH \"SEE ALSO\"\n\\fB{}\\fR(1)\n", above.replace('-', "\\-")));
    }
    text
}
