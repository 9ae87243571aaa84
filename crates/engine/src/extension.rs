//! Growing a member of a pool that is in use: its device has become larger.
//!
//! * What it has stays where it is; its new segments lie behind the others. Their numbers are ones that no member
//!   ever had: a header of a set may still name such a one, and the epoch tells of a member that has joined
//!   since, not of one that has grown (INV-52). Behind its own last one they make no further range
//!   ([`crate::format::Numbers`]); a superblock with such a range is one that older versions refuse.
//! * Its device is flushed first: a size that a power cut takes back must stand in no superblock.
//! * The new numbers are durable on all members before a set is opened on one of them (INV-89). A crash
//!   before leaves the member as it was or grown, and nothing in what is new.
//! * No epoch begins, for the members are the same: whoever has not heard of it was left behind by the
//!   same update, in an epoch before.
//! * What the device has in its new part is not erased. A header that stands there is none of this pool,
//!   this device and this number: the device never had the number.

use forebay_device::LocalBoxFuture;

use crate::addition::{bytes_of, free_base, widen_index};
use crate::core::Core;
use crate::error::{Error, ErrorKind, Result};
use crate::event::EventKind;
use crate::format::{Layout, NumberRange, Numbers, SEGMENTS_MAX, Superblock};
use crate::ids::DeviceId;
use crate::member::Member;
use crate::planted::{self, Bug};
use crate::pool::Pool;
use crate::start::check_size;

/// What to do where a member can have no further numbers, but one that joins could.
const AGAIN: &str =
    "take it out, then add it again: `forebay pool device remove`, `forebay pool device add`";

/// What to do where nobody could, or it cannot be taken out.
const ELSEWHERE: &str = "make another pool with the rest of it";

/// What a member could grow to.
struct Extension {
    index: usize,
    /// All of its numbers then, and those that are new.
    segments: Numbers,
    more: NumberRange,
    next: Superblock,
}

impl Pool {
    /// What the superblock would say if a member used all of its device and that had `size_bytes`.
    /// Nothing is written.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if it is none; [`ErrorKind::Refused`] if not one more segment fits on the
    /// device, it is smaller than it was, the pool has no numbers for it, or it is on its way out;
    /// [`ErrorKind::Stopping`]; [`ErrorKind::Io`] if the pool has latched.
    pub fn plan_extension(&self, id: DeviceId, size_bytes: u64) -> Result<Superblock> {
        self.core.extended(id, size_bytes).map(|extension| extension.next)
    }

    /// Has a member use all of its device, as large as that is now. The pool serves on. When this
    /// returns, the new size is durable on all members, and new data goes there. To be driven to its end.
    ///
    /// # Errors
    /// Those of [`Pool::plan_extension`]; [`ErrorKind::Io`] if the member fails: the pool is without it.
    pub fn extend_member(&self, id: DeviceId) -> LocalBoxFuture<'_, Result<()>> {
        Box::pin(self.core.extend_member(id))
    }

    /// Bytes of whole segments behind what each member uses of its device, as large as that was when it
    /// was looked at last, by member; those that have none are left out.
    pub fn unused_bytes(&self) -> Vec<(DeviceId, u64)> {
        let superblock = self.core.superblock.borrow();
        let unused = |(_, member): (usize, &Member)| {
            let layout = layout_of(&superblock, member.watched.measure())?;
            let record = superblock.present().find(|record| record.device == member.id)?;
            let more = layout.segment_count.checked_sub(record.segments.count())?;
            Some((member.id, u64::from(more) * u64::from(superblock.segment_bytes)))
        };
        self.core.serving().filter_map(unused).filter(|(_, bytes)| *bytes > 0).collect()
    }
}

/// How a device of so many bytes would be laid out if all of it were used.
fn layout_of(superblock: &Superblock, size_bytes: u64) -> Option<Layout> {
    Layout::new(size_bytes, superblock.segment_bytes, superblock.shard_count)
}

