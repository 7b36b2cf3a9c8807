//! Replacement of a `ringway-io` that has died, and reattachment of its devices.
//!
//! Each specification is read under the device's lock, so a device that a caller detaches meanwhile
//! does not return.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use error_causes::error_chain;
use model::rpc::code;
use serde_json::Value;
use tokio::io::unix::AsyncFd;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::{Supervisor, WatchedProcess};
use crate::ringway_io::connection_pool::{BUSY_PAUSE, Kind};
use crate::ringway_io::served_devices::{ServedDevice, retry_attach};
use crate::ringway_io::{ATTACH_DEADLINE, DatapathError};

/// First pause before a retry. Each further pause doubles.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
/// Longest pause.
const LAST_PAUSE: Duration = Duration::from_secs(30);

impl<T: ServedDevice> Supervisor<T> {
    /// Watches the process, and replaces it when it exits.
    pub(super) fn watch(self: &Arc<Self>, pid: u32, ended: AsyncFd<OwnedFd>) {
        let before = std::mem::replace(&mut *self.watching(), WatchedProcess::Keeper(pid));
        if before != WatchedProcess::Keeper(pid) {
            T::watch_begins(self, pid);
            let supervisor = Arc::downgrade(self);
            tokio::spawn(async move {
                // The wait fails only when the runtime shuts down.
                if ended.readable().await.is_ok() {
                    replace(supervisor, pid).await;
                }
            });
        }
    }

    async fn is_replaced(self: Arc<Self>, pid: u32) -> bool {
        let _turn = self.turn.lock().await;
        if self.watched() != WatchedProcess::Keeper(pid) {
            return true;
        }
        tracing::error!(of = %self.owner, pid, "ringway-io has ended; replacing it");
        match self.bring_up_in_turn(false).await {
            Ok(true) => {}
            // There is nothing to serve. The next attach starts another process.
            Ok(false) => *self.watching() = WatchedProcess::None,
            Err(error) => {
                tracing::error!(of = %self.owner, "cannot replace ringway-io: {}", error_chain(&error));
                return false;
            }
        }
        true
    }

    /// Attaches the missing devices. A failed attach is retried in the background.
    pub(super) async fn reattach(self: &Arc<Self>, served: &BTreeSet<String>) {
        if !self.attach_missing(served).await && !self.retrying.swap(true, Ordering::Relaxed) {
            tokio::spawn(retry_attaches(Arc::downgrade(self)));
        }
    }

    /// Attaches the missing devices. Returns whether all are served.
    async fn attach_missing(self: &Arc<Self>, served: &BTreeSet<String>) -> bool {
        let mut known: BTreeSet<String> =
            self.specs().all().map(|spec| spec.id().to_owned()).collect();
        // A device whose attach is running gets its specification just after the answer.
        known.extend(self.keyed_locks.locked_keys());
        let mut tasks = JoinSet::new();
        for id in known.into_iter().filter(|id| !served.contains(id)) {
            let supervisor = Arc::clone(self);
            tasks.spawn(async move { supervisor.attach_again(&id).await });
        }
        let mut all = true;
        while let Some(is_served) = tasks.join_next().await {
            all &= is_served.unwrap_or_default();
        }
        all
    }

    /// Attaches one device again. Returns false if it should be served and a retry may help.
    async fn attach_again(&self, id: &str) -> bool {
        let _turn = self.keyed_locks.of(id).await;
        let spec = self.specs().get(id).cloned();
        if spec.as_ref().is_some_and(T::ends_with_keeper) {
            tracing::error!(
                of = %self.owner, id,
                "guest I/O is blocked: the writes of this machine were in the memory of the \
                 ringway-io that has ended; shut the machine down by force, then start it"
            );
            return true;
        }
        let Some(Ok(calls)) = spec.map(|spec| spec.calls()) else { return true };
        for call in calls {
            if let Err(error) = self.tell_again(call).await {
                let why = error_chain(&error);
                tracing::error!(of = %self.owner, id, "device refused, guest I/O is blocked: {why}");
                return false;
            }
        }
        tracing::info!(of = %self.owner, id, "attached again");
        true
    }

    async fn tell_again(
        &self,
        (method, mut params): (&'static str, Value),
    ) -> Result<(), DatapathError> {
        let until = Instant::now() + ATTACH_DEADLINE;
        loop {
            let answer = self.pool.call(Kind::Step, (method, params.clone()), until, ()).await;
            let in_time = Instant::now() < until;
            match answer {
                Ok(_) => return Ok(()),
                // The connection belonged to the dead process.
                Err(DatapathError::Broken { .. }) if in_time => {}
                Err(DatapathError::Refused { source, .. })
                    if source.code == code::BUSY && in_time =>
                {
                    sleep(BUSY_PAUSE).await;
                }
                Err(refused) if in_time && retry_attach(&refused, &mut params) => {}
                // An adopted worker already serves it.
                Err(DatapathError::Refused { source, .. }) if source.code == code::WRONG_STATE => {
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Attaches the missing devices again. Returns whether no retry is needed any more.
    async fn is_restored(self: &Arc<Self>) -> bool {
        // Without a watched process, the next start attaches everything again.
        let WatchedProcess::Keeper(_) = self.watched() else { return true };
        match self.ask().await {
            Ok(stats) => self.attach_missing(&T::served(&stats)).await,
            Err(error) => {
                tracing::warn!(of = %self.owner, "cannot list served devices: {}", error_chain(&error));
                false
            }
        }
    }
}

/// Replaces a process that died. Retries until it succeeds, because guests may wait.
async fn replace<T: ServedDevice>(supervisor: Weak<Supervisor<T>>, pid: u32) {
    let mut pause = FIRST_PAUSE;
    while let Some(supervisor) = supervisor.upgrade() {
        if supervisor.is_replaced(pid).await {
            return;
        }
        sleep(pause).await;
        pause = (pause * 2).min(LAST_PAUSE);
    }
}

/// Retries failed attaches until all succeed. No event announces when they can.
async fn retry_attaches<T: ServedDevice>(supervisor: Weak<Supervisor<T>>) {
    let mut pause = FIRST_PAUSE;
    loop {
        sleep(pause).await;
        pause = (pause * 2).min(LAST_PAUSE);
        let Some(supervisor) = supervisor.upgrade() else { return };
        // Reset the flag before the check: a later failure starts a new retry.
        supervisor.retrying.store(false, Ordering::Relaxed);
        if supervisor.is_restored().await || supervisor.retrying.swap(true, Ordering::Relaxed) {
            return;
        }
    }
}
