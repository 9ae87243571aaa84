//! Pools made: what is on the devices, and what the state directory knows of it.
//!
//! The order of a creation is: a note of the intent, the devices, the witness, the record, and the
//! note is gone. Whatever ends it on the way leaves the note, and a failure or the next start either
//! carries the creation to its end or takes back what it has written. Only a pool that was never
//! opened is erased like that: there is nothing in it.

use std::path::PathBuf;
use std::rc::Rc;

use forebay_control::name::Name;
use forebay_device::{BlockDevice, Buf};
use forebay_engine::format::{Layout, SUPERBLOCK_BYTES, Superblock};
use forebay_engine::{CreateOptions, ErrorKind, read_superblock};

use super::Daemon;
use super::scan::is_complete;
use super::state::{Intent, Record};
use crate::Result;
use crate::failure::Failure;
use crate::members::Members;
use crate::witness::FileWitness;

/// Whether this is of a pool of that name which was made and never opened.
fn is_unopened(superblock: &Superblock, name: &Name) -> bool {
    superblock.name == name.as_str()
        && superblock.start_number == 0
        && superblock.volumes.is_empty()
}

fn record_of(intent: &Intent, id: String) -> Record {
    Record {
        ssds: intent.ssds.clone(),
        accept_data_loss_on_ssd_failure: intent.accept_data_loss_on_ssd_failure,
        ..Record::new(intent.name.clone(), id)
    }
}

/// Takes the superblocks off a device; without them the rest means nothing.
pub(super) async fn erase(
    device: &dyn BlockDevice,
) -> std::result::Result<(), forebay_device::IoError> {
    for slot in 0..2 {
        let zeroes = Buf::zeroed(SUPERBLOCK_BYTES).freeze();
        device.write(Layout::superblock_offset(slot), zeroes).done().await?;
    }
    device.flush().done().await
}

impl Daemon {
    /// Makes a pool; its record is stored then, and it is not open. After a failure the devices are
    /// as empty as before.
    pub(super) async fn make_pool(
        &self,
        intent: &Intent,
        members: Members,
        options: &CreateOptions,
    ) -> Result<Record> {
        self.state.intend(intent).await?;
        let made: Result<Record> = async {
            let witness = self.state.witness_new().await?;
            let witness = FileWitness::at(&self.reactor, &witness, &members.identities()).await?;
            let id = members.create(&self.reactor, &witness, options).await?.to_string();
            self.state.adopt_new(&id).await?;
            let record = record_of(intent, id);
            self.state.store(&record).await?;
            Ok(record)
        }
        .await;
        // What could not be taken back the next start tries again.
        let is_settled = made.is_ok() || self.take_back(intent, &members).await;
        // A note that cannot be removed does no harm: the next start finds the pool's record.
        if is_settled && let Err(failure) = self.state.settle(intent).await {
            self.journal.warn("state-unwritable", intent.name.as_str(), failure.what());
        }
        let record = made?;
        let what = format!("pool \"{}\" ({}) was made", record.name, record.id);
        self.journal.note("pool-created", record.name.as_str(), what);
        Ok(record)
    }

    /// Takes a pool that was never opened off its devices again. Whether nothing of it is left.
    async fn take_back(&self, intent: &Intent, members: &Members) -> bool {
        let mut is_done = true;
        for (path, device) in members.list() {
            let pool = intent.name.as_str();
            let path = path.display();
            match read_superblock(&*device).await {
                Ok(superblock) if is_unopened(&superblock, &intent.name) => {}
                Err(error) if error.kind == ErrorKind::Io => {
                    let what = format!("pool \"{pool}\" was half made and {path} fails: {error}");
                    self.journal.warn("pool-not-made", pool, what);
                    is_done = false;
                    continue;
                }
                _ => continue,
            }
            match erase(&*device).await {
                Ok(()) => {
                    let what = format!("pool \"{pool}\" was not made; {path} is empty again");
                    self.journal.warn("pool-not-made", pool, what);
                }
                Err(error) => {
                    let what = format!("pool \"{pool}\" was half made and {path} fails: {error}");
                    self.journal.warn("pool-not-made", pool, what);
                    is_done = false;
                }
            }
        }
        is_done
    }

    /// Ends what a crash has left half made, one way or the other.
    pub(super) async fn settle_intents(self: &Rc<Self>) {
        let intents = match self.state.intents().await {
            Ok(intents) => intents,
            Err(failure) => return self.journal.warn("state-unwritable", "", failure.what()),
        };
        for intent in intents {
            if let Err(failure) = self.settle_intent(&intent).await {
                let what = format!("pool \"{}\" is half made: {}", intent.name, failure.what());
                self.journal.warn("pool-not-made", intent.name.as_str(), what);
            }
        }
    }

    async fn settle_intent(self: &Rc<Self>, intent: &Intent) -> Result<()> {
        for path in intent.ssds.clone() {
            // It is looked at again at the next start.
            let what = path.display().to_string();
            if !self.patiently(&what, move || path.exists()).await? {
                return Err(Failure::new(format!("{what} is not there")));
            }
        }
        let found = self.scan(&intent.ssds).await?.members;
        // A scan leaves out what it cannot read, and who made the pool may have written there.
        for path in intent.ssds.iter().filter(|path| !found.iter().any(|it| it.path == **path)) {
            let members = self.open_members(std::slice::from_ref(path)).await?;
            let here = read_superblock(&*members.only()).await;
            if here.as_ref().map_or_else(|error| error.kind == ErrorKind::Io, |_| true) {
                return Err(Failure::new(format!("{} was not read", path.display())));
            }
        }
        let known = self.known_ids();
        let own: Vec<_> = found
            .iter()
            .filter(|found| intent.ssds.contains(&found.path))
            .filter(|found| is_unopened(&found.superblock, &intent.name))
            .filter(|found| !known.contains(&found.superblock.pool.to_string()))
            .collect();
        let is_whole = own.len() == intent.ssds.len() && is_complete(&own);
        let is_taken = self.slots.borrow().contains_key(intent.name.as_str());
        match own.first() {
            Some(first) if is_whole && !is_taken => {
                let record = record_of(intent, first.superblock.pool.to_string());
                // Opening it writes a witness if this crash came before it had one.
                self.state.store(&record).await?;
                let what = format!("pool \"{}\" ({}) is whole, as asked", record.name, record.id);
                self.journal.note("pool-created", record.name.as_str(), what);
                self.add_slot(record);
            }
            Some(_) => {
                let paths: Vec<PathBuf> = own.iter().map(|found| found.path.clone()).collect();
                let members = self.open_members(&paths).await?;
                if !self.take_back(intent, &members).await {
                    return Err(Failure::new("not all of its cache devices could be erased"));
                }
            }
            None => {}
        }
        self.state.settle(intent).await
    }
}
