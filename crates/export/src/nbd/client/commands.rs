//! What the server of an origin was asked and has not answered, and what it may still lose; without I/O.
//!
//! * A command stays until it is answered. When the connection breaks, what has no answer is sent again on
//!   the next one, in its order: nothing that overlaps was given meanwhile, so nothing is overtaken.
//! * A write that is acknowledged and not flushed may be gone with the connection, for the server may have
//!   been started again. No later FLUSH can bring it back: so the next one fails, whether it was on its way
//!   or comes later, and whoever asked takes for unwritten what the last good one does not cover
//!   (INV-87). One such answer is enough, if somebody waits for it.

use std::collections::VecDeque;

use forebay_device::{Buf, Completer, Data, IoError, IoErrorKind};

use crate::nbd::limits::{CHUNKS_MAX, RESENDS_MAX};
use crate::nbd::wire::command;

/// How a FLUSH ends that cannot cover what was acknowledged before, and whatever else cannot reach the
/// server any more.
pub(super) const GONE: IoError = IoError::new(IoErrorKind::Vanished);

/// Which bytes of a read have come.
#[derive(Default)]
struct Filled {
    bytes: u32,
    /// The newest run; most replies have no other.
    last: (u32, u32),
    before: Vec<(u32, u32)>,
}

impl Filled {
    /// Notes bytes that lie in a read of `len`; false if that makes no sense.
    fn add(&mut self, start: u32, count: u32, len: u32) -> bool {
        let end = start.checked_add(count).filter(|end| *end <= len);
        let (Some(end), Some(bytes)) = (end, self.bytes.checked_add(count)) else { return false };
        self.bytes = bytes;
        if self.last.1 != start {
            if self.last.1 > self.last.0 {
                self.before.push(self.last);
            }
            self.last.0 = start;
        }
        self.last.1 = end;
        bytes <= len && self.before.len() < CHUNKS_MAX
    }

    /// Whether all of `len` bytes have come, each once.
    fn is_whole(&mut self, len: u32) -> bool {
        self.before.push(self.last);
        self.before.sort_unstable();
        let mut at = 0;
        self.before.iter().all(|(start, end)| *start == std::mem::replace(&mut at, *end))
            && at == len
    }
}

/// A command for the server.
pub(super) struct Command {
    pub(super) kind: u16,
    pub(super) offset: u64,
    pub(super) len: u32,
    /// What a write writes.
    pub(super) data: Option<Data>,
    /// What a read fills; with whoever receives meanwhile.
    pub(super) buf: Option<Buf>,
    completer: Completer,
    /// Its name on the wire: its place here, and a serial number in front, so that the answer to an
    /// older command is no answer to this one.
    cookie: u64,
    is_sent: bool,
    /// Connections that it was sent on and that broke.
    breaks: u32,
    /// Of a flush: writes that were acknowledged before it.
    covers: u64,
    filled: Filled,
    /// What a part of the reply has said.
    error: Option<IoError>,
}

impl Command {
    pub(super) fn new(kind: u16, offset: u64, len: u32, completer: Completer) -> Command {
        let (filled, cookie, is_sent, breaks, covers) = Default::default();
        let (data, buf, error) = (None, None, None);
        Command {
            kind,
            offset,
            len,
            data,
            buf,
            completer,
            cookie,
            is_sent,
            breaks,
            covers,
            filled,
            error,
        }
    }

    /// Where in the buffer of a read bytes belong that a part of the reply has; `None` if nowhere.
    pub(super) fn place(&mut self, offset: u64, count: u32) -> Option<usize> {
        let start = u32::try_from(offset.checked_sub(self.offset)?).ok()?;
        let fits = self.kind == command::READ && self.filled.add(start, count, self.len);
        fits.then_some(start as usize)
    }

    pub(super) fn note_error(&mut self, error: IoError) {
        self.error.get_or_insert(error);
    }

    /// What the parts of a reply come to when the last one is there; `None` if some are missing.
    pub(super) fn result(&mut self) -> Option<Result<(), IoError>> {
        match self.error {
            Some(error) => Some(Err(error)),
            None if self.kind != command::READ => Some(Ok(())),
            None => self.filled.is_whole(self.len).then_some(Ok(())),
        }
    }
}

