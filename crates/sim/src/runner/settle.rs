//! The end of a seed: faults are off, and everything must come home.

use std::rc::Rc;

use forebay_device::Runtime;
use forebay_device::runtime::SECOND;

use super::{Failure, Shared, VERIFIER, VERIFY_SECTORS, request, verify};
use crate::content::SECTOR;
use crate::machine::Machine;
use crate::subject::Subject;
use crate::workload::Op;

/// Rounds of reading, destaging and writing anew what is lost, until nothing is.
const SETTLE_ROUNDS_MAX: u32 = 4;

/// Seconds in which a pool that nobody disturbs gets all copies back, or has nothing left that needs them.
const RECOVERY_LOOKS: u32 = 60;

/// Writes what is lost anew.
async fn restore<S: Subject>(shared: &Shared, machine: &Machine, subject: &S) {
    for (volume, config) in shared.config.volumes.iter().enumerate() {
        let sectors = config.size_bytes / SECTOR as u64;
        if !shared.is_lost(subject, volume, 0..sectors) {
            continue;
        }
        for lost in subject.lost(volume, 0..sectors) {
            for start in lost.clone().step_by(VERIFY_SECTORS as usize) {
                let end = lost.end.min(start + VERIFY_SECTORS);
                let write = Op::Write(volume, start..end, false);
                request(shared, &machine.aimed, subject, VERIFIER, write).await;
            }
        }
    }
}

/// Waits until what members that were lost have left to do is done.
async fn recover<S: Subject>(shared: &Shared, subject: &S) -> Result<(), Failure> {
    let runtime: &dyn Runtime = &*shared.world;
    for _ in 0..RECOVERY_LOOKS {
        if subject.has_recovered() {
            return Ok(());
        }
        runtime.sleep(SECOND).await.result.unwrap_or(());
    }
    Err(Failure("what members that were lost have left to do does not end".into()))
}

/// Faults off: everything must be there, must reach the origin, and must stop.
pub(crate) async fn settle<S: Subject>(
    shared: &Rc<Shared>,
    machine: &Rc<Machine>,
    subject: Rc<S>,
) -> Result<(), Failure> {
    // What has rotted is found by whoever comes to it, at the latest here.
    for round in 1.. {
        restore(shared, machine, &*subject).await;
        verify(shared, &*subject).await;
        subject.destage().await?;
        let size = |volume: usize| shared.config.volumes[volume].size_bytes / SECTOR as u64;
        let mut volumes = 0..shared.config.volumes.len();
        if volumes.all(|volume| subject.lost(volume, 0..size(volume)).is_empty()) {
            break;
        }
        if round == SETTLE_ROUNDS_MAX {
            return Err(Failure("more and more is lost although nothing fails".into()));
        }
    }
    recover(shared, &*subject).await?;
    shared.oracle.borrow_mut().all_durable();
    machine.check_origins(shared, "after destaging");
    let subject = Rc::try_unwrap(subject);
    let subject = subject.map_err(|_| Failure("the subject is still in use".into()))?;
    subject.stop().await?;
    shared.trace(|| "stopped".into());
    Ok(())
}

pub(crate) async fn reopen<S: Subject>(
    shared: &Rc<Shared>,
    machine: &Rc<Machine>,
) -> Result<(), Failure> {
    let subject = S::open(&machine.env).await?;
    verify(shared, &subject).await;
    subject.stop().await.map_err(Failure::from)
}
