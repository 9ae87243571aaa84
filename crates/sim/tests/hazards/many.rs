//! Many of everything: eight pools of eight cache devices each, sixty-four volumes, each with its own reservation,
//! limit or priority, one pool with as many volumes alone, and one as large as they come.

use std::rc::Rc;

use forebay_device::model::disk::{DiskSettings, SimDisk};
use forebay_device::model::world::{Crash, Rng, World};
use forebay_device::{BlockDevice, Buf, Runtime};
use forebay_engine::limits::SEGMENT_BYTES_MAX;
use forebay_engine::{
    CreateOptions, MemoryWitness, Mode, OpenOptions, Pool, Priority, Volume, VolumeSettings,
    VolumeSpec, open_with,
};

use forebay_sim::content::{Found, SECTOR, fill, identify};

use crate::rig::{BLOCK, KINDS, MEMBER_BYTES, SEGMENT_BYTES, lazy, survive};

/// Blocks of each volume.
const BLOCKS: u64 = 64;

/// Sectors of a block.
const SECTORS: u64 = (BLOCK / SECTOR) as u64;

/// What a pool lies on.
struct Shelf {
    members: Vec<Rc<dyn BlockDevice>>,
    origins: Vec<Rc<dyn BlockDevice>>,
    witness: Rc<MemoryWitness>,
    segment_bytes: Option<u32>,
}

/// How many of them, and how large.
#[derive(Clone, Copy)]
struct Shape {
    members: u64,
    member_bytes: u64,
    segment_bytes: Option<u32>,
    volumes: u64,
    volume_bytes: u64,
}

/// Small ones.
fn shape(members: u64, volumes: u64) -> Shape {
    Shape {
        members,
        member_bytes: MEMBER_BYTES,
        segment_bytes: Some(SEGMENT_BYTES as u32),
        volumes,
        volume_bytes: BLOCKS * BLOCK as u64,
    }
}

impl Shelf {
    fn new(world: &Rc<World>, seed: u64, shape: Shape) -> Shelf {
        let disk = |settings, number| SimDisk::new(world, settings, seed ^ number << 32);
        let member = |number: u64| disk(DiskSettings::ssd(shape.member_bytes, 512), number) as _;
        let origin =
            |number: u64| disk(DiskSettings::origin(shape.volume_bytes, 512, true), !number) as _;
        Shelf {
            members: (0..shape.members).map(member).collect(),
            origins: (0..shape.volumes).map(origin).collect(),
            witness: Rc::default(),
            segment_bytes: shape.segment_bytes,
        }
    }

    async fn open(&self, world: &Rc<World>) -> Result<Pool, String> {
        let rt = Rc::clone(world) as Rc<dyn Runtime>;
        let (members, witness) = (self.members.clone(), Rc::clone(&self.witness));
        let pool = open_with(rt, members, witness, lazy(), OpenOptions::default());
        pool.await.map_err(|error| error.to_string())
    }

    async fn create(&self, world: &Rc<World>) -> Result<(Pool, Vec<Volume>), String> {
        let options = CreateOptions {
            dirty_copies: 2,
            segment_bytes: self.segment_bytes,
            ..CreateOptions::named("pool")
        };
        let made = forebay_engine::create(&**world, &self.members, &*self.witness, &options).await;
        made.map_err(|error| error.to_string())?;
        let (pool, mut volumes) = (self.open(world).await?, Vec::new());
        let segment_bytes = self.segment_bytes.map_or(SEGMENT_BYTES_MAX, u64::from);
        for (number, origin) in self.origins.iter().enumerate() {
            let spec = VolumeSpec {
                name: format!("v{number}"),
                origin: format!("o{number}"),
                mode: Mode::Writeback,
                cache_block_bytes: 4096,
                settings: settings(number, self.origins.len(), segment_bytes),
                accept_data_loss_on_ssd_failure: false,
            };
            let added = pool.add_volume(&spec, Rc::clone(origin)).await;
            volumes.push(added.map_err(|error| error.to_string())?);
        }
        Ok((pool, volumes))
    }

