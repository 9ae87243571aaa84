//! What a run will read: each file is looked at before the first one is read.
//!
//! That tells the formats, and which events count in all files together. It also puts the files
//! of one recording side by side: blktrace writes `sdb.blktrace.0`, `sdb.blktrace.1` and so on,
//! one for each processor, and only merged by time are they what the disk was asked for.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Component, Path, PathBuf};

use super::detect::Told;
use super::events::{self, Counted, LOOK_AHEAD_BYTES};
use super::file::File;
use super::source::{self, HEAD_BYTES};
use super::{Format, Options, detect};
use crate::{Error, Result};

/// Files of one recording, which are open together: each takes a file descriptor, of which a
/// process usually has 1,024, and its buffers.
pub const PIECES_MAX: usize = 512;

/// Window of zstd at its usual level, with which any recording can be read.
const USUAL_WINDOW_BYTES: u64 = 2 << 20;
const _: () = assert!(source::WINDOWS_BYTES_MAX / PIECES_MAX as u64 >= USUAL_WINDOW_BYTES);

/// A file that was looked at.
pub(super) struct Looked {
    path: PathBuf,
    name: String,
    format: Format,
    window_bytes_max: u64,
    /// Its content from the beginning, if the file cannot be opened a second time.
    input: Option<Box<dyn Read>>,
}

/// Looks at the files. What is returned is read one after the other, the files of one recording
/// side by side.
pub(super) fn look_at(
    paths: &[PathBuf],
    options: Options,
    counted: &mut Counted,
) -> Result<Vec<Vec<Looked>>> {
    if paths.iter().filter(|path| is_standard_input(path)).count() > 1 {
        return Err(Error::new("standard input is named twice", "name it once"));
    }
    let window_bytes_max = source::window_bytes_max(open_together(paths));
    let mut streams: Vec<(Option<String>, Vec<Looked>)> = Vec::new();
    for path in paths {
        let looked = look_at_file(path, options, counted, window_bytes_max)?;
        let name = recording(path).filter(|_| looked.format == Format::Blktrace);
        match streams.iter_mut().find(|(other, _)| name.is_some() && *other == name) {
            Some((_, pieces)) if pieces.len() == PIECES_MAX => {
                return Err(too_many_pieces(&looked.name));
            }
            Some((_, pieces)) => pieces.push(looked),
            None => streams.push((name, vec![looked])),
        }
    }
    Ok(streams.into_iter().map(|(_, pieces)| pieces).collect())
}

/// How many of the files are open at once, at the most: the largest recording, and all that cannot
/// be opened a second time.
fn open_together(paths: &[PathBuf]) -> usize {
    let mut recordings: BTreeMap<_, usize> = BTreeMap::new();
    for name in paths.iter().filter_map(|path| recording(path)) {
        *recordings.entry(name).or_default() += 1;
    }
    let once = paths.iter().filter(|path| !is_opened_again(path)).count();
    once + recordings.into_values().max().unwrap_or(1)
}

fn look_at_file(
    path: &Path,
    options: Options,
    counted: &mut Counted,
    window_bytes_max: u64,
) -> Result<Looked> {
    let (name, input) = open(path)?;
    let format = recording(path).map(|_| Format::Blktrace);
    let mut looked = look_at_content(&name, input, options, counted, format, window_bytes_max)?;
    if is_opened_again(path) {
        looked.input = None;
    }
    Ok(Looked { path: path.to_owned(), ..looked })
}

/// Looks at one stream, which may be compressed.
pub(super) fn look_at_stream(
    name: &str,
    input: Box<dyn Read>,
    options: Options,
    counted: &mut Counted,
) -> Result<Looked> {
    look_at_content(name, input, options, counted, None, source::window_bytes_max(1))
}

/// Looks at what is in a file; `if_empty` is the format of one that may be empty.
fn look_at_content(
    name: &str,
    input: Box<dyn Read>,
    options: Options,
    counted: &mut Counted,
    if_empty: Option<Format>,
    window_bytes_max: u64,
) -> Result<Looked> {
    let failed = |error| source::failed(name, &error);
    let (head, mut input) = source::plain(input, window_bytes_max)
        .and_then(|input| source::peek(input, HEAD_BYTES))
        .map_err(failed)?;
    let format = match options.format.or(if_empty.filter(|_| head.is_empty())) {
        Some(format) => format,
        None => told(name, &head)?,
    };
    if events::are_in(format) {
        let (beginning, whole) = source::peek(input, LOOK_AHEAD_BYTES).map_err(failed)?;
        counted.look_at(format, &beginning);
        input = whole;
    }
    let (path, name) = (PathBuf::new(), name.to_owned());
    Ok(Looked { path, name, format, window_bytes_max, input: Some(input) })
}

impl Looked {
    /// The file, at its beginning.
    pub(super) fn open(self) -> Result<File> {
        let input = match self.input {
            Some(input) => input,
            None => source::plain(open(&self.path)?.1, self.window_bytes_max)
                .map_err(|error| source::failed(&self.name, &error))?,
        };
        File::new(&self.name, input, self.format)
    }
}

fn is_standard_input(path: &Path) -> bool {
    path == Path::new("-")
}

fn is_opened_again(path: &Path) -> bool {
    path.is_file() && !is_standard_input(path)
}

/// A path without `.` and doubled slashes: the same file may be named with and without them. With
/// `..` it may be another one, behind a link.
pub(super) fn normal(path: &Path) -> PathBuf {
    let normal: PathBuf = path.components().filter(|part| *part != Component::CurDir).collect();
    if normal.as_os_str().is_empty() { path.to_owned() } else { normal }
}

/// The content of a file, and the name that stands for its disk.
fn open(path: &Path) -> Result<(String, Box<dyn Read>)> {
    if is_standard_input(path) {
        return Ok(("standard input".to_owned(), Box::new(std::io::stdin())));
    }
    let name = normal(path).display().to_string();
    let file = std::fs::File::open(path).map_err(|error| Error::io(&name, &error))?;
    Ok((name, Box::new(file)))
}

fn told(name: &str, head: &[u8]) -> Result<Format> {
    if head.is_empty() {
        return Err(Error::new(
            format!("{name} is empty"),
            "leave it away, or look why nothing was recorded",
        ));
    }
    match detect::format_of(head) {
        Told::Format(format) => Ok(format),
        Told::CsvOrAlibaba => Err(Error::new(
            format!("{name} may be csv with one more column, or alibaba"),
            "say which with --format csv or --format alibaba",
        )),
        Told::Nothing => {
            let names: Vec<_> = Format::ALL.iter().map(|format| format.name()).collect();
            Err(Error::new(
                format!("{name} is of no format that is known"),
                format!("say which with --format: {}", names.join(", ")),
            ))
        }
    }
}

/// The recording that a file is of, by the name that blktrace gives to the file of a processor.
fn recording(path: &Path) -> Option<String> {
    let path = normal(path);
    let name = path.to_str()?;
    let name = name.strip_suffix(".gz").or_else(|| name.strip_suffix(".zst")).unwrap_or(name);
    let (recording, processor) = name.rsplit_once(".blktrace.")?;
    processor.parse::<u32>().is_ok().then(|| recording.to_owned())
}

fn too_many_pieces(name: &str) -> Error {
    Error::new(
        format!("{name} is of a recording of more than {PIECES_MAX} files"),
        "merge them with `blkparse -i RECORDING -d MERGED -O`, and take what that writes",
    )
}
