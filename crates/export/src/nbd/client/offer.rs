//! Agreeing with a server on an export: the newest form that both know, and what the export can do.

use std::fmt;

use forebay_device::{Buf, Geometry};

use crate::Transport;
use crate::nbd::limits::{
    OPTION_ANSWERS_MAX, OPTION_BYTES_MAX, ORIGIN_BLOCK_BYTES_MAX, REQUEST_BYTES_MAX, SECTOR_BYTES,
};
use crate::nbd::wire::{
    Fields, Form, MAGIC_OPTION, MAGIC_OPTION_REPLY, MAGIC_SERVER, export_flag, handshake_flag,
    info, option, option_reply,
};

/// Characters of a server's own words that are repeated to a person.
const WORDS_MAX: usize = 200;

/// Why an export cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RemoteError {
    /// Nobody can be reached there, for this reason.
    Unreachable(String),
    /// The server does not answer in time.
    Silent,
    /// The server has ended the connection.
    Closed,
    /// What answers is no NBD server, or breaks the protocol.
    NotNbd,
    /// The server knows only a form of the protocol that is not used any more.
    TooOld,
    /// The server wants TLS.
    NeedsTls,
    /// The server has no export of this name.
    NoExport,
    /// The server refuses, with these words.
    Refused(String),
    /// The export cannot be written.
    ReadOnly,
    /// What is written cannot be made durable.
    NoFlush,
    /// The server takes only requests of this many bytes.
    BlockSize(u32),
    /// The export's size, in bytes, is no number of whole sectors of that many.
    Size(u64, u32),
    /// After the connection broke, another export is there: this is what differs.
    Changed(String),
}

impl fmt::Display for RemoteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable(why) => write!(f, "its server cannot be reached: {why}"),
            Self::Silent => f.write_str("its server does not answer"),
            Self::Closed => f.write_str("its server has closed the connection"),
            Self::NotNbd => f.write_str("what answers there does not speak the NBD protocol"),
            Self::TooOld => f.write_str("its server speaks an NBD protocol that is too old"),
            Self::NeedsTls => {
                f.write_str("its server wants TLS, which is not supported to origins yet")
            }
            Self::NoExport => f.write_str("its server has no export of this name"),
            Self::Refused(words) if words.is_empty() => f.write_str("its server refuses"),
            Self::Refused(words) => write!(f, "its server refuses: {words}"),
            Self::ReadOnly => f.write_str("the export is read-only"),
            Self::NoFlush => f.write_str("its server has no FLUSH: nothing can be made durable"),
            Self::BlockSize(bytes) => {
                write!(f, "its server takes only requests of whole {bytes} bytes")
            }
            Self::Size(0, _) => f.write_str("the export is empty"),
            Self::Size(size, sector) => {
                write!(f, "the export has {size} B, which is no number of {sector} B sectors")
            }
            Self::Changed(what) => write!(f, "another export is there than before: {what}"),
        }
    }
}

impl std::error::Error for RemoteError {}

impl RemoteError {
    /// What to do about it.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Unreachable(_) | Self::Silent | Self::Closed => {
                "start the server, or check host, port and socket; `nbdinfo URI` asks it, too"
            }
            Self::NotNbd => "check host, port and socket; an NBD server's usual port is 10809",
            Self::TooOld => "any server of the last years will do: nbdkit, qemu-nbd, nbd-server",
            Self::NeedsTls => {
                "have it serve without TLS on a Unix socket or through a tunnel of your own"
            }
            Self::NoExport => "`nbdinfo --list URI` shows those that it has",
            Self::Refused(_) => "the server's log may tell more",
            Self::ReadOnly => "start the server without its option for that",
            Self::NoFlush => "use a server that has it, as nbdkit, qemu-nbd and nbd-server do",
            Self::BlockSize(_) => "origins have sectors of 512 or 4096 bytes",
            Self::Size(..) => "make it as large as whole sectors: `truncate -s %4096 FILE`",
            Self::Changed(_) => {
                "serve the old one there again; if it has grown, restart the daemon, which takes it"
            }
        }
    }
}

