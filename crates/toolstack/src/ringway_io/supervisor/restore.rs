//! One that has ended is replaced, and serves what the one before it did.
//!
//! What is to be attached again is looked up when its turn has come: what somebody detaches
//! meanwhile does not come back.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use model::rpc::code;
use serde_json::Value;
use tokio::io::unix::AsyncFd;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::{Supervisor, WatchedProcess};
use crate::ringway_io::connection_pool::{BUSY_PAUSE, Kind};
use crate::ringway_io::served_devices::ServedDevice;
use crate::ringway_io::{ATTACH_DEADLINE, DatapathError};

/// Pause before what could not be done is tried again, the first time; it doubles.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
/// The longest.
const LAST_PAUSE: Duration = Duration::from_secs(30);

impl<T: ServedDevice> Supervisor<T> {
    /// Waits for its end, and replaces it then.
    pub(super) fn watch(self: &Arc<Self>, pid: u32, ended: AsyncFd<OwnedFd>) {
        let before = std::mem::replace(&mut *self.watching(), WatchedProcess::Keeper(pid));
        if before != WatchedProcess::Keeper(pid) {
            let supervisor = Arc::downgrade(self);
            tokio::spawn(async move {
                // Fails only where the runtime ends.
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
        tracing::error!(of = %self.owner, pid, "ringway-io has ended: looking for what is left");
        match self.bring_up_in_turn(false).await {
            Ok(true) => {}
            // Nothing is to be served: the next that is starts another.
            Ok(false) => *self.watching() = WatchedProcess::None,
            Err(error) => {
                tracing::error!(of = %self.owner, "no other one: {}", chain(&error));
                return false;
            }
        }
        true
    }

    /// Attaches what it is to serve and does not; what cannot be had is tried again, also when
    /// nobody calls.
    pub(super) async fn reattach(self: &Arc<Self>, served: &BTreeSet<String>) {
        if !self.attach_missing(served).await && !self.insists.swap(true, Ordering::Relaxed) {
            tokio::spawn(insist(Arc::downgrade(self)));
        }
    }

    /// Whether everything is served then.
    async fn attach_missing(self: &Arc<Self>, served: &BTreeSet<String>) -> bool {
        let mut known: BTreeSet<String> =
            self.specs().all().map(|spec| spec.id().to_owned()).collect();
        // One that is just being attached is known a moment after its answer.
        known.extend(self.keyed_locks.busy());
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

    /// False: it is to be served and is not.
    async fn attach_again(&self, id: &str) -> bool {
        let _turn = self.keyed_locks.of(id).await;
        let spec = self.specs().get(id).cloned();
        let Some(Ok(calls)) = spec.map(|spec| spec.calls()) else { return true };
        for call in calls {
            if let Err(error) = self.tell_again(call).await {
                let why = chain(&error);
                tracing::error!(of = %self.owner, id, "its guest waits: {why}");
                return false;
            }
        }
        tracing::info!(of = %self.owner, id, "attached again");
        true
    }

    async fn tell_again(
        &self,
        (method, params): (&'static str, Value),
    ) -> Result<(), DatapathError> {
        let until = Instant::now() + ATTACH_DEADLINE;
        loop {
            let answer = self.pool.call(Kind::Step, (method, params.clone()), until, ()).await;
            let in_time = Instant::now() < until;
            match answer {
                Ok(_) => return Ok(()),
                // The connection was to the one that has ended.
                Err(DatapathError::Broken { .. }) if in_time => {}
                Err(DatapathError::Refused { source, .. })
                    if source.code == code::BUSY && in_time =>
                {
                    sleep(BUSY_PAUSE).await;
                }
                // One that was taken over has it.
                Err(DatapathError::Refused { source, .. }) if source.code == code::WRONG_STATE => {
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Whether nothing is left to be tried again.
    async fn is_restored(self: &Arc<Self>) -> bool {
        // Whoever comes after another one that has ended begins again.
        let WatchedProcess::Keeper(_) = self.watched() else { return true };
        match self.ask().await {
            Ok(stats) => self.attach_missing(&T::served(&stats)).await,
            Err(error) => {
                tracing::warn!(of = %self.owner, "what is served is not told: {}", chain(&error));
                false
            }
        }
    }
}

/// It has ended and nobody asked it to. Guests may wait: it is tried until there is another.
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

/// Something could not be had. No event tells when they can: it is tried until then.
async fn insist<T: ServedDevice>(supervisor: Weak<Supervisor<T>>) {
    let mut pause = FIRST_PAUSE;
    loop {
        sleep(pause).await;
        pause = (pause * 2).min(LAST_PAUSE);
        let Some(supervisor) = supervisor.upgrade() else { return };
        // Before it is looked: who fails from here on insists anew.
        supervisor.insists.store(false, Ordering::Relaxed);
        if supervisor.is_restored().await || supervisor.insists.swap(true, Ordering::Relaxed) {
            return;
        }
    }
}

/// An error with its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text = format!("{text}: {cause}");
        next = cause.source();
    }
    text
}
