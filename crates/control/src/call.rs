//! A request as it reaches the daemon's reactor.

use tokio::sync::oneshot;

use crate::api;
use crate::error::{ApiError, Code};
use crate::name::{Name, VolumeName};

/// What an answer is.
pub type Result<T> = std::result::Result<T, ApiError>;

/// The place for one answer; whoever drops it has answered that the daemon is stopping.
pub struct Reply<T>(oneshot::Sender<Result<T>>);

impl<T> Reply<T> {
    /// Answers. Who asked may have gone; what was done stays done.
    pub fn send(self, answer: Result<T>) {
        let _ = self.0.send(answer);
    }
}

/// An answer on its way, and the place for it.
pub(crate) fn reply<T>() -> (Reply<T>, impl Future<Output = Result<T>>) {
    let (sender, receiver) = oneshot::channel();
    let answer = async move {
        receiver.await.unwrap_or_else(|_| {
            Err(ApiError::new(Code::Stopping, "the daemon is stopping")
                .hint("start it again with `forebay serve`"))
        })
    };
    (Reply(sender), answer)
}

/// What can be asked. Bodies are checked as far as their types go.
#[allow(missing_docs, reason = "each is named as its method and address in `server`")]
pub enum Call {
    Status(Reply<api::Status>),
    Stats(Reply<api::Stats>),
    Events(api::EventsQuery, Reply<api::Events>),
    Pools(Reply<api::Many<api::Pool>>),
    Pool(Name, Reply<api::One<api::Pool>>),
    CreatePool(api::CreatePool, Reply<api::PoolPlan>),
    SetPool(Name, api::SetPool, Reply<api::One<api::Pool>>),
    ImportPool(api::ImportPool, Reply<api::One<api::Pool>>),
    Importable(Reply<api::Many<api::Pool>>),
    ExportPool(Name, Reply<api::Done>),
    BypassPool(Name, api::Confirm, Reply<api::One<api::Pool>>),
    DestroyPool(Name, api::Confirm, Reply<api::One<api::Job>>),
    AddDevice(Name, api::AddDevice, Reply<api::One<api::Pool>>),
    AddSpare(Name, api::AddSpare, Reply<api::One<api::Pool>>),
    GrowDevice(Name, api::GrowDevice, Reply<api::One<api::Pool>>),
    RemoveDevice(Name, api::RemoveDevice, Reply<api::One<api::Job>>),
    ReplaceDevice(Name, api::ReplaceDevice, Reply<api::One<api::Job>>),
    CanIPull(Name, api::CanIPull, Reply<api::One<api::Pull>>),
    StartScrub(Name, Reply<api::One<api::Job>>),
    StopScrub(Name, Reply<api::Done>),
    Advisors(Reply<api::Many<api::Advisor>>),
    Advisor(VolumeName, Reply<api::One<api::Advisor>>),
    StartAdvisor(VolumeName, api::StartAdvisor, Reply<api::One<api::Advisor>>),
    StopAdvisor(VolumeName, Reply<api::Done>),
    Plan(api::Change, Reply<api::Plan>),
    Volumes(Reply<api::Many<api::Volume>>),
    Volume(VolumeName, Reply<api::One<api::Volume>>),
    AddVolume(Name, api::AddVolume, Reply<api::One<api::Volume>>),
    SetVolume(VolumeName, api::SetVolume, Reply<api::One<api::Job>>),
    SetVolumeSettings(VolumeName, api::SetVolumeSettings, Reply<api::One<api::Volume>>),
    FlushVolume(VolumeName, Reply<api::One<api::Job>>),
    GrowVolume(VolumeName, Reply<api::One<api::Volume>>),
    AcceptLost(VolumeName, api::AcceptLost, Reply<api::One<api::Volume>>),
    AcceptOrigin(VolumeName, api::AcceptOrigin, Reply<api::One<api::Volume>>),
    RemoveVolume(VolumeName, Reply<api::One<api::Job>>),
    Exports(Reply<api::Many<api::Export>>),
    AddExport(api::AddExport, Reply<api::One<api::Export>>),
    RemoveExport(VolumeName, Reply<api::Done>),
    Jobs(Reply<api::Many<api::Job>>),
    Job(u64, Reply<api::One<api::Job>>),
    CancelJob(u64, Reply<api::Done>),
    Stop(api::Stop, Reply<api::Stopping>),
}
