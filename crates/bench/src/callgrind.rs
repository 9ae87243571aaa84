//! Counting instructions with valgrind's callgrind.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::bench::Result;

/// Keeps the C library to the copies that every x86-64 machine has. Without it a machine's own
/// choice (AVX2, or `rep movsb`, of which callgrind counts each byte) decides what is counted.
/// Names that a version of the library does not know are ignored; other machines have no such choice.
pub(crate) const PINNED: (&str, &str) = (
    "GLIBC_TUNABLES",
    "glibc.cpu.hwcaps=-AVX_Fast_Unaligned_Load,-AVX2,-AVX2_Usable,-AVX512F,-AVX512VL,-SSSE3,\
     -ERMS,-FSRM,-Prefer_ERMS,-Prefer_FSRM",
);

/// Whether there is a valgrind to run.
pub(crate) fn is_installed() -> bool {
    let mut command = Command::new("valgrind");
    let command = command.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// This program under callgrind with `args`, its counts written to `out`.
pub(crate) fn command(out: &Path, options: &[&str], args: &[&str]) -> Result<Command> {
    let program = std::env::current_exe().map_err(|e| e.to_string())?;
    let mut command = Command::new("valgrind");
    command
        .arg("--tool=callgrind")
        .arg(format!("--callgrind-out-file={}", out.display()))
        .args(options)
        .arg(program)
        .args(args);
    Ok(command)
}

/// Runs it; gives the instructions that it counted.
pub(crate) fn count(command: &mut Command) -> Result<u64> {
    let output = command.output().map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound => "valgrind is not installed".to_owned(),
        _ => format!("running valgrind: {e}"),
    })?;
    let text = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        let reason = text.lines().find(|line| line.starts_with("error")).unwrap_or("no reason");
        return Err(format!("the run under valgrind failed: {reason}"));
    }
    let collected = text.lines().find_map(|line| line.split("Collected : ").nth(1));
    let number = collected.and_then(|rest| rest.split_whitespace().next()?.parse().ok());
    number.ok_or_else(|| "valgrind gave no count".to_owned())
}
