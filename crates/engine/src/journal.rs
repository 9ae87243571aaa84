//! What was told of a pool, kept on its members, so that it is known after a restart, on another machine, and when
//! the SSD that it is about is long gone.
//!
//! * It is for people; nothing else depends on it. What cannot be written to a member is not, and that is held against
//!   nobody; it is written without a flush of its own, so a power cut may cost the last seconds of it.
//! * Like all else it is behind the gate: a host without a lease writes nothing, and what another host has told since
//!   stays ([`crate::lease`]).
//! * A pool that has latched goes on writing here: why it has latched is what one wants to know most.
//! * A member that joins gets all that there is.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

use forebay_device::{Buf, LocalBoxFuture};

use crate::core::Core;
use crate::format::{EventPage, EventRecord};
use crate::ids::{BLOCK_BYTES, PoolId};
use crate::limits::COUNTER_MAX;
use crate::planted;
use crate::pool::Pool;
use crate::wait::{WaitQueue, all_of};

/// See the head of the file.
#[derive(Default)]
pub(crate) struct Journal {
    /// Pages that the pool has room for; 0 before it is begun, or if there is none.
    ring: Cell<u64>,
    /// Their numbers ascend; as many as that.
    pages: RefCell<VecDeque<EventPage>>,
    /// Whether nobody has begun to write the last of them as it is.
    is_fresh: Cell<bool>,
    /// Numbers of pages, and the members that lack them as they are.
    due: RefCell<BTreeSet<(u64, usize)>>,
    /// Members that have, or were given, every page.
    known: RefCell<BTreeSet<usize>>,
    /// Woken when something is due, and when the pool is closed.
    changed: WaitQueue,
}

impl Journal {
    /// Lets the writer look again.
    pub(crate) fn wake(&self) {
        self.changed.wake_all();
    }

    fn has_due(&self) -> bool {
        !self.due.borrow().is_empty()
    }

    /// Takes the next page to write, and the members that lack it.
    fn take_due(&self) -> Option<(EventPage, Vec<usize>)> {
        let number = self.due.borrow().first()?.0;
        let later = self.due.borrow_mut().split_off(&(number + 1, 0));
        let due = self.due.replace(later);
        let pages = self.pages.borrow();
        if pages.back().is_some_and(|page| page.number == number) {
            self.is_fresh.set(false);
        }
        let page = pages.iter().find(|page| page.number == number)?.clone();
        Some((page, due.into_iter().map(|(_, member)| member).collect()))
    }

    /// Puts an event into the last page, or into a new one; the page's number.
    fn put(&self, pool: PoolId, event: EventRecord) -> u64 {
        let mut pages = self.pages.borrow_mut();
        let next = pages.back().map_or(0, |page| page.number + 1);
        match pages.back_mut().filter(|page| page.has_room(&event)) {
            Some(page) => {
                // The version that is written, or is being written, stays as it is.
                page.written += u64::from(!self.is_fresh.get());
                page.events.push(event);
            }
            None => {
                pages.push_back(EventPage { pool, number: next, written: 0, events: vec![event] });
                if pages.len() as u64 > self.ring.get() {
                    pages.pop_front();
                }
            }
        }
        self.is_fresh.set(true);
        pages.back().map_or(0, |page| page.number)
    }
}

impl Pool {
    /// What was told of the pool, in order; what is told from now on is kept with it. Nothing is, and nothing is
    /// known, of a pool that has no room for it. To be driven to its end.
    pub fn begin_journal(&self) -> LocalBoxFuture<'_, Vec<EventRecord>> {
        Box::pin(async move {
            let core = &self.core;
            let ring = EventPage::ring(&core.superblock.borrow());
            if ring == 0 || core.journal.ring.get() > 0 {
                return Vec::new();
            }
            core.read_journal(ring).await;
            core.journal.ring.set(ring);
            core.spawn(write(Rc::clone(core)));
            let pages = core.journal.pages.borrow();
            pages.iter().flat_map(|page| page.events.iter().cloned()).collect()
        })
    }

    /// Keeps an event with the pool; before [`begin_journal`](Pool::begin_journal) it does nothing. It is written in
    /// the background, and need not be if a member, or the process, fails.
    pub fn tell(&self, event: EventRecord) {
        let core = &self.core;
        if core.journal.ring.get() == 0 || core.log.is_retired() {
            return;
        }
        let pool = core.superblock.borrow().pool;
        let number = core.journal.put(pool, event.cut());
        core.spread_journal();
        let due = core.serving().map(|(index, _)| (number, index));
        core.journal.due.borrow_mut().extend(due);
        core.journal.wake();
    }
}

