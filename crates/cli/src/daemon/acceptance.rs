//! What only the owner of data can decide: that older data is better than none, and what becomes of dirty data
//! whose origin is not what it was.

use std::rc::Rc;

use forebay_control::api::{self, DirtyData, Plan, VolumeState};
use forebay_control::error::Code;
use forebay_control::name::VolumeName;
use forebay_engine as engine;

use super::plan::plan;
use super::volumes::{BLOCK_BYTES, missing_state};
use super::{Attached, Daemon, Open, Slot};
use crate::Result;
use crate::failure::Failure;
use crate::text;

impl Daemon {
    /// Gives up what is lost of a volume, if no more is than was `agreed` to: its origin's older data is read there from then
    /// on. Whoever agreed has seen how much it is some time ago.
    pub(super) async fn accept_lost(
        &self,
        name: &VolumeName,
        agreed: Option<u64>,
    ) -> Result<api::Volume> {
        let (_, open) = self.open(name.pool.as_str())?;
        let volume = open.volume(name)?;
        let lost = volume.lost_blocks() * BLOCK_BYTES;
        if let Some(agreed) = agreed.filter(|agreed| lost > *agreed) {
            let what = format!(
                "{} of volume \"{name}\" are lost by now, and {} were agreed to",
                text::bytes(lost),
                text::bytes(agreed)
            );
            return Err(Failure::coded(Code::NeedsDecision, what)
                .hint(format!("see `forebay volume show {name}`, and decide again")));
        }
        let accepted = volume.accept_lost().await? * BLOCK_BYTES;
        if accepted > 0 {
            let what = format!(
                "{} of volume \"{name}\" are accepted as lost: its origin's older data is read there",
                text::bytes(accepted)
            );
            self.journal.warn("lost-accepted", name, what);
        }
        self.describe_volume(name)
    }

    pub(super) fn plan_accept_lost(&self, name: &VolumeName) -> Result<Plan> {
        let (_, open) = self.open(name.pool.as_str())?;
        let lost = open.volume(name)?.lost_blocks() * BLOCK_BYTES;
        let origin = self.describe_volume(name)?.origin;
        let (what, steps) = match text::bytes(lost) {
            _ if lost == 0 => (format!("volume \"{name}\" has lost nothing"), Vec::new()),
            lost => (
                format!("{lost} of volume \"{name}\" would be accepted as lost"),
                vec![
                    format!("reads of them return what {origin} has there: older data"),
                    "it stays so over restarts, also if the cache device comes back".to_owned(),
                ],
            ),
        };
        Ok(plan(what, steps))
    }

    /// The open pool of a volume whose origin is refused, and its dirty bytes.
    fn refused_origin(&self, name: &VolumeName) -> Result<(Rc<Slot>, Rc<Open>, u64)> {
        let (slot, open) = self.open(name.pool.as_str())?;
        let state = match open.volumes.borrow().get(name.volume.as_str()) {
            Some(Attached::Missing { why, .. }) => missing_state(why),
            Some(Attached::Online(_)) | None => VolumeState::Online,
        };
        if state != VolumeState::OriginRefused {
            let state = self.describe_volume(name)?.reason;
            let what = format!("the origin of volume \"{name}\" asks for no decision");
            let hint = match state.as_str() {
                "" => "it is in use as it is".to_owned(),
                reason => format!("what there is: {reason}"),
            };
            return Err(Failure::coded(Code::Refused, what).hint(hint));
        }
        let dirty = open.dirty_bytes(name.volume.as_str());
        Ok((slot, open, dirty))
    }

    /// Uses an origin as it is although it was changed under dirty data.
    pub(super) async fn accept_origin(
        &self,
        name: &VolumeName,
        dirty: DirtyData,
    ) -> Result<api::Volume> {
        let (slot, open, bytes) = self.refused_origin(name)?;
        let (of_engine, becomes) = match dirty {
            DirtyData::Write => (engine::DirtyData::Write, "is written to it"),
            DirtyData::Drop => (engine::DirtyData::Drop, "was given up"),
        };
        open.pool.accept_origin(name.volume.as_str(), of_engine).await?;
        let what = format!(
            "the origin of volume \"{name}\" is used as it is; dirty data of {} {becomes}",
            text::bytes(bytes)
        );
        self.journal.warn("origin-accepted", name, what);
        // At once, and not only when it is tried again.
        open.volumes.borrow_mut().remove(name.volume.as_str());
        self.attach_volumes(&slot, &open).await;
        self.describe_volume(name)
    }

    pub(super) fn plan_accept_origin(&self, name: &VolumeName, dirty: DirtyData) -> Result<Plan> {
        let (_, _, bytes) = self.refused_origin(name)?;
        let (origin, bytes) = (self.describe_volume(name)?.origin, text::bytes(bytes));
        let becomes = match dirty {
            DirtyData::Write => {
                format!("{bytes} that only the cache has are written over what {origin} has there")
            }
            DirtyData::Drop => format!(
                "{bytes} that only the cache has are given up: reads of them return what {origin} has there"
            ),
        };
        let steps = vec![
            becomes,
            format!("all else that is cached of it is dropped, and read from {origin} again"),
            "the volume is online, and served to its clients".to_owned(),
        ];
        Ok(plan(format!("{origin} would be used as it is"), steps))
    }
}
