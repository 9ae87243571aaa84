//! Clients in a closed loop on a volume or straight on a device: each starts its next request when
//! the last one has ended. What is to be done is drawn from one list for all of them, so that the
//! same list can be played on either.
//!
//! Every block holds a word of its own number, and every read is checked for it; with [`Contents`] it holds one
//! of the write that it comes from as well, and is checked for the writes that may be read.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use forebay_device::model::world::{Rng, mix};
use forebay_device::{BlockDevice, Buf, Data, Io, Nanos, Runtime, io};
use forebay_engine::Volume;

use super::Result;
use super::contents::Contents;
use super::cpu::{Cpu, Work};
use super::seen::Seen;

/// Bytes of a block.
pub const BLOCK: u64 = 4096;

/// What is requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A read of what was written; with [`Contents`], of whatever may be there.
    Read,
    /// A read of what never was.
    ReadBlank,
    /// A write.
    Write,
}

/// One request.
#[derive(Clone, Copy, Debug)]
pub struct Order {
    /// What.
    pub kind: Kind,
    /// First byte.
    pub offset: u64,
    /// Bytes, whole blocks.
    pub len: u64,
}

/// Whom it is requested of.
#[derive(Clone)]
pub enum Target {
    /// A volume.
    Volume(Rc<Volume>),
    /// A volume whose requests take their time of a processor first.
    Charged(Rc<Volume>, Rc<Cpu>),
    /// A device.
    Device(Rc<dyn BlockDevice>),
}

impl Target {
    async fn write(&self, offset: u64, data: Data) -> Result<()> {
        match self {
            Self::Volume(volume) => {
                volume.write(offset, data, false).await.map_err(|e| e.to_string())
            }
            Self::Charged(volume, cpu) => {
                cpu.spend(Work::Write, data.len() as u64).await;
                volume.write(offset, data, false).await.map_err(|e| e.to_string())
            }
            Self::Device(device) => {
                device.write(offset, data).done().await.map_err(|e| e.to_string())
            }
        }
    }

    async fn read(&self, offset: u64, buf: Buf) -> Result<Buf> {
        match self {
            Self::Volume(volume) => {
                let (buf, result) = volume.read(offset, buf).await;
                result.map(|()| buf).map_err(|e| e.to_string())
            }
            Self::Charged(volume, cpu) => {
                cpu.spend(Work::Read, buf.len() as u64).await;
                let (buf, result) = volume.read(offset, buf).await;
                result.map(|()| buf).map_err(|e| e.to_string())
            }
            Self::Device(device) => {
                let outcome = device.read(offset, buf).await;
                outcome.result.map_err(|e| e.to_string())?;
                outcome.buf.ok_or_else(|| "a read's buffer did not come back".to_owned())
            }
        }
    }

    /// Makes what was written durable.
    ///
    /// # Errors
    /// The target's.
    pub async fn flush(&self) -> Result<()> {
        match self {
            Self::Volume(volume) | Self::Charged(volume, _) => {
                volume.flush().await.map_err(|e| e.to_string())
            }
            Self::Device(device) => device.flush().done().await.map_err(|e| e.to_string()),
        }
    }
}

/// The word that a block holds once it is written: never zero, which is what blank ones hold.
pub fn word(block: u64) -> u64 {
    mix(block) | 1
}

fn fill(offset: u64, bytes: &mut [u8]) {
    for (i, block) in bytes.chunks_exact_mut(BLOCK as usize).enumerate() {
        let word = word(offset / BLOCK + i as u64).to_le_bytes();
        block.chunks_exact_mut(8).for_each(|place| place.copy_from_slice(&word));
    }
}

/// The first block of a read that does not hold what it should.
fn wrong_block(order: &Order, bytes: &[u8]) -> Option<u64> {
    bytes.chunks_exact(BLOCK as usize).zip(order.offset / BLOCK..).find_map(|(bytes, block)| {
        let expected = match order.kind {
            Kind::Read => word(block),
            _ => 0,
        };
        let expected = expected.to_le_bytes();
        bytes.chunks_exact(8).any(|found| found != expected).then_some(block)
    })
}

/// What is to be done, one request after the other.
pub type Orders = Box<dyn FnMut() -> Option<Order>>;

struct Shared {
    runtime: Rc<dyn Runtime>,
    target: Target,
    orders: RefCell<Orders>,
    /// What may be read; without it, what [`word`] says.
    contents: Option<Rc<Contents>>,
    stop: Cell<bool>,
    started: Cell<Nanos>,
    /// Least time between the starts of two requests.
    pace: Nanos,
    /// When the next one may begin.
    turn: Cell<Nanos>,
    /// When each client began what it waits for.
    waiting_since: Vec<Cell<Option<Nanos>>>,
    seen: RefCell<Seen>,
    error: RefCell<Option<String>>,
}

