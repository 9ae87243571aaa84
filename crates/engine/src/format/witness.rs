//! The witness: a small file on the host that remembers the newest epoch and the volumes when no
//! member is there to ask. Replaced whole, by rename.

use super::codec::{
    FormatError, begin, check, get_bool, get_bytes, get_text, get_u16, get_u32, get_u64, open,
    put_bytes, put_u16, put_u32, put_u64, seal, structure,
};
use super::volume::{Mode, name_valid, origin_valid};
use crate::ids::{DeviceId, PoolId, VolumeId};
use crate::limits::{MEMBERS_MAX, NAME_BYTES_MAX, ORIGIN_BYTES_MAX, VOLUMES_MAX};

pub(super) const MAGIC: &[u8; 8] = b"FBYWITNS";

structure!(at, "Witness", 192, {
    MAGIC @ 0: 8,
    VERSION @ 8: 4,
    FEATURES @ 12: 4,
    CHECKSUM @ 16: 4,
    VOLUME_COUNT @ 20: 4,
    POOL @ 24: 16,
    GENERATION @ 40: 8,
    EPOCH @ 48: 8,
    MEMBER_COUNT @ 56: 1,
    MEMBERS @ 64: 128,
});

structure!(item, "Witness volume", 640, {
    ID @ 0: 4,
    MODE @ 4: 1,
    MAY_BE_DIRTY @ 5: 1,
    NAME_BYTES @ 6: 1,
    ORIGIN_BYTES @ 8: 2,
    NAME @ 16: 63,
    ORIGIN @ 80: 511,
    SIZE_BYTES @ 592: 8,
});

const _: () = assert!(at::MEMBERS + 16 * MEMBERS_MAX == at::SIZE);

/// What the witness knows of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WitnessVolume {
    /// Its number.
    pub id: VolumeId,
    /// Its name, 1..=63 bytes.
    pub name: String,
    /// Path or URL of its origin, 1..=511 bytes.
    pub origin: String,
    /// How it is served.
    pub mode: Mode,
    /// Whether the log may hold what the origin lacks.
    pub may_be_dirty: bool,
    /// Its size; 0 if that is not known.
    pub size_bytes: u64,
}

/// See the module's words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Witness {
    /// The pool.
    pub pool: PoolId,
    /// Generation of the superblock that it goes with.
    pub generation: u64,
    /// The newest epoch.
    pub epoch: u64,
    /// The members of that epoch, 1..=8.
    pub members: Vec<DeviceId>,
    /// Up to 124 volumes.
    pub volumes: Vec<WitnessVolume>,
}

impl Witness {
    /// The bytes of the file.
    ///
    /// # Panics
    /// If a field is out of its range.
    pub fn encode(&self) -> Vec<u8> {
        if let Err(error) = self.validate() {
            panic!("witness not encodable: {error}");
        }
        let mut out = vec![0; at::SIZE + self.volumes.len() * item::SIZE];
        begin(&mut out, MAGIC);
        put_u32(&mut out, at::VOLUME_COUNT, self.volumes.len() as u32);
        put_bytes(&mut out, at::POOL, &self.pool.0);
        put_u64(&mut out, at::GENERATION, self.generation);
        put_u64(&mut out, at::EPOCH, self.epoch);
        out[at::MEMBER_COUNT] = self.members.len() as u8;
        for (index, member) in self.members.iter().enumerate() {
            put_bytes(&mut out, at::MEMBERS + 16 * index, &member.0);
        }
        let places = out[at::SIZE..].chunks_exact_mut(item::SIZE);
        for (volume, place) in self.volumes.iter().zip(places) {
            put_u32(place, item::ID, volume.id.0);
            place[item::MODE] = volume.mode as u8;
            place[item::MAY_BE_DIRTY] = u8::from(volume.may_be_dirty);
            place[item::NAME_BYTES] = volume.name.len() as u8;
            put_u16(place, item::ORIGIN_BYTES, volume.origin.len() as u16);
            put_bytes(place, item::NAME, volume.name.as_bytes());
            put_bytes(place, item::ORIGIN, volume.origin.as_bytes());
            put_u64(place, item::SIZE_BYTES, volume.size_bytes);
        }
        seal(&mut out);
        out
    }

    /// Decodes the file.
    ///
    /// # Errors
    /// If the bytes are not an intact witness that this code knows.
    pub fn decode(bytes: &[u8]) -> Result<Witness, FormatError> {
        open(bytes, at::SIZE, MAGIC)?;
        let volume_count = get_u32(bytes, at::VOLUME_COUNT) as usize;
        check(volume_count <= VOLUMES_MAX, "volume_count")?;
        let member_count = usize::from(bytes[at::MEMBER_COUNT]);
        check((1..=MEMBERS_MAX).contains(&member_count), "member_count")?;
        check(bytes.len() == at::SIZE + volume_count * item::SIZE, "volume_count")?;
        let volumes = bytes[at::SIZE..].chunks_exact(item::SIZE).map(decode_volume);
        let witness = Witness {
            pool: PoolId(get_bytes(bytes, at::POOL)),
            generation: get_u64(bytes, at::GENERATION),
            epoch: get_u64(bytes, at::EPOCH),
            members: (0..member_count)
                .map(|index| DeviceId(get_bytes(bytes, at::MEMBERS + 16 * index)))
                .collect(),
            volumes: volumes.collect::<Result<_, _>>()?,
        };
        witness.validate()?;
        Ok(witness)
    }

    fn validate(&self) -> Result<(), FormatError> {
        check((1..=MEMBERS_MAX).contains(&self.members.len()), "member_count")?;
        check(self.volumes.len() <= VOLUMES_MAX, "volume_count")?;
        for (index, member) in self.members.iter().enumerate() {
            check(!self.members[..index].contains(member), "members")?;
        }
        for (index, volume) in self.volumes.iter().enumerate() {
            let before = &self.volumes[..index];
            check(volume.id.0 != 0, "volume id")?;
            check(before.iter().all(|other| other.id != volume.id), "volume id")?;
            check(name_valid(&volume.name), "volume name")?;
            check(origin_valid(&volume.origin), "volume origin")?;
        }
        Ok(())
    }
}

fn decode_volume(place: &[u8]) -> Result<WitnessVolume, FormatError> {
    let name_bytes = usize::from(place[item::NAME_BYTES]);
    let origin_bytes = usize::from(get_u16(place, item::ORIGIN_BYTES));
    Ok(WitnessVolume {
        id: VolumeId(get_u32(place, item::ID)),
        name: get_text(place, item::NAME, name_bytes, NAME_BYTES_MAX, "volume name")?,
        origin: get_text(place, item::ORIGIN, origin_bytes, ORIGIN_BYTES_MAX, "volume origin")?,
        mode: Mode::decode(place[item::MODE])?,
        may_be_dirty: get_bool(place, item::MAY_BE_DIRTY, "volume may_be_dirty")?,
        size_bytes: get_u64(place, item::SIZE_BYTES),
    })
}
