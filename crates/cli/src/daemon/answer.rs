//! From a call to whoever carries it out.

use std::rc::Rc;

use forebay_control::api::{Many, One};
use forebay_control::call::{Call, Reply};
use forebay_control::error::{ApiError, Code};

use super::Daemon;
use crate::Result;
use crate::failure::Failure;

pub(super) fn stopping() -> Failure {
    Failure::coded(Code::Stopping, "the daemon is stopping")
        .hint("start it again with `forebay serve`")
}

fn send<T>(reply: Reply<T>, result: Result<T>) {
    reply.send(result.map_err(ApiError::from));
}

impl Daemon {
    /// Begins what is asked; the answer follows.
    pub(super) fn answer(self: &Rc<Self>, call: Call) {
        match call {
            Call::Status(reply) => send(reply, Ok(self.status())),
            Call::Stats(reply) => send(reply, Ok(self.stats())),
            Call::Events(query, reply) => send(reply, Ok(self.events(&query))),
            Call::Pools(reply) => send(reply, Ok(Many::of(self.show_pools()))),
            Call::Pool(name, reply) => send(reply, self.show_pool(name.as_str()).map(One::of)),
            Call::Volumes(reply) => send(reply, Ok(Many::of(self.describe_volumes()))),
            Call::Volume(name, reply) => send(reply, self.describe_volume(&name).map(One::of)),
            Call::Exports(reply) => send(reply, Ok(Many::of(self.describe_exports()))),
            Call::Advisors(reply) => send(reply, Ok(Many::of(self.describe_advisors()))),
            Call::Advisor(name, reply) => send(reply, self.describe_advisor(&name).map(One::of)),
            Call::Jobs(reply) => {
                send(reply, Ok(Many::of(self.jobs.list(|aim| self.in_the_way_of(aim)))));
            }
            Call::Job(number, reply) => {
                let job = self.jobs.describe(number, |aim| self.in_the_way_of(aim));
                send(reply, job.map(One::of));
            }
            Call::CancelJob(number, reply) => send(reply, self.jobs.cancel(number)),
            Call::CreatePool(body, reply) => {
                self.change(reply, |it| async move { it.create_pool(body).await });
            }
            Call::SetPool(name, body, reply) => {
                self.change(reply, |it| async move {
                    it.set_pool(name.as_str(), &body).await.map(One::of)
                });
            }
            Call::ImportPool(body, reply) => {
                self.change(reply, |it| async move { it.import_pool(body).await.map(One::of) });
            }
            Call::Importable(reply) => {
                self.change(reply, |it| async move { it.importable().await.map(Many::of) });
            }
            Call::ExportPool(name, reply) => {
                self.change(reply, |it| async move { it.export_pool(name.as_str()).await });
            }
            Call::BypassPool(name, body, reply) => {
                self.change(
                    reply,
                    |it| async move { it.bypass_pool(&name, &body).await.map(One::of) },
                );
            }
            Call::DestroyPool(name, body, reply) => {
                self.change(reply, |it| async move { it.destroy_pool(&name, &body).map(One::of) });
            }
            Call::ReplaceDevice(pool, body, reply) => {
                self.change(reply, |it| async move {
                    it.replace_device(&pool, &body.old, &body.new).await.map(One::of)
                });
            }
            Call::CanIPull(name, body, reply) => {
                send(reply, self.can_i_pull(&name, &body.device).map(One::of));
            }
            Call::StartScrub(name, reply) => {
                self.change(reply, |it| async move { it.start_scrub(&name).map(One::of) });
            }
            Call::StopScrub(name, reply) => {
                self.change(reply, |it| async move { it.stop_scrub(&name) });
            }
            Call::StartAdvisor(name, body, reply) => {
                self.change(reply, move |it| async move {
                    it.start_advisor(&name, body.days).await.map(One::of)
                });
            }
            Call::StopAdvisor(name, reply) => {
                self.change(reply, |it| async move { it.stop_advisor(&name).await });
            }
            Call::Plan(change, reply) => {
                self.change(reply, |it| async move { it.plan(change).await });
            }
            Call::AddDevice(pool, body, reply) => {
                self.change(reply, |it| async move {
                    it.add_device(&pool, &body.ssd).await.map(One::of)
                });
            }
            Call::GrowDevice(pool, body, reply) => {
                self.change(reply, |it| async move {
                    it.grow_device(&pool, &body.device).await.map(One::of)
                });
            }
            Call::AddSpare(pool, body, reply) => {
                self.change(reply, |it| async move {
                    it.add_spare(&pool, &body.ssd).await.map(One::of)
                });
            }
            Call::RemoveDevice(pool, body, reply) => {
                self.change(reply, |it| async move {
                    it.remove_device(&pool, &body.device).map(One::of)
                });
            }
            Call::AddVolume(pool, body, reply) => {
                self.change(
                    reply,
                    |it| async move { it.add_volume(&pool, body).await.map(One::of) },
                );
            }
            Call::SetVolume(name, body, reply) => {
                self.change(
                    reply,
                    |it| async move { it.set_volume(&name, &body).await.map(One::of) },
                );
            }
            Call::SetVolumeSettings(name, body, reply) => {
                self.change(reply, |it| async move {
                    it.set_volume_settings(&name, &body).await.map(One::of)
                });
            }
            Call::FlushVolume(name, reply) => {
                self.change(reply, |it| async move { it.flush_volume(&name).map(One::of) });
            }
            Call::GrowVolume(name, reply) => {
                self.change(reply, |it| async move { it.grow_volume(&name).await.map(One::of) });
            }
            Call::AcceptLost(name, body, reply) => {
                self.change(reply, move |it| async move {
                    it.accept_lost(&name, body.lost_bytes).await.map(One::of)
                });
            }
            Call::AcceptOrigin(name, body, reply) => {
                self.change(reply, move |it| async move {
                    it.accept_origin(&name, body.dirty).await.map(One::of)
                });
            }
            Call::RemoveVolume(name, reply) => {
                self.change(reply, |it| async move { it.remove_volume(&name).await.map(One::of) });
            }
            Call::AddExport(body, reply) => {
                self.change(reply, |it| async move { it.add_export(body).await.map(One::of) });
            }
            Call::RemoveExport(name, reply) => {
                self.change(reply, |it| async move { it.remove_export(&name).await });
            }
            Call::Stop(body, reply) => {
                self.change(reply, |it| async move { it.begin_stop(&body).await });
            }
        }
    }

    /// Carries a change out, one at a time.
    fn change<T: 'static, F>(
        self: &Rc<Self>,
        reply: Reply<T>,
        work: impl FnOnce(Rc<Daemon>) -> F + 'static,
    ) where
        F: Future<Output = Result<T>> + 'static,
    {
        let it = Rc::clone(self);
        self.runtime().spawn(Box::pin(async move {
            let _held = it.changing.lock().await;
            let result = if it.is_ending() { Err(stopping()) } else { work(Rc::clone(&it)).await };
            send(reply, result);
        }));
    }
}