impl Shared {
    fn next(&self) -> Option<Order> {
        let over = self.stop.get() || self.error.borrow().is_some();
        if over { None } else { (self.orders.borrow_mut())() }
    }

    async fn carry_out(&self, order: &Order) -> Result<()> {
        let mut buf = Buf::new(order.len as usize);
        let (first, count) = (order.offset / BLOCK, order.len / BLOCK);
        if order.kind == Kind::Write {
            let Some(contents) = &self.contents else {
                fill(order.offset, &mut buf);
                return self.target.write(order.offset, buf.freeze()).await;
            };
            let version = contents.write_begins(first, count);
            Contents::fill(first, version, &mut buf);
            self.target.write(order.offset, buf.freeze()).await?;
            contents.write_ended(first, count, version);
            return Ok(());
        }
        let reading = self.contents.as_ref().map(|contents| contents.read_begins(first, count));
        let buf = self.target.read(order.offset, buf).await?;
        let wrong = match (&self.contents, &reading) {
            (Some(contents), Some(reading)) => contents.wrong_block(reading, &buf),
            _ => wrong_block(order, &buf),
        };
        match wrong {
            Some(block) => Err(format!("WRONG DATA: block {block}, read by {order:?}")),
            None => Ok(()),
        }
    }

    /// What is late is not made up for.
    async fn wait_for_its_turn(&self) {
        let now = self.runtime.now();
        let turn = self.turn.get().max(now);
        self.turn.set(turn + self.pace);
        if turn > now {
            // That a sleep ends is the runtime's doing: nothing can go wrong.
            let _ = self.runtime.sleep(turn - now).await;
        }
    }

    async fn client(self: Rc<Self>, number: usize) {
        while let Some(order) = self.next() {
            self.wait_for_its_turn().await;
            let begun = self.runtime.now();
            self.waiting_since[number].set(Some(begun));
            let result = self.carry_out(&order).await;
            self.waiting_since[number].set(None);
            let (now, started) = (self.runtime.now(), self.started.get());
            match result {
                Ok(()) => self.seen.borrow_mut().note(now - started, now - begun, order.len),
                Err(error) => *self.error.borrow_mut() = Some(error),
            }
        }
    }
}

/// A load that goes on.
pub struct Load {
    shared: Rc<Shared>,
    ends: Vec<Io>,
}

impl Load {
    /// Starts `clients` clients, as fast as it goes.
    pub fn start(
        runtime: &Rc<dyn Runtime>,
        target: Target,
        clients: usize,
        orders: Orders,
    ) -> Self {
        Self::paced(runtime, target, clients, 0, orders)
    }

    /// The same, but together they begin a request every `pace` nanoseconds at the most.
    pub fn paced(
        runtime: &Rc<dyn Runtime>,
        target: Target,
        clients: usize,
        pace: Nanos,
        orders: Orders,
    ) -> Self {
        Self::checked(runtime, target, clients, pace, orders, None)
    }

    /// The same, checked for what may be read of this. Loads on one target share it.
    pub fn checked(
        runtime: &Rc<dyn Runtime>,
        target: Target,
        clients: usize,
        pace: Nanos,
        orders: Orders,
        contents: Option<Rc<Contents>>,
    ) -> Self {
        let shared = Rc::new(Shared {
            runtime: Rc::clone(runtime),
            target,
            orders: RefCell::new(orders),
            contents,
            pace,
            turn: Cell::new(0),
            stop: Cell::new(false),
            started: Cell::new(runtime.now()),
            waiting_since: vec![Cell::new(None); clients],
            seen: RefCell::default(),
            error: RefCell::default(),
        });
        let client = |number| {
            let (completer, end) = io::pair();
            let work = Rc::clone(&shared).client(number);
            runtime.spawn(Box::pin(async move {
                work.await;
                completer.done(Ok(()));
            }));
            end
        };
        let ends = (0..clients).map(client).collect();
        Self { shared, ends }
    }

    /// Forgets what was seen until now. What is under way counts when it ends, in full.
    pub fn look(&self) {
        self.shared.started.set(self.shared.runtime.now());
        self.shared.seen.take();
    }

    /// What was seen since then, or since the start.
    ///
    /// # Errors
    /// That of the first request that failed.
    pub fn seen(&self) -> Result<Seen> {
        if let Some(error) = &*self.shared.error.borrow() {
            return Err(error.clone());
        }
        let mut seen = self.shared.seen.borrow().clone();
        let now = self.shared.runtime.now();
        let waiting = self.shared.waiting_since.iter().filter_map(Cell::get).min();
        seen.unanswered = waiting.map_or(0, |since| now - since);
        seen.span = now - self.shared.started.get();
        Ok(seen)
    }

