//! Where results go: tried before anything is measured, so that no long run ends without a place for them.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Result as IoResult, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{OFlags, fcntl_setfl};

use crate::Result;
use crate::failure::Failure;

/// A file that is written at the end. What it holds stays until then; one that is new is made only then, so that
/// nothing is left of a run that is interrupted.
pub(crate) struct Output {
    path: PathBuf,
    /// What was there already: a pipe's reader takes it for the end if we close it.
    file: Option<File>,
    hint: &'static str,
}

impl Output {
    /// Looks whether a file can be written, or made; `hint` says what to do if not.
    ///
    /// # Errors
    /// If that cannot be done.
    pub(crate) fn open(path: &Path, hint: &'static str) -> Result<Output> {
        let (file, is_new) = open(path).map_err(|error| refused(path, &error, hint))?;
        if is_new {
            // If it cannot go away, it is there at the end.
            let _ = std::fs::remove_file(path);
        }
        Ok(Output { path: path.to_owned(), file: (!is_new).then_some(file), hint })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Writes all of it.
    ///
    /// # Errors
    /// If there is no room any more, for one.
    pub(crate) fn write(self, text: &str) -> Result<()> {
        let opened = self.file.map_or_else(|| open(&self.path), |file| Ok((file, false)));
        let written = opened.and_then(|(file, is_new)| {
            put(&file, text).inspect_err(|_| {
                // A part of a page is none. The failure that is told is the one that came before.
                let _ = is_new.then(|| std::fs::remove_file(&self.path));
            })
        });
        written.map_err(|error| refused(&self.path, &error, self.hint))
    }
}

/// Opens a file for writing, and says whether it is new.
fn open(path: &Path) -> IoResult<(File, bool)> {
    let mut options = OpenOptions::new();
    // Nobody may come to read from a pipe, and nobody waits for that.
    options.write(true).custom_flags(libc::O_NONBLOCK);
    let (file, is_new) = match options.clone().create_new(true).open(path) {
        Ok(file) => (file, true),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => (options.open(path)?, false),
        Err(error) => return Err(error),
    };
    // A slow reader is waited for.
    fcntl_setfl(&file, OFlags::empty())?;
    Ok((file, is_new))
}

fn put(mut file: &File, text: &str) -> IoResult<()> {
    // Pipes and terminals have no length.
    if file.metadata()?.is_file() {
        file.set_len(0)?;
    }
    file.write_all(text.as_bytes())
}

fn refused(path: &Path, error: &std::io::Error, hint: &str) -> Failure {
    let hint = match error.raw_os_error() {
        Some(libc::ENXIO) => "nobody reads it: start what reads this pipe first, or name a file",
        _ => hint,
    };
    Failure::system(format!("write {}", path.display()), error).hint(hint)
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;

    fn path(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("forebay-output-{name}-{}", std::process::id()))
    }

    fn open(path: &Path) -> Result<Output> {
        Output::open(path, "elsewhere")
    }

    #[test]
    fn a_file_is_tried_at_once_and_changed_at_the_end() {
        let path = path("file");
        let output = open(&path).unwrap();
        assert!(!path.exists(), "nothing was written");
        output.write("a long text").unwrap();
        drop(open(&path).unwrap());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "a long text");
        open(&path).unwrap().write("short").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "short");
        std::fs::remove_file(&path).unwrap();
        let refused = open(&std::env::temp_dir()).err().expect("a directory");
        assert_eq!(refused.hint_text(), "elsewhere");
    }

    #[test]
    fn a_link_to_nothing_is_not_followed() {
        let (link, target) = (path("link"), path("target"));
        std::os::unix::fs::symlink(&target, &link).unwrap();
        assert!(open(&link).is_err());
        assert!(!target.exists());
        std::fs::remove_file(&link).unwrap();
    }

    #[test]
    fn a_pipe_needs_a_reader_from_the_start() {
        let path = path("pipe");
        mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let refused = open(&path).err().expect("nobody reads");
        assert!(refused.hint_text().contains("nobody reads it"));
        let mut reader =
            File::options().read(true).custom_flags(libc::O_NONBLOCK).open(&path).unwrap();
        fcntl_setfl(&reader, OFlags::empty()).unwrap();
        let output = open(&path).unwrap();
        // More than a pipe holds.
        let text = "x".repeat(1 << 20);
        let (mut read, written) = (String::new(), text.clone());
        let writer =
            std::thread::spawn(move || output.write(&written).map_err(|it| it.what().to_owned()));
        reader.read_to_string(&mut read).unwrap();
        writer.join().unwrap().unwrap();
        assert!(read == text);
        std::fs::remove_file(&path).unwrap();
    }
}
