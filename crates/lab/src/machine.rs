//! Where and when something was measured.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

fn first_line(path: &str) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.lines().next().unwrap_or("").trim().to_owned()
}

fn cpu_model() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with("model name"));
    let model = line.and_then(|line| line.split(':').nth(1)).unwrap_or("unknown CPU");
    model.trim().to_owned()
}

/// The disk below a directory: name, model and scheduler as sysfs tells them.
fn disk(dir: &Path) -> String {
    let Ok(meta) = fs::metadata(dir) else { return "unknown disk".into() };
    let number = meta.dev();
    // glibc's packing of major and minor.
    let major = (number >> 8 & 0xFFF) | (number >> 32 & !0xFFF);
    let minor = (number & 0xFF) | (number >> 12 & !0xFF);
    let base = format!("/sys/dev/block/{major}:{minor}");
    let event = fs::read_to_string(format!("{base}/uevent")).unwrap_or_default();
    let name = event.lines().find_map(|line| line.strip_prefix("DEVNAME=")).unwrap_or("disk");
    let cache = first_line(&format!("{base}/queue/write_cache"));
    let scheduler = first_line(&format!("{base}/queue/scheduler"));
    format!("{name} (write cache \"{cache}\", scheduler {scheduler})")
}

fn file_system(dir: &Path) -> String {
    let run = Command::new("stat").args(["-f", "-c", "%T"]).arg(dir).output();
    run.map_or_else(|_| String::new(), |o| String::from_utf8_lossy(&o.stdout).trim().to_owned())
}

fn date() -> String {
    let run = Command::new("date").args(["-u", "+%Y-%m-%d %H:%M UTC"]).output();
    run.map_or_else(|_| String::new(), |o| String::from_utf8_lossy(&o.stdout).trim().to_owned())
}

/// What a program says of its version, in its first line.
fn version(tool: &&str) -> String {
    let run = Command::new(tool).arg("--version").output();
    let text = run.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    let line = text.ok().and_then(|text| text.lines().next().map(|line| line.trim().to_owned()));
    line.unwrap_or_else(|| format!("no {tool}"))
}

/// One line about the machine and the programs that take part.
pub fn facts(dir: &Path, tools: &[&str]) -> String {
    let versions: Vec<String> = tools.iter().map(version).collect();
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    format!(
        "{}; Linux {}; {}, {cores} cores, load {}; {}, {}; {}",
        date(),
        first_line("/proc/sys/kernel/osrelease"),
        cpu_model(),
        first_line("/proc/loadavg"),
        disk(dir),
        file_system(dir),
        versions.join(", "),
    )
}
