//! A server in virtual time, and its clients.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use forebay_device::Runtime;
use forebay_export::nbd::{Complaint, Exports, Fault, Server, Settings};

use super::memory_export::MemoryExport;
use super::pipe::{Doorstep, Pipe};
use super::protocol::{Client, Reply};
use super::world::World;

/// Bytes of the export.
pub const SIZE: usize = 1 << 20;

/// A server with one export in a world of its own.
pub struct Rig {
    pub world: Rc<World>,
    pub export: Rc<MemoryExport>,
    pub server: Rc<Server<MemoryExport>>,
    pub door: Doorstep,
    pub served: Rc<Cell<bool>>,
    pub complaints: Rc<RefCell<Vec<Complaint>>>,
}

impl Rig {
    pub fn new(change: impl FnOnce(MemoryExport) -> MemoryExport) -> Self {
        Self::with(Settings::default(), change)
    }

    pub fn with(settings: Settings, change: impl FnOnce(MemoryExport) -> MemoryExport) -> Self {
        let world = World::new(7);
        let runtime: Rc<dyn Runtime> = Rc::clone(&world) as _;
        let export = Rc::new(change(MemoryExport::new(Rc::clone(&runtime), "disk", SIZE)));
        let complaints = Rc::<RefCell<Vec<Complaint>>>::default();
        let complain = Rc::clone(&complaints);
        let exports = Exports::of(Rc::clone(&export)).expect("valid");
        let server = Server::new(runtime, exports, settings, move |complaint| {
            complain.borrow_mut().push(complaint.clone());
        });
        let door = Doorstep::default();
        let served = Rc::new(Cell::new(false));
        let (serve, end) = (Rc::clone(&server).serve(door.clone()), Rc::clone(&served));
        world.spawn(Box::pin(async move {
            serve.await;
            end.set(true);
        }));
        Self { world, export, server, door, served, complaints }
    }

    pub fn open(&self, structured: bool) -> Client<Pipe> {
        self.world.run(Client::open(self.door.connect(), structured))
    }

    /// Sends `bytes` and returns `count` replies, sorted by cookie.
    pub fn ask(
        &self,
        mut client: Client<Pipe>,
        bytes: Vec<u8>,
        count: usize,
        read_len: impl Fn(u64) -> usize + 'static,
    ) -> (Client<Pipe>, Vec<Reply>) {
        self.world.run(async move {
            client.send(&bytes).await;
            let mut replies = Vec::new();
            while replies.len() < count {
                replies.push(client.reply(&read_len).await.expect("a reply"));
            }
            replies.sort_by_key(|reply| reply.cookie);
            (client, replies)
        })
    }

    /// Nothing is left of any client: no task but the accept loop, nothing in progress.
    pub fn assert_idle(&self) {
        self.world.settle();
        assert_eq!((self.server.connection_count(), self.server.inflight_bytes()), (0, 0));
        assert_eq!(self.world.tasks.live_count(), 1);
        assert_eq!(self.export.inflight.get(), 0);
        assert_eq!(Rc::strong_count(&self.export), 2);
    }

    /// What the server has had to say of its clients, who all have gone.
    pub fn faults(&self) -> Vec<Fault> {
        self.assert_idle();
        let complaints = self.complaints.borrow();
        assert!(complaints.iter().all(|complaint| complaint.peer == "a pipe"));
        complaints.iter().map(|complaint| complaint.fault.clone()).collect()
    }
}