/// What is agreed on. Another connection must come to the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Offer {
    pub(super) size_bytes: u64,
    pub(super) sector_bytes: u32,
    /// Longest request.
    pub(super) request_bytes_max: u32,
    pub(super) can_trim: bool,
    pub(super) can_zero: bool,
}

impl Offer {
    pub(super) fn geometry(&self) -> Geometry {
        Geometry {
            size_bytes: self.size_bytes,
            sector_bytes: self.sector_bytes,
            discard: self.can_trim,
            stripe: None,
            controller: None,
            durable_writes: false,
        }
    }

    /// Whether a later connection offers the same.
    pub(super) fn check_same(&self, other: &Offer) -> Result<(), RemoteError> {
        if self == other {
            return Ok(());
        }
        Err(RemoteError::Changed(match self.size_bytes == other.size_bytes {
            false => format!("it has {} B, not {} B", other.size_bytes, self.size_bytes),
            true => "it takes other requests".to_owned(),
        }))
    }

    fn of(terms: &Terms) -> Result<Offer, RemoteError> {
        let (size_bytes, flags) = terms.export.ok_or(RemoteError::NotNbd)?;
        let has = |flag| flags & flag != 0;
        if has(export_flag::READ_ONLY) {
            return Err(RemoteError::ReadOnly);
        }
        if !has(export_flag::SEND_FLUSH) {
            return Err(RemoteError::NoFlush);
        }
        let (block_min, request_max) = terms.blocks.unwrap_or((1, REQUEST_BYTES_MAX));
        let sector_bytes =
            if block_min <= SECTOR_BYTES { SECTOR_BYTES } else { ORIGIN_BLOCK_BYTES_MAX };
        let request_bytes_max = request_max.min(REQUEST_BYTES_MAX) / sector_bytes * sector_bytes;
        if !block_min.is_power_of_two() || block_min > sector_bytes || request_bytes_max == 0 {
            return Err(RemoteError::BlockSize(block_min.max(1)));
        }
        if size_bytes == 0 || !size_bytes.is_multiple_of(u64::from(sector_bytes)) {
            return Err(RemoteError::Size(size_bytes, sector_bytes));
        }
        let (can_trim, can_zero) =
            (has(export_flag::SEND_TRIM), has(export_flag::SEND_WRITE_ZEROES));
        Ok(Offer { size_bytes, sector_bytes, request_bytes_max, can_trim, can_zero })
    }
}

/// What the server has said.
#[derive(Default)]
struct Terms {
    /// Size and flags.
    export: Option<(u64, u16)>,
    /// Smallest and longest request.
    blocks: Option<(u32, u32)>,
}

impl Terms {
    /// Takes a piece of information; `None` if it is malformed.
    fn note(&mut self, payload: &[u8]) -> Option<()> {
        let mut fields = Fields(payload);
        match fields.u16()? {
            info::EXPORT => self.export = Some((fields.u64()?, fields.u16()?)),
            info::BLOCK_SIZE => {
                let (min, _preferred) = (fields.u32()?, fields.u32()?);
                self.blocks = Some((min, fields.u32()?));
            }
            _ => (),
        }
        Some(())
    }
}

/// An answer to an option.
struct Answer {
    kind: u32,
    payload: Buf,
}

impl Answer {
    /// What a refusal means.
    fn refusal(&self) -> RemoteError {
        match self.kind {
            option_reply::ERR_TLS_REQD => RemoteError::NeedsTls,
            option_reply::ERR_UNKNOWN => RemoteError::NoExport,
            option_reply::ERR_UNSUP => RemoteError::TooOld,
            _ => RemoteError::Refused(words(&self.payload)),
        }
    }
}

/// A server's own words, fit for a terminal.
fn words(payload: &[u8]) -> String {
    let text = String::from_utf8_lossy(payload);
    text.chars().filter(|c| !c.is_control()).take(WORDS_MAX).collect()
}

/// The stream of a negotiation.
struct Talk<'a, T>(&'a T);