    async fn attach(&self, world: &Rc<World>) -> Result<(Pool, Vec<Volume>), String> {
        let (pool, mut volumes) = (self.open(world).await?, Vec::new());
        for (number, origin) in self.origins.iter().enumerate() {
            let attached = pool.attach(&format!("v{number}"), Rc::clone(origin)).await;
            volumes.push(attached.map_err(|error| error.to_string())?);
        }
        Ok((pool, volumes))
    }
}

/// Another one for each volume.
fn settings(number: usize, of: usize, segment_bytes: u64) -> VolumeSettings {
    let segments = (32 / of as u64).max(1) * segment_bytes;
    VolumeSettings {
        reservation_bytes: if number.is_multiple_of(2) { segments } else { 0 },
        limit_bytes: if number.is_multiple_of(3) { segments * 2 } else { 0 },
        priority: Priority::ALL[number % 3],
        ..VolumeSettings::default()
    }
}

/// What stands in a block: of which pool and volume, which block, and for which time.
fn byte(pool: usize, volume: usize, block: u64, round: u64) -> u8 {
    (pool as u64 * 89 + volume as u64 * 13 + block * 7 + round * 101) as u8
}

async fn write_all(pool: usize, volumes: &[Volume], round: u64) -> Result<(), String> {
    for block in 0..BLOCKS {
        for (number, volume) in volumes.iter().enumerate() {
            let mut data = Buf::new(BLOCK);
            data.fill(byte(pool, number, block, round));
            let wrote = volume.write(block * BLOCK as u64, data.freeze(), false).await;
            wrote.map_err(|error| format!("{pool}/{number}: {error}"))?;
        }
    }
    for volume in volumes {
        volume.flush().await.map_err(|error| error.to_string())?;
    }
    Ok(())
}

async fn read_all(pool: usize, volumes: &[Volume], round: u64) -> Result<(), String> {
    for (number, volume) in volumes.iter().enumerate() {
        for block in 0..BLOCKS {
            let (buf, result) = volume.read(block * BLOCK as u64, Buf::new(BLOCK)).await;
            result.map_err(|error| error.to_string())?;
            let wanted = byte(pool, number, block, round);
            if buf.iter().any(|&found| found != wanted) {
                return Err(format!("{pool}/{number}, block {block}: {} for {wanted}", buf[0]));
            }
        }
        let (space, limit) = (volume.space(), volume.settings().limit_bytes);
        // One write is let go where nothing is dirty.
        if limit > 0 && space.held_bytes > limit + BLOCK as u64 {
            return Err(format!("{pool}/{number} holds {} B of {limit}", space.held_bytes));
        }
    }
    Ok(())
}

fn lives(seed: u64, pools: usize, members: u64, volumes: u64) -> Result<(), String> {
    let world = World::new(seed);
    let shelf = |pool| Rc::new(Shelf::new(&world, seed ^ pool << 8, shape(members, volumes)));
    let shelves: Vec<_> = (0..pools as u64).map(shelf).collect();
    for round in 0..3 {
        let mut lives = Vec::new();
        for (number, shelf) in shelves.iter().enumerate() {
            let (rt, shelf) = (Rc::clone(&world), Rc::clone(shelf));
            let life = async move {
                let (pool, volumes) = match round {
                    0 => shelf.create(&rt).await?,
                    _ => shelf.attach(&rt).await?,
                };
                if round > 0 {
                    read_all(number, &volumes, round - 1).await?;
                }
                write_all(number, &volumes, round).await?;
                read_all(number, &volumes, round).await?;
                Ok::<_, String>((pool, volumes))
            };
            lives.push(life);
        }
        // One after the other, and all of them stay open, as one daemon has them.
        let ended: Vec<_> = world
            .run_until(async move {
                let mut ended = Vec::new();
                for life in lives {
                    ended.push(Box::pin(life).await);
                }
                ended
            })
            .map_err(|stopped| stopped.to_string())?;
        let all: Result<Vec<_>, String> = ended.into_iter().collect();
        drop(all?);
        world.crash(KINDS[(seed % 2) as usize]);
    }
    world.crash(Crash::ProcessKill);
    Ok(())
}

