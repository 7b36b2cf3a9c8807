//! The end of a worker.

use std::process::{ExitCode, ExitStatus};
use std::time::Instant;

use anyhow::Context;

use super::exit_text::words;
use super::worker::Worker;
use super::{Keeper, LoopControl};

impl Keeper {
    /// Handles the end of the worker.
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
        self.faults.died(status, worker.since.elapsed());
        self.plan(&worker, how);
        Ok(LoopControl::Poll)
    }

    /// Schedules the restart of a worker that ended as `how` describes.
    pub(super) fn plan(&mut self, worker: &Worker, how: String) {
        if !worker.ready {
            self.reject_binary();
        }
        let pause = self.backoff.died(worker.since.elapsed());
        self.restarts += 1;
        let pause_ms = pause.as_millis() as u64;
        let (pid, restarts) = (worker.pid(), self.restarts);
        tracing::error!(pid, restarts, pause_ms, "worker {how}; restarting");
        self.last_exit = Some(how);
        self.start_at = Some(Instant::now() + pause);
    }
}

/// Converts the worker's exit status to an exit code. The status of an adopted worker is unknown,
/// but it may have reported an orderly end.
fn exit_code(status: Option<ExitStatus>, in_order: bool) -> ExitCode {
    match status.map(|status| status.code()) {
        None if in_order => ExitCode::SUCCESS,
        None => ExitCode::FAILURE,
        Some(code) => code.and_then(|c| u8::try_from(c).ok()).map_or(ExitCode::FAILURE, Into::into),
    }
}