/// See the head of the file.
#[derive(Default)]
pub(super) struct Commands {
    slots: Vec<Option<Command>>,
    free: Vec<usize>,
    /// Cookies of those that are to be sent.
    unsent: VecDeque<u64>,
    serial: u32,
    /// Writes of any kind that were acknowledged.
    acknowledged: u64,
    /// As many of them are durable, or a flush has failed since.
    settled: u64,
    /// Whether some may have been lost without a flush having failed since.
    in_doubt: bool,
}

fn slot_of(cookie: u64) -> usize {
    (cookie & u64::from(u32::MAX)) as usize
}

impl Commands {
    /// Takes a command; a flush that cannot keep its promise ends at once.
    pub(super) fn add(&mut self, mut command: Command) {
        if command.kind == command::FLUSH && self.in_doubt {
            return self.finish(command, Err(GONE));
        }
        command.covers = self.acknowledged;
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        self.serial = self.serial.wrapping_add(1);
        command.cookie = u64::from(self.serial) << 32 | slot as u64;
        self.unsent.push_back(command.cookie);
        self.slots[slot] = Some(command);
    }

    /// Ends a command that nothing is asked of the server for.
    pub(super) fn finish(&mut self, command: Command, result: Result<(), IoError>) {
        let Command { kind, covers, buf, completer, .. } = command;
        match (kind, result) {
            (command::READ, _) => (),
            (command::FLUSH, Ok(())) => self.settled = self.settled.max(covers),
            // Nobody was told if nobody waits.
            (command::FLUSH, Err(_)) if completer.is_abandoned() => (),
            (command::FLUSH, Err(_)) => {
                (self.settled, self.in_doubt) = (self.acknowledged, false);
            }
            (_, Ok(())) => self.acknowledged += 1,
            (_, Err(_)) => (),
        }
        completer.complete(result, buf);
    }

    pub(super) fn has_unsent(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// The next one to send, and its name.
    pub(super) fn next(&mut self) -> Option<(u64, &Command)> {
        let cookie = self.unsent.pop_front()?;
        let command = self.slots[slot_of(cookie)].as_mut()?;
        command.is_sent = true;
        Some((cookie, command))
    }

    /// The command that the server answers; `None` if there is none of that name.
    pub(super) fn answered(&mut self, cookie: u64) -> Option<&mut Command> {
        let command = self.slots.get_mut(slot_of(cookie))?.as_mut()?;
        (command.is_sent && command.cookie == cookie).then_some(command)
    }

    /// Ends a command.
    pub(super) fn end(&mut self, cookie: u64, result: Result<(), IoError>) {
        let Some(command) = self.slots.get_mut(slot_of(cookie)).and_then(Option::take) else {
            return;
        };
        self.free.push(slot_of(cookie));
        self.finish(command, result);
    }

    /// The connection has broken: what has no answer is sent again on the next one, but for flushes that
    /// would prove too much, and for what has met too many breaks to be innocent of them.
    pub(super) fn note_break(&mut self) {
        self.in_doubt = self.acknowledged > self.settled;
        let in_doubt = self.in_doubt;
        self.unsent.clear();
        let mut all: Vec<u64> = self.slots.iter().flatten().map(|command| command.cookie).collect();
        let serial = self.serial;
        // The oldest first, although serials begin anew some day.
        all.sort_unstable_by_key(|cookie| u32::MAX - serial.wrapping_sub((cookie >> 32) as u32));
        for cookie in all {
            let Some(command) = self.slots[slot_of(cookie)].as_mut() else { continue };
            command.breaks += u32::from(std::mem::take(&mut command.is_sent));
            (command.filled, command.error) = Default::default();
            let lies = command.kind == command::FLUSH && in_doubt;
            match lies || command.breaks > RESENDS_MAX {
                true => self.end(cookie, Err(GONE)),
                false => self.unsent.push_back(cookie),
            }
        }
    }

    /// Ends all of them.
    pub(super) fn give_up(&mut self) {
        self.unsent.clear();
        for slot in 0..self.slots.len() {
            if let Some(command) = self.slots[slot].take() {
                self.free.push(slot);
                self.finish(command, Err(GONE));
            }
        }
    }
}