impl Core {
    /// Where a member would grow to if its device had `size_bytes`, or why it cannot.
    fn extended(&self, id: DeviceId, size_bytes: u64) -> Result<Extension> {
        self.check_running()?;
        let refused =
            |what: String, hint: &str| Err(Error::new(ErrorKind::Refused, what).hint(hint));
        let (index, member) = self.member_in_use(id)?;
        if member.is_leaving() {
            let what = format!("cache device {id} is on its way out of the pool");
            return refused(what, "wait for the end of that, or cancel it");
        }
        let mut next = self.superblock.borrow().clone();
        let (segment_bytes, name) = (u64::from(next.segment_bytes), next.name.clone());
        let record = next.members.iter().find(|record| record.device == id);
        let record = *record.expect("a member that serves has a record");
        check_size(&next, &record, size_bytes)?;
        let full = || {
            let what = format!(
                "cache device {id} of {size_bytes} B is too large: with segments of {segment_bytes} B a \
                 pool has at most {SEGMENTS_MAX} of them"
            );
            Error::new(ErrorKind::Refused, what).hint(ELSEWHERE)
        };
        let layout = layout_of(&next, size_bytes).ok_or_else(full)?;
        let count = layout.segment_count - record.segments.count();
        if count == 0 {
            let used = next.segments_offset + u64::from(layout.segment_count) * segment_bytes;
            let what = format!(
                "cache device {id} of {size_bytes} B has no room for a further segment of \
                 {segment_bytes} B: pool \"{name}\" uses {used} B of it"
            );
            return refused(what, "make the device larger first, by a segment at the least");
        }
        let given = match planted::is(Bug::NumbersMistaken) {
            true => next.members.iter().map(|record| record.segments.end()).max().unwrap_or(0),
            false => next.given_end(),
        };
        if count > SEGMENTS_MAX - given {
            let what = format!(
                "cache device {id} of {size_bytes} B has {count} segments more, and of the {SEGMENTS_MAX} numbers \
                 of pool \"{name}\" {given} were given to cache devices that it has or had"
            );
            let others: Vec<_> =
                next.members.iter().filter(|other| other.device != id).copied().collect();
            let may_join = free_base(&others, layout.segment_count).is_some();
            let is_alone = next.present().count() == 1;
            return refused(what, if may_join && !is_alone { AGAIN } else { ELSEWHERE });
        }
        let more = NumberRange { base: given, count };
        let Some(segments) = record.segments.with(more) else {
            let what = format!(
                "cache device {id} has grown in turn with others so often that pool \"{name}\" has no \
                 room to note it once more"
            );
            return refused(what, AGAIN);
        };
        let before = bytes_of(&next, None);
        let own = next.members.iter_mut().filter(|record| record.device == id);
        own.for_each(|record| record.segments = segments);
        widen_index(&mut next, before);
        Ok(Extension { index, segments, more, next })
    }

    async fn extend_member(&self, id: DeviceId) -> Result<()> {
        self.check_running()?;
        let size = || Ok(self.member_in_use(id)?.1.watched.measure());
        self.extended(id, size()?)?;
        let _held = self.lock_for_members().await?;
        let Extension { index, segments, more, next } = self.extended(id, size()?)?;
        let early = planted::is(Bug::ExtendedBeforeDurable);
        if early {
            self.use_extension(index, segments, more);
        }
        if !planted::is(Bug::SizeNotFlushed) {
            self.flush_each("the new size of").await?;
        }
        self.sets.borrow_mut().expect(more);
        self.write_superblocks(|superblock| *superblock = next.clone()).await?;
        if !self.members[index].is_serving() {
            let what = format!("cache device {id} has failed while it was to grow");
            return Err(Error::new(ErrorKind::Io, what).hint("the pool has gone on without it"));
        }
        if !early {
            self.use_extension(index, segments, more);
        }
        planted::seen("member grown in use");
        let what = format!(
            "cache device {id} has grown: {} more segments of {} B, {} in all",
            more.count,
            next.segment_bytes,
            segments.count()
        );
        self.member_event(EventKind::MemberGrown, id, what);
        Ok(())
    }

    /// From here on sets are opened in what is new of a member.
    fn use_extension(&self, index: usize, segments: Numbers, more: NumberRange) {
        self.sets.borrow_mut().extend(index, segments, more);
        self.use_more();
    }
}
