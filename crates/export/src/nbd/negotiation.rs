//! From the greeting to the choice of an export. No I/O: [`crate::nbd::handshake`] moves the
//! bytes.
//!
//! * Each option of a fixed newstyle client is answered: by an acknowledgement or one error,
//!   perhaps after other replies. Only `EXPORT_NAME` has no way to report an error; it ends the
//!   connection.
//! * With TLS forced, nothing but the wish for it is answered before it is there. Otherwise what a
//!   client without it asks for exports that need it, or that are not there if one needs it, is
//!   refused alike. What was agreed on before it is forgotten.
//! * What a client sends is looked at only if it is no longer than
//!   [`crate::nbd::limits::OPTION_BYTES_MAX`].

use std::rc::Rc;

use crate::Export;
use crate::nbd::command::Session;
use crate::nbd::complaint::{End, Fault};
use crate::nbd::contexts::Contexts;
use crate::nbd::exports::{Entry, Exports, Seat};
use crate::nbd::limits::{PREFERRED_BYTES, REQUEST_BYTES_MAX, SECTOR_BYTES};
use crate::nbd::tls::Tls;
use crate::nbd::wire::{
    Fields, Form, MAGIC_OPTION, MAGIC_OPTION_REPLY, MAGIC_SERVER, handshake_flag, info, option,
    option_reply,
};

/// The zeroes at the end of the answer to `EXPORT_NAME`, for clients that want them.
const PADDING_BYTES: usize = 124;

const FLAGS: u16 = handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES;

const NEEDS_TLS: &str = "this needs TLS";

/// What to do after an option.
pub(crate) enum Step<'a, E> {
    /// Receive the next option.
    Next,
    /// Send what there is to send, then encrypt everything.
    StartTls(&'a Tls),
    /// Send what there is to send, then begin transmission.
    Transmit(Seat<E>, Session),
    /// Send what there is to send, then close the connection.
    End(End),
}

/// The part of a client's connection before transmission.
pub(crate) struct Negotiation<'a, E> {
    exports: &'a Exports<E>,
    tls: Option<&'a Tls>,
    is_encrypted: bool,
    fixed_newstyle: bool,
    no_zeroes: bool,
    form: Form,
    /// What the client has chosen to be told of which export; of another one nothing.
    chosen: Option<(Rc<Entry<E>>, Contexts)>,
}

/// The first bytes of a connection.
pub(crate) fn greeting() -> [u8; 18] {
    let mut bytes = [0; 18];
    bytes[..8].copy_from_slice(&MAGIC_SERVER.to_be_bytes());
    bytes[8..16].copy_from_slice(&MAGIC_OPTION.to_be_bytes());
    bytes[16..].copy_from_slice(&FLAGS.to_be_bytes());
    bytes
}

impl<'a, E: Export> Negotiation<'a, E> {
    /// Begins with the client's flags; `None` if it wants what was not offered.
    pub(crate) fn new(
        exports: &'a Exports<E>,
        tls: Option<&'a Tls>,
        client_flags: u32,
    ) -> Option<Self> {
        let has = |flag: u16| client_flags & u32::from(flag) != 0;
        (client_flags & !u32::from(FLAGS) == 0).then_some(Self {
            exports,
            tls,
            is_encrypted: false,
            fixed_newstyle: has(handshake_flag::FIXED_NEWSTYLE),
            no_zeroes: has(handshake_flag::NO_ZEROES),
            form: Form::Simple,
            chosen: None,
        })
    }

