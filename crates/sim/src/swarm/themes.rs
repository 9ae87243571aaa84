//! Configurations that one seed in a few has altogether: what chance would bring together too rarely.

use forebay_device::model::world::{Crash, Rng};
use forebay_device::runtime::{MILLISECOND, SECOND};
use forebay_engine::Populate;

use super::Config;
use super::trouble::{AimedCrash, Target};
use crate::subject::Mode;

impl Config {
    /// Often none. From numbers of its own, too.
    pub(super) fn with_theme(self) -> Self {
        let mut rng = Rng::new(self.seed ^ 0x4A57E);
        match rng.below(10) {
            _ if self.seed % 8 == 5 => self.flushing_each_write(&mut rng),
            0..3 => self.in_a_hurry(&mut rng),
            3..5 => self.around_the_log(&mut rng),
            // What rots has its copy on a member that keeps its promises.
            5 if self.rot.is_none() => self.with_failing_flushes(&mut rng),
            _ => self,
        }
    }

    /// One client or a few write, and all of it is to be durable at once, as databases have it: long enough for the log to
    /// expect that. Then the power goes.
    fn flushing_each_write(mut self, rng: &mut Rng) -> Self {
        (self.fua_one_in, self.clients) = (1, rng.between(1, 3) as usize);
        self.operations = self.operations.max(60);
        for plan in &mut self.crashes {
            // Far enough into the run that the log has come to expect it.
            (plan.crash, plan.when_open) = (Crash::PowerCut, true);
            plan.after_ios += rng.between(50, 150);
        }
        self.writing_back()
    }

    /// Nobody asks for a flush, and what is written goes to the origin at once: only destaging makes it durable in the
    /// log before, and the power goes right behind.
    fn in_a_hurry(mut self, rng: &mut Rng) -> Self {
        (self.flush_percent, self.fua_one_in) = (0, 0);
        (self.tuning.flush_interval, self.tuning.flush_bytes) = (5 * SECOND, 4 << 20);
        (self.tuning.idle_after, self.tuning.destage_when_idle) = (0, true);
        self.writing_back().cut_at(Target::Origin, rng)
    }

    /// All that is written goes around the log, over what reads have brought there, and hardly anybody asks for a
    /// flush: what is void is durable by its own flush alone.
    fn around_the_log(mut self, rng: &mut Rng) -> Self {
        (self.flush_percent, self.fua_one_in) = (1, 0);
        self.tuning.flush_interval = *rng.pick(&[100, 500, 5_000]) * MILLISECOND;
        for volume in &mut self.volumes {
            volume.mode = Mode::Readonly;
            volume.settings.populate = Populate::Custom { on_read: Some(1), on_write: None };
        }
        self.cut_at(Target::Direct, rng)
    }

    /// In each run a flush of a member loses what it should have covered; the process ends before that is mended, and
    /// the power goes in the run behind.
    fn with_failing_flushes(mut self, rng: &mut Rng) -> Self {
        self.flush_fails_one_in = 1;
        self.flush_percent = self.flush_percent.max(10);
        for (run, plan) in self.crashes.iter_mut().enumerate() {
            let crash = if run % 2 == 0 { Crash::ProcessKill } else { Crash::PowerCut };
            (plan.crash, plan.when_open) = (crash, true);
        }
        let second = self.crashes.len() > 1;
        self.aimed_crashes =
            second.then(|| AimedCrash::at(Target::Flush, 1, rng)).into_iter().collect();
        self
    }

    /// All volumes are written back.
    fn writing_back(mut self) -> Self {
        for volume in &mut self.volumes {
            volume.mode = Mode::Writeback;
            if let Populate::Custom { on_write, .. } = &mut volume.settings.populate {
                // None at all is for modes that write through.
                *on_write = on_write.filter(|writes| *writes > 0);
            }
        }
        self
    }

    /// Each run ends by a power cut near `target`.
    fn cut_at(mut self, target: Target, rng: &mut Rng) -> Self {
        for plan in &mut self.crashes {
            (plan.crash, plan.when_open) = (Crash::PowerCut, true);
        }
        let runs = 0..self.crashes.len();
        self.aimed_crashes = runs.map(|run| AimedCrash::at(target, run, rng)).collect();
        self
    }
}
