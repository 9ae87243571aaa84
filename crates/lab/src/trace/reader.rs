//! The requests of a run's files, as one workload.

use std::io::Read;
use std::path::{Path, PathBuf};

use super::file::File;
use super::plan::{self, Looked};
use super::{Options, Request, Run};
use crate::Result;

/// A file of those that are read side by side.
struct Piece {
    file: File,
    /// Its next request, if that was read already.
    next: Option<Request>,
}

/// The requests of several files as one workload: one file after the other, but those that
/// blktrace wrote of one recording (`sdb.blktrace.0`, `sdb.blktrace.1` …) merged by time.
pub struct Reader {
    options: Options,
    /// Files that were not looked at yet.
    paths: Vec<PathBuf>,
    /// What comes next; each is opened when its turn comes.
    rest: std::vec::IntoIter<Vec<Looked>>,
    /// What is read now.
    pieces: Vec<Piece>,
    run: Run,
    pub(super) line: Vec<u8>,
    bad: u64,
    unread: Vec<String>,
}

impl Reader {
    /// The requests of these files; `-` is standard input. With the first request, the beginning
    /// of each file is looked at.
    pub fn open(paths: &[&Path], options: Options) -> Self {
        let paths = paths.iter().map(|path| path.to_path_buf()).collect();
        Self { paths, ..Self::idle(options) }
    }

    /// The requests of one stream, which may be compressed.
    ///
    /// # Errors
    /// If its format is not given and cannot be told.
    pub fn over(name: &str, input: impl Read + 'static, options: Options) -> Result<Self> {
        let mut reader = Self::idle(options);
        let counted = &mut reader.run.counted;
        let looked = plan::look_at_stream(name, Box::new(input), options, counted)?;
        reader.pieces = vec![Piece { file: looked.open()?, next: None }];
        Ok(reader)
    }

    fn idle(options: Options) -> Self {
        Self {
            options,
            paths: Vec::new(),
            rest: Vec::new().into_iter(),
            pieces: Vec::new(),
            run: Run::default(),
            line: Vec::new(),
            bad: 0,
            unread: Vec::new(),
        }
    }

    /// Lines or records that were passed over because they could not be understood.
    pub fn bad(&self) -> u64 {
        self.bad
    }

    /// Files whose rest was not read, since nothing tells where in it the next record begins.
    pub fn unread(&self) -> &[String] {
        &self.unread
    }

    fn next_request(&mut self) -> Result<Option<Request>> {
        if !self.paths.is_empty() {
            let paths = std::mem::take(&mut self.paths);
            self.rest = plan::look_at(&paths, self.options, &mut self.run.counted)?.into_iter();
        }
        loop {
            for at in 0..self.pieces.len() {
                self.advance(at)?;
            }
            self.pieces.retain(|piece| piece.next.is_some());
            let first =
                self.pieces.iter_mut().min_by_key(|piece| piece.next.map(|next| next.time_us));
            if let Some(piece) = first {
                return Ok(piece.next.take());
            }
            let Some(files) = self.rest.next() else { return Ok(None) };
            for looked in files {
                self.pieces.push(Piece { file: looked.open()?, next: None });
            }
        }
    }

    /// Reads the next request of a file, unless that was read already.
    fn advance(&mut self, at: usize) -> Result<()> {
        let Piece { file, next } = &mut self.pieces[at];
        while next.is_none() && !file.ended() {
            match file.next(&mut self.line, &mut self.run)? {
                Ok(request) => *next = request,
                Err(_) if self.options.skip_bad => {
                    self.bad += 1;
                    if file.left_off() {
                        self.unread.push(file.name.clone());
                    }
                }
                Err(bad) => return Err(file.refuse(&bad)),
            }
        }
        Ok(())
    }
}

impl Iterator for Reader {
    type Item = Result<Request>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = self.next_request().transpose();
        if matches!(next, Some(Err(_))) {
            // After an error there is nothing more.
            self.pieces = Vec::new();
            self.rest = Vec::new().into_iter();
        }
        next
    }
}