    /// Answers an option into `out`. `payload` is `None` if it was too long.
    pub(crate) fn option(
        &mut self,
        number: u32,
        payload: Option<&[u8]>,
        out: &mut Vec<u8>,
    ) -> Step<'a, E> {
        if number == option::EXPORT_NAME {
            return self.export_name(payload, out);
        }
        if !self.fixed_newstyle {
            return Step::End(Some(Fault::NotNbd)); // such a client understands no replies
        }
        if self.must_encrypt() && !matches!(number, option::START_TLS | option::ABORT) {
            refuse(out, number, option_reply::ERR_TLS_REQD, NEEDS_TLS);
            return Step::Next;
        }
        match (number, payload) {
            (option::START_TLS, payload) => return self.start_tls(payload, out),
            (option::ABORT, _) => {
                reply(out, number, option_reply::ACK, &[]);
                return Step::End(None);
            }
            (option::LIST | option::STRUCTURED_REPLY | option::EXTENDED_HEADERS, Some([])) => {
                self.plain_option(number, out);
            }
            (option::INFO | option::GO, Some(payload)) => return self.info(number, payload, out),
            (option::LIST_META_CONTEXT | option::SET_META_CONTEXT, Some(payload)) => {
                self.contexts(number, payload, out);
            }
            (option::LIST | option::STRUCTURED_REPLY | option::EXTENDED_HEADERS, Some(_)) => {
                refuse(out, number, option_reply::ERR_INVALID, "this option takes no data");
            }
            (
                option::LIST
                | option::STRUCTURED_REPLY
                | option::INFO
                | option::GO
                | option::LIST_META_CONTEXT
                | option::SET_META_CONTEXT
                | option::EXTENDED_HEADERS,
                None,
            ) => {
                if number == option::SET_META_CONTEXT {
                    self.chosen = None;
                }
                refuse(out, number, option_reply::ERR_TOO_BIG, "the option's data is too long");
            }
            _ => refuse(out, number, option_reply::ERR_UNSUP, "the option is not supported"),
        }
        Step::Next
    }

    /// Whether nothing may be told to this client.
    fn must_encrypt(&self) -> bool {
        !self.is_encrypted && self.tls.is_some_and(Tls::is_forced)
    }

    /// Whether a client as this one may use an export.
    fn may_use(&self, export: &E) -> bool {
        self.is_encrypted || !export.needs_tls()
    }

    /// The export that a client means, or the kind of error and the words for it. A client without
    /// TLS does not learn which names there are.
    fn find(&self, name: &str) -> Result<Rc<Entry<E>>, (u32, &'static str)> {
        match self.exports.find(name) {
            Some(entry) if self.may_use(&entry.export) => Ok(entry),
            None if self.is_encrypted || !self.exports.any(E::needs_tls) => {
                Err((option_reply::ERR_UNKNOWN, "there is no export of this name"))
            }
            _ => Err((option_reply::ERR_TLS_REQD, NEEDS_TLS)),
        }
    }

    fn start_tls(&mut self, payload: Option<&[u8]>, out: &mut Vec<u8>) -> Step<'a, E> {
        let number = option::START_TLS;
        let refused = match (self.tls, payload) {
            (None, _) => (option_reply::ERR_UNSUP, "this server has no TLS"),
            (Some(_), Some([])) if self.is_encrypted => {
                (option_reply::ERR_INVALID, "TLS is in use already")
            }
            (Some(tls), Some([])) => return self.encrypt(tls, out),
            (Some(_), _) => (option_reply::ERR_INVALID, "this option takes no data"),
        };
        refuse(out, number, refused.0, refused.1);
        Step::Next
    }

    fn encrypt(&mut self, tls: &'a Tls, out: &mut Vec<u8>) -> Step<'a, E> {
        // Somebody in between may have said whatever came before.
        self.is_encrypted = true;
        self.form = Form::Simple;
        self.chosen = None;
        reply(out, option::START_TLS, option_reply::ACK, &[]);
        Step::StartTls(tls)
    }

    /// An option without data.
    fn plain_option(&mut self, number: u32, out: &mut Vec<u8>) {
        match number {
            option::LIST => self.list(out),
            option::EXTENDED_HEADERS => self.form = Form::Extended,
            _ if self.form == Form::Extended => {
                let message = "extended headers were agreed on already";
                return refuse(out, number, option_reply::ERR_EXT_HEADER_REQD, message);
            }
            _ => self.form = Form::Structured,
        }
        reply(out, number, option_reply::ACK, &[]);
    }

    fn session(&self, entry: &Rc<Entry<E>>) -> Session {
        let chosen = self.chosen.as_ref().filter(|(of, _)| Rc::ptr_eq(of, entry));
        let export = &entry.export;
        Session {
            size_bytes: export.size_bytes(),
            read_only: export.read_only(),
            form: self.form,
            contexts: chosen.map_or(Contexts::default(), |(_, contexts)| *contexts),
        }
    }

    /// Lists or chooses what block status tells. A choice that fails leaves none.
    fn contexts(&mut self, number: u32, payload: &[u8], out: &mut Vec<u8>) {
        let sets = number == option::SET_META_CONTEXT;
        if sets {
            self.chosen = None;
        }
        if self.form == Form::Simple {
            let message = "structured replies have to be agreed on first";
            return refuse(out, number, option_reply::ERR_INVALID, message);
        }
        let Some((name, named)) = parse_contexts(payload, !sets) else {
            let message = "the option's data is malformed";
            return refuse(out, number, option_reply::ERR_INVALID, message);
        };
        let entry = match self.find(name) {
            Ok(entry) => entry,
            Err((kind, why)) => return refuse(out, number, kind, why),
        };
        for context in named.each() {
            let id = if sets { context.number() } else { 0 };
            let body = [&id.to_be_bytes()[..], context.name().as_bytes()].concat();
            reply(out, number, option_reply::META_CONTEXT, &body);
        }
        if sets {
            self.chosen = Some((entry, named));
        }
        reply(out, number, option_reply::ACK, &[]);
    }

    fn export_name(&self, payload: Option<&[u8]>, out: &mut Vec<u8>) -> Step<'a, E> {
        if self.must_encrypt() {
            return Step::End(Some(Fault::NeedsTls));
        }
        if self.form == Form::Extended {
            return Step::End(Some(Fault::NotNbd)); // the protocol asks for GO then
        }
        let name = payload.and_then(|payload| std::str::from_utf8(payload).ok());
        let entry = match name.map(|name| self.find(name)) {
            Some(Ok(entry)) => entry,
            Some(Err((option_reply::ERR_TLS_REQD, _))) => {
                return Step::End(Some(Fault::NeedsTls));
            }
            Some(Err(_)) | None => return Step::End(Some(Fault::UnknownExport)),
        };
        let Some(seat) = Seat::take(&entry) else {
            return Step::End(Some(Fault::ExportBusy));
        };
        let session = self.session(&entry);
        out.extend(session.size_bytes.to_be_bytes());
        out.extend(session.flags().to_be_bytes());
        if !self.no_zeroes {
            out.extend([0; PADDING_BYTES]);
        }
        Step::Transmit(seat, session)
    }

    fn list(&self, out: &mut Vec<u8>) {
        self.exports.for_each(|export| {
            if !self.may_use(export) {
                return;
            }
            let mut body = Vec::new();
            body.extend(u32_len(export.name()).to_be_bytes());
            body.extend(export.name().as_bytes());
            body.extend(export.description().as_bytes());
            reply(out, option::LIST, option_reply::SERVER, &body);
        });
    }

    /// `INFO` and `GO`, which differ only in what follows.
    fn info(&self, number: u32, payload: &[u8], out: &mut Vec<u8>) -> Step<'a, E> {
        let Some((name, wanted)) = parse_info(payload) else {
            refuse(out, number, option_reply::ERR_INVALID, "the option's data is malformed");
            return Step::Next;
        };
        let entry = match self.find(name) {
            Ok(entry) => entry,
            Err((kind, why)) => {
                refuse(out, number, kind, why);
                return Step::Next;
            }
        };
        let seat = if number == option::GO {
            let Some(seat) = Seat::take(&entry) else {
                refuse(out, number, option_reply::ERR_POLICY, "the export has too many clients");
                return Step::Next;
            };
            Some(seat)
        } else {
            None
        };
        let (export, session) = (&entry.export, self.session(&entry));
        let mut send = |kind: u16, fields: &[&[u8]]| {
            let body = [&[&kind.to_be_bytes()[..]], fields].concat().concat();
            reply(out, number, option_reply::INFO, &body);
        };
        send(info::EXPORT, &[&session.size_bytes.to_be_bytes(), &session.flags().to_be_bytes()]);
        // Sent to all clients: those that did not ask skip it, and may yet look at it.
        send(
            info::BLOCK_SIZE,
            &[
                &SECTOR_BYTES.to_be_bytes(),
                &PREFERRED_BYTES.to_be_bytes(),
                &REQUEST_BYTES_MAX.to_be_bytes(),
            ],
        );
        let wants = |kind: u16| wanted.chunks_exact(2).any(|bytes| bytes == kind.to_be_bytes());
        if wants(info::NAME) {
            send(info::NAME, &[export.name().as_bytes()]);
        }
        if wants(info::DESCRIPTION) && !export.description().is_empty() {
            send(info::DESCRIPTION, &[export.description().as_bytes()]);
        }
        reply(out, number, option_reply::ACK, &[]);
        seat.map_or(Step::Next, |seat| Step::Transmit(seat, session))
    }
}

