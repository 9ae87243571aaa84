//! Whether clients take the exports' certificate, now and in days to come: nothing else says so before they
//! come back.

use std::rc::Rc;

use forebay_device::runtime::{Nanos, SECOND};
use forebay_export::nbd::CertificateFault;

use super::Daemon;

const DAY_S: u64 = 24 * 60 * 60;

/// How often it is looked, and said.
const LOOK_INTERVAL: Nanos = DAY_S * SECOND;

/// How long before its end: time for a new one by hand, and less than the last third of one of 90 days, by
/// which those that renew by themselves have done so.
const SPAN_S: u64 = 14 * DAY_S;

impl Daemon {
    /// Says each day whether clients refuse the certificate, or will soon, until the reactor is closed.
    pub(super) async fn keep_certificate(self: Rc<Self>) {
        let Some((tls, keys)) = self.tls.as_ref().zip(self.config.tls.as_ref()) else { return };
        let path = keys.certificate.display();
        loop {
            let now = self.runtime().unix_seconds();
            if let Some(fault) = tls.fault_at(now) {
                let what = format!(
                    "clients that look at the exports' certificate {path} refuse it: {fault}"
                );
                self.journal.warn("certificate-refused", "", what);
            } else if tls.fault_at(now + SPAN_S) == Some(CertificateFault::Expired) {
                let days = SPAN_S / DAY_S;
                let what = format!("the exports' certificate {path} expires within {days} days");
                self.journal.warn("certificate-expires", "", what);
            }
            if self.runtime().sleep(LOOK_INTERVAL).await.result.is_err() {
                return;
            }
        }
    }
}