impl Core {
    /// Reads the pages of all members that serve, and notes which of these lack some.
    async fn read_journal(&self, ring: u64) {
        let serving: Vec<usize> = self.serving().map(|(index, _)| index).collect();
        let reads = serving.iter().map(|&index| self.read_pages(index));
        let found = all_of(reads).await;
        let mut newest: BTreeMap<u64, EventPage> = BTreeMap::new();
        for page in found.iter().flatten() {
            let known = newest.entry(page.number).or_insert_with(|| page.clone());
            if page.written > known.written {
                *known = page.clone();
            }
        }
        let last = newest.keys().next_back().copied().unwrap_or(0);
        newest.retain(|number, _| number + ring > last);
        for (index, found) in serving.into_iter().zip(found) {
            let has = |page: &EventPage| {
                found.iter().any(|it| it.number == page.number && it.written == page.written)
            };
            let lacks = newest.values().filter(|page| !has(page)).map(|page| (page.number, index));
            self.journal.due.borrow_mut().extend(lacks);
            self.journal.known.borrow_mut().insert(index);
        }
        *self.journal.pages.borrow_mut() = newest.into_values().collect();
    }

    /// The intact pages of this pool on a member.
    async fn read_pages(&self, index: usize) -> Vec<EventPage> {
        let (pool, places) = {
            let superblock = self.superblock.borrow();
            (superblock.pool, EventPage::places(&superblock).collect::<Vec<u64>>())
        };
        let device = &self.members[index].device;
        let reads = places.into_iter().map(|at| device.read(at, Buf::new(BLOCK_BYTES as usize)));
        let mut pages = Vec::new();
        for read in reads.collect::<Vec<_>>() {
            let outcome = read.await;
            let (Ok(()), Some(buf)) = (outcome.result, outcome.buf) else { continue };
            // Nothing that was written comes near this; it would leave no numbers for what follows.
            let is_sound = |page: &EventPage| {
                page.number.max(page.written) < COUNTER_MAX / 2 && page.pool == pool
            };
            pages.extend(EventPage::decode(&buf).ok().filter(is_sound));
        }
        pages
    }

    /// Lets members that have joined have what was told before.
    fn spread_journal(&self) {
        let mut known = self.journal.known.borrow_mut();
        for (index, _) in self.serving().filter(|(index, _)| known.insert(*index)) {
            planted::seen("journal: a member that joined");
            let pages = self.journal.pages.borrow();
            let lacks = pages.iter().map(|page| (page.number, index));
            self.journal.due.borrow_mut().extend(lacks);
        }
    }

    async fn write_page(&self, page: &EventPage, members: &[usize]) {
        let at = EventPage::offset(&self.superblock.borrow(), page.number, page.written);
        let Some(at) = at else { return };
        let block = Buf::copy_of(&page.encode()).freeze();
        let serving =
            members.iter().map(|&index| &self.members[index]).filter(|it| it.is_serving());
        let writes = serving.map(|member| member.device.write(at, block.clone()).done());
        for written in all_of(writes.collect::<Vec<_>>()).await {
            // A member that does not take it will be noticed where it matters.
            written.err().iter().for_each(|_| planted::seen("journal: not written"));
        }
    }
}

/// Writes what is due for as long as the pool is open.
async fn write(core: Rc<Core>) {
    let journal = &core.journal;
    loop {
        journal.changed.until(|| journal.has_due() || core.log.is_retired()).await;
        match journal.take_due() {
            Some((page, members)) => core.write_page(&page, &members).await,
            None if journal.has_due() || !core.log.is_retired() => {}
            None => break,
        }
    }
}