/// An export's name and the kinds of information that are asked for, two bytes each.
fn parse_info(payload: &[u8]) -> Option<(&str, &[u8])> {
    let mut fields = Fields(payload);
    let name_bytes = fields.u32()?;
    let name = fields.bytes(usize::try_from(name_bytes).ok()?)?;
    let count = fields.u16()?;
    let wanted = fields.bytes(2 * usize::from(count))?;
    fields.0.is_empty().then_some(())?;
    Some((std::str::from_utf8(name).ok()?, wanted))
}

/// An export's name and the contexts that the queries name. No query in a list asks for all.
fn parse_contexts(payload: &[u8], is_list: bool) -> Option<(&str, Contexts)> {
    let mut fields = Fields(payload);
    let name_bytes = fields.u32()?;
    let name = std::str::from_utf8(fields.bytes(usize::try_from(name_bytes).ok()?)?).ok()?;
    let count = fields.u32()?;
    let mut named = if is_list && count == 0 { Contexts::all() } else { Contexts::default() };
    for _ in 0..count {
        let query_bytes = fields.u32()?;
        let query = fields.bytes(usize::try_from(query_bytes).ok()?)?;
        named = named.and(Contexts::named(query, is_list));
    }
    fields.0.is_empty().then_some((name, named))
}

fn u32_len(text: &str) -> u32 {
    u32::try_from(text.len()).expect("names are short")
}

fn refuse(out: &mut Vec<u8>, number: u32, kind: u32, message: &str) {
    reply(out, number, kind, message.as_bytes());
}

fn reply(out: &mut Vec<u8>, number: u32, kind: u32, body: &[u8]) {
    let len = u32::try_from(body.len()).expect("replies are short");
    out.extend(MAGIC_OPTION_REPLY.to_be_bytes());
    out.extend(number.to_be_bytes());
    out.extend(kind.to_be_bytes());
    out.extend(len.to_be_bytes());
    out.extend(body);
}

#[cfg(test)]
#[path = "negotiation_tests.rs"]
pub(crate) mod tests;
