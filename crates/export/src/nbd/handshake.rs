//! Moves the bytes of the negotiation.

use forebay_device::Buf;

use crate::nbd::command::Session;
use crate::nbd::complaint::{End, Fault};
use crate::nbd::exports::{Exports, Seat};
use crate::nbd::limits::OPTION_BYTES_MAX;
use crate::nbd::link::Link;
use crate::nbd::negotiation::{Negotiation, Step, greeting};
use crate::nbd::tls::Tls;
use crate::nbd::wire::{Fields, OPTION_HEADER_BYTES, decode_option};
use crate::{Export, Transport};

/// Negotiates with a client; an error if that does not end in transmission. The client may be
/// slow: the caller limits the time.
pub(crate) async fn negotiate<T: Transport, E: Export>(
    link: &Link<T>,
    exports: &Exports<E>,
    tls: Option<&Tls>,
) -> Result<(Seat<E>, Session), End> {
    link.send(Buf::copy_of(&greeting()).freeze()).await;
    let flags = link.receive(Buf::new(4)).await.ok_or(None)?;
    let flags = Fields(&flags).u32().ok_or(None)?;
    let mut negotiation = Negotiation::new(exports, tls, flags).ok_or(Some(Fault::NotNbd))?;
    let mut out = Vec::new();
    loop {
        let header = link.receive_header(Buf::new(OPTION_HEADER_BYTES)).await?;
        let (number, payload_bytes) = decode_option(&header).ok_or(Some(Fault::NotNbd))?;
        let payload = if payload_bytes <= OPTION_BYTES_MAX {
            Some(link.receive_rest(Buf::new(payload_bytes as usize)).await?)
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
            Step::StartTls(tls) => link.start_tls(tls).await?,
            Step::Transmit(seat, session) => return Ok((seat, session)),
            Step::End(end) => return Err(end),
        }
    }
}
