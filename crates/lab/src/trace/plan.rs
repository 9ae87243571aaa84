//! What a run will read: each file is looked at before the first one is read.
//!
//! That tells the formats, and which events count in all files together. It also puts the files
//! of one recording side by side: blktrace writes `sdb.blktrace.0`, `sdb.blktrace.1` and so on,
//! one for each processor, and only merged by time are they what the disk was asked for.

use std::io::Read;
use std::path::{Path, PathBuf};

use super::detect::Told;
use super::events::{self, Counted, LOOK_AHEAD_BYTES};
use super::file::File;
use super::source::{self, HEAD_BYTES};
use super::{Format, Options, detect};
use crate::{Error, Result};

/// Files of one recording, which are open together: each takes a file descriptor, of which a
/// process usually has 1,024, and its buffers.
pub const PIECES_MAX: usize = 512;

/// A file that was looked at.
pub(super) struct Looked {
    path: PathBuf,
    name: String,
    format: Format,
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
    let mut streams: Vec<(Option<String>, Vec<Looked>)> = Vec::new();
    for path in paths {
        let looked = look_at_file(path, options, counted)?;
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

fn look_at_file(path: &Path, options: Options, counted: &mut Counted) -> Result<Looked> {
    let (name, input) = open(path)?;
    let mut looked = look_at_stream(&name, input, options, counted, recording(path).is_some())?;
    if path.is_file() && !is_standard_input(path) {
        looked.input = None;
    }
    Ok(Looked { path: path.to_owned(), ..looked })
}

/// Looks at one stream, which may be compressed. Of a recording's file it is known that it may be
/// empty.
pub(super) fn look_at_stream(
    name: &str,
    input: Box<dyn Read>,
    options: Options,
    counted: &mut Counted,
    of_recording: bool,
) -> Result<Looked> {
    let failed = |error| Error::io(name, &error);
    let (head, mut input) =
        source::plain(input).and_then(|input| source::peek(input, HEAD_BYTES)).map_err(failed)?;
    let of_recording = of_recording.then_some(Format::Blktrace);
    let format = match options.format.or(of_recording.filter(|_| head.is_empty())) {
        Some(format) => format,
        None => told(name, &head)?,
    };
    if events::are_in(format) {
        let (beginning, whole) = source::peek(input, LOOK_AHEAD_BYTES).map_err(failed)?;
        counted.look_at(format, &beginning);
        input = whole;
    }
    Ok(Looked { path: PathBuf::new(), name: name.to_owned(), format, input: Some(input) })
}

impl Looked {
    /// The file, at its beginning.
    pub(super) fn open(self) -> Result<File> {
        let input = match self.input {
            Some(input) => input,
            None => {
                source::plain(open(&self.path)?.1).map_err(|error| Error::io(&self.name, &error))?
            }
        };
        File::new(&self.name, input, self.format)
    }
}

fn is_standard_input(path: &Path) -> bool {
    path == Path::new("-")
}

fn open(path: &Path) -> Result<(String, Box<dyn Read>)> {
    if is_standard_input(path) {
        return Ok(("standard input".to_owned(), Box::new(std::io::stdin())));
    }
    let name = path.display().to_string();
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
