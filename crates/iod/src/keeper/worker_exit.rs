//! The worker has ended.

use std::process::{ExitCode, ExitStatus};
use std::time::Instant;

use anyhow::Context;

use super::exit_text::words;
use super::worker::Worker;
use super::{Keeper, LoopControl};

impl Keeper {
    /// The worker has ended.
    pub(super) fn on_worker_exit(&mut self) -> anyhow::Result<LoopControl> {
        let Some(mut worker) = self.worker.take() else { return Ok(LoopControl::Poll) };
        let status = worker.reap().context("cannot tell how the worker ended")?;
        if let Some(heir) = self.promote_successor() {
            self.worker = Some(heir);
            return Ok(LoopControl::Poll);
        }
        let how = words(status);
        if worker.ending || self.ending || !self.served {
            if !status.is_none_or(|status| status.success()) && self.served {
                tracing::error!("the worker {how} while it was ending");
            }
            return Ok(LoopControl::End(exit_code(status, worker.ending)));
        }
        self.plan(&worker, how);
        Ok(LoopControl::Poll)
    }

    /// Another worker is to be started in place of one that has ended in this way.
    pub(super) fn plan(&mut self, worker: &Worker, how: String) {
        if !worker.ready {
            self.reject_binary();
        }
        let pause = self.backoff.died(worker.since.elapsed());
        self.restarts += 1;
        let pause_ms = pause.as_millis() as u64;
        let (pid, restarts) = (worker.pid(), self.restarts);
        tracing::error!(pid, restarts, pause_ms, "the worker {how}; another one is started");
        self.last_exit = Some(how);
        self.start_at = Some(Instant::now() + pause);
    }
}

/// The worker's code as ours; nobody is told that of another's child, which may have said that it
/// ends in order.
fn exit_code(status: Option<ExitStatus>, in_order: bool) -> ExitCode {
    match status.map(|status| status.code()) {
        None if in_order => ExitCode::SUCCESS,
        None => ExitCode::FAILURE,
        Some(code) => code.and_then(|c| u8::try_from(c).ok()).map_or(ExitCode::FAILURE, Into::into),
    }
}
