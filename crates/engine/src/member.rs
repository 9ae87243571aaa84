//! The members of a running pool.

use std::cell::{Cell, OnceCell, RefCell};
use std::ops::Index;
use std::rc::Rc;

use forebay_device::{BlockDevice, Nanos, Watched};

use crate::count::Count;
use crate::failure::Standing;
use crate::format::MemberRecord;
use crate::ids::DeviceId;
use crate::limits::PLACES_MAX;
use crate::slow::Spans;

/// One SSD of the pool.
pub(crate) struct Member {
    pub device: Rc<dyn BlockDevice>,
    /// The same, as the one who watches it.
    pub watched: Rc<Watched>,
    /// Its place among the devices that the pool was given, when it was opened and since: by which
    /// reactors that read cache devices by themselves know it. None as long as it is only to be a member.
    pub place: Cell<Option<usize>>,
    pub id: DeviceId,
    pub segments_offset: u64,
    /// Whether a write has completed since the last flush began that was not durable by itself.
    pub unflushed: Cell<bool>,
    /// What it has to do for clients and appends, in requests; see [`crate::copies`]. Requests of all sizes count alike: up
    /// to some 100 KiB an SSD spends more on there being one than on its bytes.
    pub queue: Count,
    /// How long some of them take.
    pub spans: Spans,
    pub standing: Cell<Standing>,
    /// Blocks that it has returned damaged since the pool was opened.
    pub damaged: Cell<u64>,
    /// When the span began for which damage is counted, and what `damaged` was then.
    pub damage_span: Cell<(Nanos, u64)>,
    /// Whether it could not return something that nobody else could, either, as far as whoever heals has looked.
    pub doubted: Cell<bool>,
    /// Since when it has returned nothing at all, and when that was seen last, by whoever heals.
    pub silent: Cell<Option<(Nanos, Nanos)>>,
    /// How long a start has waited for it to return something again, and until when that is counted.
    pub rested: Cell<(Nanos, Nanos)>,
    /// What it failed at, for people.
    pub failure: RefCell<String>,
}

impl Member {
    pub(crate) fn new(
        record: &MemberRecord,
        watched: Rc<Watched>,
        place: Option<usize>,
        segments_offset: u64,
        standing: Standing,
    ) -> Member {
        Member {
            device: Rc::clone(&watched) as Rc<dyn BlockDevice>,
            watched,
            place: Cell::new(place),
            id: record.device,
            segments_offset,
            unflushed: Cell::new(false),
            queue: Count::default(),
            spans: Spans::default(),
            standing: Cell::new(standing),
            damaged: Cell::new(0),
            damage_span: Cell::default(),
            doubted: Cell::new(false),
            silent: Cell::default(),
            rested: Cell::default(),
            failure: RefCell::default(),
        }
    }

    /// Whether it is or was more than about to be a member.
    pub(crate) fn is_taken_in(&self) -> bool {
        self.place.get().is_some()
    }
}

/// The members that a pool has had since it was opened. Each keeps its place when it fails or leaves, and
/// none moves: what is under way on one may hold on to it.
pub(crate) struct Members {
    places: [OnceCell<Member>; PLACES_MAX],
    count: Cell<usize>,
}

impl Members {
    pub(crate) fn len(&self) -> usize {
        self.count.get()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.len() == PLACES_MAX
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Member> {
        self.places.iter().map_while(OnceCell::get)
    }

    /// Whether one of them has this device.
    pub(crate) fn have(&self, device: &Rc<dyn BlockDevice>) -> bool {
        self.iter().any(|member| member.watched.is(device))
    }

    /// Puts a member into the next place; `None` if there is none left.
    pub(crate) fn push(&self, member: Member) -> Option<usize> {
        let index = self.len();
        self.places.get(index)?.set(member).ok()?;
        self.count.set(index + 1);
        Some(index)
    }
}

impl FromIterator<Member> for Members {
    /// # Panics
    /// If there are more than places.
    fn from_iter<T: IntoIterator<Item = Member>>(members: T) -> Self {
        let it = Members { places: [const { OnceCell::new() }; PLACES_MAX], count: Cell::new(0) };
        for member in members {
            it.push(member).expect("a superblock names no more members than there are places");
        }
        it
    }
}

impl Index<usize> for Members {
    type Output = Member;

    fn index(&self, index: usize) -> &Member {
        self.places[index].get().expect("a place that was given has a member")
    }
}
