//! What block status tells: the metadata contexts, and their descriptors. No I/O.
//!
//! * `base:allocation`, of the protocol: what reads as zeroes is a hole (bits 0 and 1), all else is
//!   data (no bit).
//! * `forebay:tier`: where the data is, one bit of [`Tier`].

use crate::nbd::wire::{Form, ReplyHeader, Request, put_descriptor};
use crate::{Extent, Tier};

/// A metadata context; its number is its place in a set, and its identity in replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Context {
    Allocation = 1,
    Tier = 2,
}

/// Those that the server knows.
const ALL: [Context; 2] = [Context::Allocation, Context::Tier];

const HOLE: u32 = 1 << 0;
const ZERO: u32 = 1 << 1;

impl Context {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Context::Allocation => "base:allocation",
            Context::Tier => "forebay:tier",
        }
    }

    pub(crate) fn number(self) -> u32 {
        self as u32
    }

    fn flags(self, extent: &Extent) -> u32 {
        match self {
            Context::Allocation if extent.is_zero => HOLE | ZERO,
            Context::Allocation => 0,
            Context::Tier => match extent.tier {
                Tier::Ram => 1 << 0,
                Tier::SsdClean => 1 << 1,
                Tier::SsdDirty => 1 << 2,
                Tier::Origin => 1 << 3,
                Tier::Lost => 1 << 4,
            },
        }
    }
}

/// Which contexts a client has chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Contexts(u8);

impl Contexts {
    /// Those that a query names. In a list (`wildcards`) the name of a namespace with its colon
    /// stands for all of it.
    pub(crate) fn named(query: &[u8], wildcards: bool) -> Self {
        let mut found = Self::default();
        for context in ALL {
            let name = context.name().as_bytes();
            let namespace = name.split_inclusive(|&byte| byte == b':').next();
            if query == name || wildcards && Some(query) == namespace {
                found.add(context);
            }
        }
        found
    }

    pub(crate) fn all() -> Self {
        let mut all = Self::default();
        ALL.into_iter().for_each(|context| all.add(context));
        all
    }

    fn add(&mut self, context: Context) {
        self.0 |= context as u8;
    }

    pub(crate) fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(crate) fn each(self) -> impl Iterator<Item = Context> {
        ALL.into_iter().filter(move |context| self.0 & *context as u8 != 0)
    }
}

/// The parts of the answer to a block status: its first header, and all that follows it.
///
/// Each context tells of the same extents; neighbours that it cannot tell apart are one descriptor.
pub(crate) fn answer(
    form: Form,
    request: &Request,
    contexts: Contexts,
    extents: &[Extent],
    only_one: bool,
) -> (ReplyHeader, Vec<u8>) {
    let mut first = None;
    let mut rest = Vec::new();
    let mut left = contexts.each().count();
    let mut runs: Vec<(u64, u32)> = Vec::with_capacity(extents.len());
    for context in contexts.each() {
        left -= 1;
        runs.clear();
        for extent in extents {
            let flags = context.flags(extent);
            match runs.last_mut() {
                Some((len, same)) if *same == flags => *len += extent.len,
                Some(_) if only_one => break,
                _ => runs.push((extent.len, flags)),
            }
        }
        let count = u32::try_from(runs.len()).expect("an answer has few extents");
        let header = ReplyHeader::status(form, request, left == 0, context.number(), count);
        match first {
            None => first = Some(header),
            Some(_) => rest.extend(header.as_bytes()),
        }
        runs.iter().for_each(|&(len, flags)| put_descriptor(&mut rest, form, len, flags));
    }
    (first.expect("a context is chosen"), rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXTENTS: [Extent; 4] = [
        Extent { len: 4096, is_zero: false, tier: Tier::Origin },
        Extent { len: 512, is_zero: false, tier: Tier::SsdClean },
        Extent { len: 1024, is_zero: true, tier: Tier::SsdDirty },
        Extent { len: 512, is_zero: false, tier: Tier::SsdDirty },
    ];

    fn descriptors(bytes: &[u8]) -> Vec<(u32, u32)> {
        let word = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
        (0..bytes.len()).step_by(8).map(|at| (word(at), word(at + 4))).collect()
    }

    fn ask(contexts: Contexts, only_one: bool) -> (ReplyHeader, Vec<u8>) {
        let request = Request { flags: 0, kind: 7, cookie: 9, offset: 0, len: 1 << 20 };
        answer(Form::Structured, &request, contexts, &EXTENTS, only_one)
    }

    #[test]
    fn queries_name_contexts_and_in_a_list_namespaces() {
        let count =
            |query: &str, wildcards| Contexts::named(query.as_bytes(), wildcards).each().count();
        for wildcards in [false, true] {
            assert_eq!(count("base:allocation", wildcards), 1);
            assert_eq!(count("forebay:tier", wildcards), 1);
            for unknown in
                ["", "base", "forebay:", "base:", "base:allocation2", "qemu:dirty-bitmap:x"]
            {
                let is_namespace = wildcards && unknown.ends_with(':');
                assert_eq!(count(unknown, wildcards), usize::from(is_namespace), "{unknown}");
            }
        }
        assert_eq!(Contexts::all().each().count(), 2);
        assert!(Contexts::default().is_empty());
    }

    #[test]
    fn each_context_merges_what_it_cannot_tell_apart() {
        let (header, rest) = ask(Contexts::named(b"base:allocation", false), false);
        assert_eq!(header.as_bytes()[4..6], [0, 1], "the only chunk is the last");
        assert_eq!(descriptors(&rest), [(4608, 0), (1024, 3), (512, 0)]);
        let (_, rest) = ask(Contexts::named(b"forebay:tier", false), false);
        assert_eq!(descriptors(&rest), [(4096, 8), (512, 2), (1536, 4)]);
    }

    #[test]
    fn two_contexts_are_two_chunks() {
        let (header, rest) = ask(Contexts::all(), false);
        assert_eq!(header.as_bytes()[4..6], [0, 0], "more is to come");
        assert_eq!(header.as_bytes()[20..], [0, 0, 0, 1]);
        assert_eq!(descriptors(&rest[..24]), [(4608, 0), (1024, 3), (512, 0)]);
        assert_eq!(rest[28..30], [0, 1]);
        assert_eq!(descriptors(&rest[48..]), [(4096, 8), (512, 2), (1536, 4)]);
    }

    #[test]
    fn a_client_that_wants_one_extent_gets_one_of_each_context() {
        let (_, rest) = ask(Contexts::all(), true);
        assert_eq!(descriptors(&rest[..8]), [(4608, 0)]);
        assert_eq!(descriptors(&rest[32..]), [(4096, 8)]);
    }
}