    /// Lets every client end its request, and none begin another.
    ///
    /// # Errors
    /// That of the first request that failed.
    pub async fn stop(self) -> Result<Seen> {
        self.shared.stop.set(true);
        self.end().await
    }

    /// Waits until everything is done.
    ///
    /// # Errors
    /// That of the first request that failed.
    pub async fn end(self) -> Result<Seen> {
        for end in self.ends {
            let _ = end.await;
        }
        if let Some(error) = self.shared.error.borrow_mut().take() {
            return Err(error);
        }
        Ok(self.shared.seen.take())
    }
}

/// `count` blocks out of `span`, each once, in random order.
pub fn scattered(count: usize, span_blocks: u32, seed: u64) -> Vec<u32> {
    let mut rng = Rng::new(seed);
    let mut taken = vec![false; span_blocks as usize];
    let mut blocks = Vec::with_capacity(count);
    while blocks.len() < count {
        let block = rng.below(u64::from(span_blocks));
        if !std::mem::replace(&mut taken[block as usize], true) {
            blocks.push(block as u32);
        }
    }
    blocks
}

/// Writes of one block each, in this order.
pub fn writes(blocks: Rc<Vec<u32>>) -> Orders {
    let mut next = 0;
    Box::new(move || {
        let block = u64::from(*blocks.get(next)?);
        next += 1;
        Some(Order { kind: Kind::Write, offset: block * BLOCK, len: BLOCK })
    })
}

/// Writes of the first `bytes` in pieces of `len`, from front to back.
pub fn filling(bytes: u64, len: u64) -> Orders {
    let mut at = 0;
    Box::new(move || {
        let offset = at;
        at += len;
        (offset < bytes).then_some(Order { kind: Kind::Write, offset, len })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_device::model::thrifty::ThriftyStore;
    use forebay_device::model::world::World;

    #[test]
    fn a_read_is_checked_to_its_last_word() {
        let mut bytes = vec![0; 3 * BLOCK as usize];
        fill(7 * BLOCK, &mut bytes);
        let order = |kind| Order { kind, offset: 7 * BLOCK, len: 3 * BLOCK };
        assert_eq!(wrong_block(&order(Kind::Read), &bytes), None);
        assert_eq!(wrong_block(&order(Kind::ReadBlank), &bytes), Some(7));
        bytes[3 * BLOCK as usize - 1] ^= 1;
        assert_eq!(wrong_block(&order(Kind::Read), &bytes), Some(9));
    }

    #[test]
    fn a_read_of_what_was_replaced_or_lost_ends_a_checked_load() {
        let world = World::new(1);
        let runtime = Rc::clone(&world) as Rc<dyn Runtime>;
        let store = Rc::new(ThriftyStore::new(4 * BLOCK, 512)) as Rc<dyn BlockDevice>;
        let contents = Rc::new(Contents::blank(4 * BLOCK));
        let play = |kind| {
            let orders = (1..3).map(move |block| Order { kind, offset: block * BLOCK, len: BLOCK });
            let mut orders = orders.into_iter();
            let (target, contents) = (Target::Device(Rc::clone(&store)), Rc::clone(&contents));
            let orders = Box::new(move || orders.next());
            let load = Load::checked(&runtime, target, 1, 0, orders, Some(contents));
            world.run_until(load.end()).unwrap()
        };
        play(Kind::Read).unwrap();
        play(Kind::Write).unwrap();
        play(Kind::Read).unwrap();
        let old = world.run_until(store.read(2 * BLOCK, Buf::new(BLOCK as usize))).unwrap();
        play(Kind::Write).unwrap();
        play(Kind::Read).unwrap();
        let put = |data: Buf| {
            let write = store.write(2 * BLOCK, data.freeze()).done();
            world.run_until(write).unwrap().unwrap();
        };
        put(old.buf.unwrap());
        assert!(play(Kind::Read).unwrap_err().contains("block 2"), "an older write's");
        put(Buf::zeroed(BLOCK as usize));
        assert!(play(Kind::Read).unwrap_err().contains("block 2"), "zeroes");
    }

    #[test]
    fn orders_end() {
        let mut orders = filling(10 * BLOCK, 4 * BLOCK);
        let offsets: Vec<u64> =
            std::iter::from_fn(&mut orders).map(|order| order.offset / BLOCK).collect();
        assert_eq!(offsets, [0, 4, 8]);
        let mut orders = writes(Rc::new(vec![5, 3]));
        let offsets: Vec<u64> =
            std::iter::from_fn(&mut orders).map(|order| order.offset / BLOCK).collect();
        assert_eq!(offsets, [5, 3]);
    }
}
