//! What README.md and docs/user show is run, as it stands there, on files in a folder of its own.
//!
//! * Each `sh` block of a document runs, in order, in one shell. start.md begins with nothing; the
//!   others go on where it has a file system mounted.
//! * A block below the comment `<!-- Not run by the tests: REASON -->` is left out, and listed here.
//! * `forebay ...` in the running text, and in lines of `text` blocks, names commands and options that there are.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::common::{Dir, commands, forebay, have, run};

/// Blocks that are not run, by document, with the reason they give.
const NOT_RUN: [(&str, &str); 7] = [
    ("README.md", "these are the build and the tests themselves."),
    ("docs/user/operating.md", "it needs servers of others."),
    ("docs/user/recovery-and-uninstall.md", "the pool has an SSD."),
    ("docs/user/reference.md", "it needs certificates and the name of a machine."),
    ("docs/user/start.md", "it builds everything, and takes minutes."),
    ("docs/user/start.md", "it builds everything, and takes minutes."),
    ("docs/user/tuning.md", "it records from a disk."),
];

/// What is written from the definitions.
const REFERENCE: &str = "docs/user/reference.md";

/// Where start.md has a file system mounted.
const MOUNTED_UNTIL: &str = "## Back to the plain disk";

/// Longest run of one document, in seconds: what takes longer hangs.
const SECONDS_MAX: &str = "400";

struct Block {
    line: usize,
    language: String,
    text: String,
    /// Why it is not run.
    reason: Option<String>,
}

struct Document {
    name: String,
    text: String,
    blocks: Vec<Block>,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

impl Document {
    fn read(name: &str) -> Document {
        let text = std::fs::read_to_string(root().join(name)).unwrap();
        let (mut blocks, mut open): (Vec<Block>, bool) = (Vec::new(), false);
        let mut above = "";
        for (index, line) in text.lines().enumerate() {
            match line.strip_prefix("```") {
                Some(_) if open => open = false,
                Some(language) => {
                    let (line, language) = (index + 1, language.to_owned());
                    let reason = above.strip_prefix("<!-- Not run by the tests: ");
                    let reason =
                        reason.and_then(|rest| rest.strip_suffix(" -->")).map(String::from);
                    blocks.push(Block { line, language, text: String::new(), reason });
                    open = true;
                }
                None if open => {
                    let text = &mut blocks.last_mut().unwrap().text;
                    text.push_str(line);
                    text.push('\n');
                }
                None => {
                    let is_code = above.is_empty() && line.starts_with("    ");
                    assert!(!is_code, "{name}, line {}: use a fence, with a language", index + 1);
                }
            }
            above = line;
        }
        assert!(!open, "{name}: the last fence is open");
        Document { name: name.to_owned(), text, blocks }
    }

    /// All documents for users.
    fn all() -> Vec<Document> {
        let folder = std::fs::read_dir(root().join("docs/user")).unwrap();
        let names = folder.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<_> = names.map(|name| format!("docs/user/{name}")).collect();
        names.sort();
        names.insert(0, "README.md".to_owned());
        names.iter().map(|name| Document::read(name)).collect()
    }

    /// What it shows of commands and no test runs: those in sentences, and lines of blocks of text. The forms that
    /// reference.md has in blocks are written from the definitions.
    fn commands(&self) -> Vec<String> {
        let mut found = Vec::new();
        let mut add = |asked: &str| found.extend(asked.strip_prefix("forebay ").map(str::to_owned));
        self.text
            .split('`')
            .skip(1)
            .step_by(2)
            .filter(|code| !code.contains('\n'))
            .for_each(&mut add);
        let is_shown = |block: &&Block| block.language == "text" && self.name != REFERENCE;
        let shown = self.blocks.iter().filter(is_shown);
        shown.flat_map(|block| block.text.lines()).for_each(&mut add);
        found.retain(|asked| !asked.starts_with("dev "));
        found
    }

