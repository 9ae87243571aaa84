//! Which of two slots to believe. Superblocks and roots are both written to slot 0, flushed, then
//! to slot 1, flushed, with the same contents.
//!
//! | row | slot 0 | slot 1 | decision |
//! |---|---|---|---|
//! | A | any is of a newer format | | `Refused`: falling back to the older slot would undo what the newer Forebay promised |
//! | B | damaged | damaged | `Neither`: never written, wiped, or both lost |
//! | C | valid | damaged | `Slot0`: torn while slot 1 was written, or rotten |
//! | D | damaged | valid | `Slot1`: torn while slot 0 was written; the older state, which is still true |
//! | E | valid | valid, other identity | `Conflict`: a creation over an older pool was cut off |
//! | F | valid, newer | valid | `Slot0`: cut off between the two |
//! | G | valid | valid, newer | `Slot1`: slot 0 was not overwritten although slot 1 was: a lost write |
//! | H | valid | same generation, same contents | `Slot0` |
//! | I | valid | same generation, other contents | `Conflict`: two writers |

use super::codec::FormatError;

/// See the module's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotChoice {
    /// Believe slot 0.
    Slot0,
    /// Believe slot 1.
    Slot1,
    /// One of the slots needs a newer Forebay; touch nothing.
    Refused(FormatError),
    /// Both are valid and contradict each other; a person must decide.
    Conflict,
    /// No slot is valid.
    Neither,
}

/// What a slot's contents need for the decision.
pub(super) trait Slotted: PartialEq {
    /// Whether both could be states of the same thing.
    fn same_identity(&self, other: &Self) -> bool;
    /// Counts the updates.
    fn generation(&self) -> u64;
}

/// Why a newer Forebay is needed to read a slot, if one is.
pub(super) fn needs_newer<T>(slot: &Result<T, FormatError>) -> Option<FormatError> {
    slot.as_ref().err().copied().filter(FormatError::needs_newer)
}

/// Decides by the module's table.
pub(super) fn choose_slot<T: Slotted>(
    slot0: &Result<T, FormatError>,
    slot1: &Result<T, FormatError>,
) -> SlotChoice {
    if let Some(error) = needs_newer(slot0).or(needs_newer(slot1)) {
        return SlotChoice::Refused(error);
    }
    match (slot0, slot1) {
        (Err(_), Err(_)) => SlotChoice::Neither,
        (Ok(_), Err(_)) => SlotChoice::Slot0,
        (Err(_), Ok(_)) => SlotChoice::Slot1,
        (Ok(a), Ok(b)) if !a.same_identity(b) => SlotChoice::Conflict,
        (Ok(a), Ok(b)) if a.generation() > b.generation() => SlotChoice::Slot0,
        (Ok(a), Ok(b)) if a.generation() < b.generation() => SlotChoice::Slot1,
        (Ok(a), Ok(b)) if a == b => SlotChoice::Slot0,
        (Ok(_), Ok(_)) => SlotChoice::Conflict,
    }
}