impl<T: Transport> Talk<'_, T> {
    async fn receive(&self, bytes: usize) -> Result<Buf, RemoteError> {
        let (buf, result) = self.0.recv_exact(Buf::new(bytes)).await;
        result.map(|()| buf).map_err(|_| RemoteError::Closed)
    }

    async fn send(&self, bytes: &[u8]) -> Result<(), RemoteError> {
        let sent = self.0.send_all(Buf::copy_of(bytes).freeze()).await;
        sent.map_err(|_| RemoteError::Closed)
    }

    async fn ask(&self, number: u32, payload: &[u8]) -> Result<(), RemoteError> {
        let len = u32::try_from(payload.len()).expect("a name is short");
        let head = [&MAGIC_OPTION.to_be_bytes()[..], &number.to_be_bytes(), &len.to_be_bytes()];
        self.send(&[&head.concat(), payload].concat()).await
    }

    async fn answer(&self, number: u32) -> Result<Answer, RemoteError> {
        let header = self.receive(20).await?;
        let mut fields = Fields(&header);
        let head = (fields.u64(), fields.u32(), fields.u32(), fields.u32());
        match head {
            (Some(MAGIC_OPTION_REPLY), Some(own), Some(kind), Some(len))
                if own == number && len <= OPTION_BYTES_MAX =>
            {
                Ok(Answer { kind, payload: self.receive(len as usize).await? })
            }
            _ => Err(RemoteError::NotNbd),
        }
    }

    /// The greeting.
    async fn greet(&self) -> Result<(), RemoteError> {
        let greeting = self.receive(18).await?;
        let mut fields = Fields(&greeting);
        let (first, second, flags) = (fields.u64(), fields.u64(), fields.u16().unwrap_or(0));
        if first != Some(MAGIC_SERVER) {
            return Err(RemoteError::NotNbd);
        }
        if second != Some(MAGIC_OPTION) || flags & handshake_flag::FIXED_NEWSTYLE == 0 {
            return Err(RemoteError::TooOld);
        }
        let own = flags & (handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES);
        self.send(&u32::from(own).to_be_bytes()).await
    }

    async fn choose_form(&self) -> Result<Form, RemoteError> {
        self.ask(option::STRUCTURED_REPLY, &[]).await?;
        let answer = self.answer(option::STRUCTURED_REPLY).await?;
        match answer.kind {
            option_reply::ACK => Ok(Form::Structured),
            // Who wants TLS wants it for this already.
            option_reply::ERR_TLS_REQD => Err(RemoteError::NeedsTls),
            kind if kind & option_reply::ERROR != 0 => Ok(Form::Simple),
            _ => Err(RemoteError::NotNbd),
        }
    }

    async fn go(&self, name: &str) -> Result<Terms, RemoteError> {
        let len = u32::try_from(name.len()).expect("a name is short");
        let asked = [&1_u16.to_be_bytes()[..], &info::BLOCK_SIZE.to_be_bytes()].concat();
        self.ask(option::GO, &[&len.to_be_bytes(), name.as_bytes(), &asked].concat()).await?;
        let mut terms = Terms::default();
        for _ in 0..OPTION_ANSWERS_MAX {
            let answer = self.answer(option::GO).await?;
            match answer.kind {
                option_reply::ACK => return Ok(terms),
                option_reply::INFO => terms.note(&answer.payload).ok_or(RemoteError::NotNbd)?,
                kind if kind & option_reply::ERROR != 0 => return Err(answer.refusal()),
                _ => return Err(RemoteError::NotNbd),
            }
        }
        Err(RemoteError::NotNbd)
    }
}

/// Agrees with a server on one of its exports. The caller limits the time.
pub(super) async fn negotiate<T: Transport>(
    stream: &T,
    name: &str,
) -> Result<(Offer, Form), RemoteError> {
    let talk = Talk(stream);
    talk.greet().await?;
    let form = talk.choose_form().await?;
    let terms = talk.go(name).await?;
    Ok((Offer::of(&terms)?, form))
}