    /// The blocks that are run, as a script that tells where it is.
    fn script(&self, until_line: usize) -> String {
        let blocks = self.blocks.iter().filter(|block| {
            block.language == "sh" && block.line < until_line && block.reason.is_none()
        });
        let told = |block: &Block| {
            format!("echo '--- {}, line {}'\n{}", self.name, block.line, block.text)
        };
        blocks.map(told).collect()
    }
}

/// Runs a script in a folder of its own; whatever it leaves running or mounted is ended.
fn run_script(name: &str, script: &str) {
    let dir = Dir::new(name);
    let bin = Path::new(env!("CARGO_BIN_EXE_forebay")).parent().unwrap().display();
    let whole = format!(
        "set -eu -o pipefail\n\
         sudo() {{ if [ \"$(id -u)\" = 0 ]; then \"$@\"; else command sudo -n \"$@\"; fi; }}\n\
         end() {{ set +e; cd /; for at in fs nbd; do\n\
             mountpoint -q {0}/forebay-try/$at && sudo umount -l {0}/forebay-try/$at; done\n\
             kill -9 $(jobs -p); wait; }} 2> /dev/null\n\
         trap end EXIT\n\
         trap 'exit 1' TERM\n\
         PATH={bin}:$PATH\n\
         cd {0}\n{script}",
        dir.0.display()
    );
    let path = dir.path("script");
    std::fs::write(&path, whole).unwrap();
    let mut command = Command::new("timeout");
    command.args(["-k", "10", SECONDS_MAX, "bash"]).arg(&path).env_remove("FOREBAY_CONTROL");
    // Into files: what is left running would keep a pipe open.
    let (out, err) = (dir.path("stdout"), dir.path("stderr"));
    command.stdin(Stdio::null());
    command.stdout(std::fs::File::create(&out).unwrap());
    command.stderr(std::fs::File::create(&err).unwrap());
    let status = command.status().unwrap();
    let read = |path: &Path| std::fs::read_to_string(path).unwrap_or_default();
    let log = read(&dir.path("forebay-try/daemon.log"));
    assert!(status.success(), "{status}\n{}\n{}\nlog:\n{log}", read(&out), read(&err));
}

/// Whether documents can be run here; says why not.
fn is_fit() -> bool {
    let programs = ["nbdfuse", "nbdinfo", "nbdcopy", "mkfs.ext4", "e2fsck", "losetup", "fio"];
    if !programs.iter().all(|program| have(program)) {
        return false;
    }
    let lacks = |what: &str| println!("skipped: {what}");
    if !Path::new("/dev/fuse").exists() || !Path::new("/dev/loop-control").exists() {
        lacks("there is no /dev/fuse, or no loop device");
        return false;
    }
    let root = "[ $(id -u) = 0 ] || sudo -n true";
    let may = Command::new("sh").args(["-c", root]).stderr(Stdio::null()).status();
    if !may.is_ok_and(|status| status.success()) {
        lacks("mounting needs root, or sudo without a password");
        return false;
    }
    true
}

/// The line in which start.md begins to take everything away.
fn mounted_until(start: &Document) -> usize {
    start.text.lines().position(|line| line == MOUNTED_UNTIL).unwrap() + 1
}

#[test]
fn start_goes_from_nothing_to_a_mounted_file_system_and_back() {
    let start = Document::read("docs/user/start.md");
    if is_fit() {
        run_script("docs-start", &start.script(usize::MAX));
    }
}

#[test]
fn what_the_other_documents_show_goes_on_from_there() {
    let start = Document::read("docs/user/start.md");
    let before = start.script(mounted_until(&start));
    for document in Document::all() {
        let script = document.script(usize::MAX);
        if document.name != start.name && !script.is_empty() && is_fit() {
            run_script("docs-more", &format!("{before}{script}"));
        }
    }
}

#[test]
fn few_blocks_are_not_run_and_all_of_them_say_why() {
    let mut not_run = Vec::new();
    for document in Document::all() {
        for block in &document.blocks {
            let place = format!("{}, line {}", document.name, block.line);
            assert!(["sh", "text"].contains(&&*block.language), "{place}: {:?}", block.language);
            not_run.extend(block.reason.clone().map(|why| (document.name.clone(), why)));
        }
        let said = document.text.matches("Not run by the tests").count();
        let named = document.blocks.iter().filter(|block| block.reason.is_some()).count();
        assert_eq!(said, named, "{}: say it in a comment above the block", document.name);
    }
    let listed = NOT_RUN.map(|(name, why)| (name.to_owned(), why.to_owned()));
    assert_eq!(not_run, listed, "a block that is not run is listed in this test");
}

#[test]
fn commands_in_the_running_text_are_there() {
    let commands = commands();
    let mut seen = 0;
    for document in Document::all() {
        for asked in document.commands() {
            seen += 1;
            let words: Vec<_> = asked.split(' ').collect();
            let known = |path: &&Vec<String>| {
                path.len() <= words.len() && path.iter().zip(&words).all(|(a, b)| a == b)
            };
            let path = commands.iter().filter(known).max_by_key(|path| path.len()).unwrap();
            assert!(!path.is_empty(), "{}: `{asked}`", document.name);
            let help = run(forebay().args(path).arg("--help"));
            let help = String::from_utf8(help.stdout).unwrap();
            let options = words.iter().filter(|word| word.starts_with("--"));
            for option in options {
                let name = option.split('=').next().unwrap();
                assert!(help.contains(name), "{}: `{asked}`: {option}", document.name);
            }
            let is_group = help.contains("\nCommands:\n") && words.len() > path.len();
            assert!(!is_group, "{}: `{asked}`", document.name);
        }
    }
    assert!(seen >= 40, "{seen}");
}

#[test]
fn commands_are_found_in_sentences_and_in_blocks_that_are_not_run() {
    let operating = Document::read("docs/user/operating.md").commands();
    for known in ["pool device grow fast /dev/vg0/cache0 --dry-run", "status", "volume flush"] {
        assert!(operating.iter().any(|asked| asked == known), "{known}: {operating:?}");
    }
}
