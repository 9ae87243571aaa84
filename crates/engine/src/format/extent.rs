//! A run of mapped blocks inside one 1 MiB region, packed into 64 bits: the same in memory and in
//! a shard's image.
//!
//! | bits | meaning |
//! |---|---|
//! | 0..8 | first block within the region |
//! | 8..16 | number of blocks, less one |
//! | 16..19 | state; 0: clean data, in an image where its set was let go of, in memory where it is cold |
//! | 19 | partial: one block, only some sectors, mask in the side table |
//! | 20..56 | location of the first block's data (0 without data) |
//! | 56..64 | distance in blocks from the first block's data back to its record's header |

use crate::ids::{LOCATION_BITS, Location};

/// What is known about a mapped block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum State {
    /// The origin holds the same data durably. May be evicted at will.
    Clean = 1,
    /// The origin was given the same data, but nothing proves it durable there yet. Served like
    /// clean, void after a crash.
    Provisional = 2,
    /// Destaged, but no origin flush that began afterwards has completed. Not yet evictable.
    Written = 3,
    /// Only the log holds it.
    Dirty = 4,
    /// Reads as zeroes, the origin does not know yet. Without data.
    Zero = 5,
    /// A zero extent that was destaged, not yet covered by an origin flush.
    ZeroWritten = 6,
    /// The only copy died. Reads fail until it is overwritten.
    Lost = 7,
}

impl State {
    /// The state with this number.
    pub fn from_number(number: u8) -> Option<State> {
        Some(match number {
            1 => State::Clean,
            2 => State::Provisional,
            3 => State::Written,
            4 => State::Dirty,
            5 => State::Zero,
            6 => State::ZeroWritten,
            7 => State::Lost,
            _ => return None,
        })
    }

    /// Whether the origin may lack what the log knows: such a block must not be evicted, and no
    /// write of it may go straight to the origin.
    pub fn is_owed(self) -> bool {
        matches!(self, State::Written | State::Dirty | State::Zero | State::ZeroWritten)
    }

    /// Whether the destager has to bring it to the origin.
    pub fn needs_destage(self) -> bool {
        matches!(self, State::Dirty | State::Zero)
    }

    /// Whether the log holds bytes for it.
    pub fn has_data(self) -> bool {
        matches!(self, State::Clean | State::Provisional | State::Written | State::Dirty)
    }
}

/// Where an extent has its state.
const STATE_BITS: u64 = 0x7 << 16;

/// See the module's table.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Extent(pub u64);

impl Extent {
    /// Packs an extent of `count` blocks (1..=256) at block `first` (0..=255) of its region.
    ///
    /// # Panics
    /// If a part does not fit its bits or the extent leaves the region.
    pub fn new(first: u32, count: u32, state: State, location: Location, distance: u8) -> Self {
        assert!(count >= 1 && first + count <= 256, "extent {first}+{count} leaves its region");
        assert!(location.0 < 1 << LOCATION_BITS, "location {location:?} exceeds its bits");
        Self(
            u64::from(first)
                | u64::from(count - 1) << 8
                | (state as u64) << 16
                | location.0 << 20
                | u64::from(distance) << 56,
        )
    }

    /// The same extent, marked partial or not.
    pub fn with_partial(self, partial: bool) -> Self {
        Self(self.0 & !(1 << 19) | u64::from(partial) << 19)
    }

    /// First block within the region.
    pub fn first(self) -> u32 {
        (self.0 & 0xFF) as u32
    }

    /// Number of blocks.
    pub fn count(self) -> u32 {
        (self.0 >> 8 & 0xFF) as u32 + 1
    }

    /// First block after the extent, within the region (up to 256).
    pub fn end(self) -> u32 {
        self.first() + self.count()
    }

    /// The state; `None` if the bits hold 0, see the table.
    pub fn state(self) -> Option<State> {
        State::from_number((self.0 >> 16 & 0x7) as u8)
    }

    /// As an image says it of clean data in a set that was let go of.
    pub fn let_go(self) -> Self {
        Self(self.0 & !STATE_BITS)
    }

    /// Whether an image says so.
    pub fn is_let_go(self) -> bool {
        self.0 & STATE_BITS == 0
    }

    /// The same of an image's extent as one of clean data like any other.
    pub fn taken_back(self) -> Self {
        if self.is_let_go() { Self(self.0 | (State::Clean as u64) << 16) } else { self }
    }

    /// Whether only some sectors of its one block are present.
    pub fn is_partial(self) -> bool {
        self.0 >> 19 & 1 == 1
    }

    /// Location of the first block's data.
    pub fn location(self) -> Location {
        Location(self.0 >> 20 & ((1 << LOCATION_BITS) - 1))
    }

    /// Blocks from the first block's data back to the header of its record.
    pub fn distance(self) -> u8 {
        (self.0 >> 56) as u8
    }
}

impl std::fmt::Debug for Extent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}+{} {:?} at {:?}", self.first(), self.count(), self.state(), self.location())
    }
}
