//! Moves the bytes of the negotiation.

use std::rc::Rc;

use forebay_device::Buf;

use crate::nbd::command::Session;
use crate::nbd::exports::Exports;
use crate::nbd::limits::OPTION_BYTES_MAX;
use crate::nbd::link::Link;
use crate::nbd::negotiation::{Negotiation, Step, greeting};
use crate::nbd::wire::{Fields, OPTION_HEADER_BYTES, decode_option};
use crate::{Export, Transport};

/// Negotiates with a client; `None` if that does not end in transmission. The client may be
/// slow: the caller limits the time.
pub(crate) async fn negotiate<T: Transport, E: Export>(
    link: &Link<T>,
    exports: &Exports<E>,
) -> Option<(Rc<E>, Session)> {
    link.send(Buf::copy_of(&greeting()).freeze()).await;
    let flags = link.receive(Buf::new(4)).await?;
    let mut negotiation = Negotiation::new(exports, Fields(&flags).u32()?)?;
    let mut out = Vec::new();
    loop {
        let header = link.receive(Buf::new(OPTION_HEADER_BYTES)).await?;
        let (number, payload_bytes) = decode_option(&header)?;
        let payload = if payload_bytes <= OPTION_BYTES_MAX {
            Some(link.receive(Buf::new(payload_bytes as usize)).await?)
        } else {
            link.discard(u64::from(payload_bytes)).await?;
            None
        };
        out.clear();
        let step = negotiation.option(number, payload.as_deref(), &mut out);
        if !out.is_empty() {
            link.send(Buf::copy_of(&out).freeze()).await;
        }
        match step {
            Step::Next => (),
            Step::Transmit(export, session) => return Some((export, session)),
            Step::End => return None,
        }
    }
}