#[test]
fn eight_pools_of_eight_ssds_serve_sixty_four_volumes_through_crashes() {
    survive(2, |seed| lives(seed, 8, 8, 8));
}

#[test]
fn one_pool_of_eight_ssds_serves_sixty_four_volumes_through_crashes() {
    survive(2, |seed| lives(seed, 1, 8, 64));
}

/// Blocks of the pool of 32 TiB that are written in each round.
const SCATTERED: usize = 1000;

/// Blocks of each of its volumes: 1 PiB.
const VOLUME_BLOCKS: u64 = 1 << 38;

/// A pool of the product's own layout: a million segments, fifty thousand shards. Little is in it, all over its
/// volumes: what is played is its own making, not its data.
fn huge(seed: u64) -> Result<(), String> {
    let world = World::new(seed);
    let huge = Shape {
        member_bytes: 4 << 40,
        segment_bytes: None,
        volume_bytes: VOLUME_BLOCKS * BLOCK as u64,
        ..shape(8, 2)
    };
    let shelf = Rc::new(Shelf::new(&world, seed, huge));
    let mut rng = Rng::new(seed);
    let mut place = || (rng.below(2) as usize, rng.below(VOLUME_BLOCKS));
    let places: Rc<Vec<_>> = Rc::new((0..SCATTERED).map(|_| place()).collect());
    for (round, ends) in
        [Some(KINDS[0]), Some(KINDS[1]), None, Some(KINDS[0])].into_iter().enumerate()
    {
        let (rt, shelf, places) = (Rc::clone(&world), Rc::clone(&shelf), Rc::clone(&places));
        let stamp = round as u64 + 1;
        let life = async move {
            let (pool, volumes) = match round {
                0 => shelf.create(&rt).await?,
                _ => shelf.attach(&rt).await?,
            };
            if round > 0 {
                check_places(&volumes, &places, stamp - 1).await?;
            }
            write_places(&volumes, &places, stamp).await?;
            check_places(&volumes, &places, stamp).await?;
            if ends.is_none() {
                for volume in &volumes {
                    volume.destage().await.map_err(|error| error.to_string())?;
                }
                pool.stop().await.map_err(|error| error.to_string())?;
                return Ok(None);
            }
            Ok::<_, String>(Some((pool, volumes)))
        };
        let ended = world.run_until(life).map_err(|stopped| stopped.to_string())?;
        drop(ended?);
        world.crash(ends.unwrap_or(Crash::ProcessKill));
    }
    Ok(())
}

async fn write_places(
    volumes: &[Volume],
    places: &[(usize, u64)],
    stamp: u64,
) -> Result<(), String> {
    for &(volume, block) in places {
        let mut data = Buf::new(BLOCK);
        fill(stamp, volume, block * SECTORS, &mut data);
        let wrote = volumes[volume].write(block * BLOCK as u64, data.freeze(), false).await;
        wrote.map_err(|error| error.to_string())?;
    }
    for volume in volumes {
        volume.flush().await.map_err(|error| error.to_string())?;
    }
    Ok(())
}

async fn check_places(
    volumes: &[Volume],
    places: &[(usize, u64)],
    stamp: u64,
) -> Result<(), String> {
    for &(volume, block) in places {
        let (buf, result) = volumes[volume].read(block * BLOCK as u64, Buf::new(BLOCK)).await;
        result.map_err(|error| error.to_string())?;
        for (sector, bytes) in buf.chunks_exact(SECTOR).enumerate() {
            let found = identify(volume, block * SECTORS + sector as u64, bytes);
            if found != Found::Stamp(stamp) {
                return Err(format!("block {block} of {volume}: {found:?} for {stamp}"));
            }
        }
    }
    Ok(())
}

#[test]
fn a_pool_of_32_tib_survives_crashes() {
    survive(1, huge);
}
