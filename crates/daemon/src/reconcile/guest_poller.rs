//! Polling of guest agents. Each guest is polled when it reports news, one request at a time, so
//! that no answer is recorded over a later one.
//!
//! An observed address may not be assigned yet: a DHCP client first asks its server. An agent that
//! is polled in between does not know the address, and may not answer at all. So a guest is polled
//! again until all observed addresses are reported, or the retries are used up. While its VM
//! starts, polling waits for the start.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use model::id::VmId;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::time::timeout;

use super::guest_metrics::{self, GuestPoll};
use crate::app::AppState;

/// Delays before further polls in milliseconds, two minutes in total.
const AGAIN_MS: [u64; 8] = [500, 1000, 2000, 4000, 8000, 16_000, 32_000, 64_000];

/// Guest polls under way.
#[derive(Debug, Default)]
pub(super) struct GuestPoller(Mutex<HashMap<VmId, Sender<()>>>);

impl GuestPoller {
    /// Polls a guest that has news. Must be called within a runtime.
    pub(super) fn ask(self: &Arc<Self>, app: &Arc<AppState>, vm: VmId) {
        let mut all = self.lock();
        // One pending notification is enough. A poll task that panicked is replaced.
        if let Some(sender) = all.get(&vm)
            && !matches!(sender.try_send(()), Err(TrySendError::Closed(())))
        {
            return;
        }
        let (sender, news) = channel(1);
        all.insert(vm, sender);
        let (guests, app) = (self.clone(), app.clone());
        tokio::spawn(async move { guests.follow(&app, vm, news).await });
    }

    async fn follow(&self, app: &AppState, vm: VmId, mut news: Receiver<()>) {
        let mut waits = AGAIN_MS.into_iter();
        loop {
            let wait = match guest_metrics::update_guest_metrics(app, vm).await {
                GuestPoll::Complete => None,
                GuestPoll::Incomplete => waits.next(),
                GuestPoll::Start if started(app, vm).await => continue,
                GuestPoll::Start => None,
            };
            let is_new = match wait {
                Some(wait) => timeout(Duration::from_millis(wait), news.recv()).await.is_ok(),
                None if self.leaves(vm, &mut news) => return,
                None => true,
            };
            if is_new {
                waits = AGAIN_MS.into_iter();
            }
        }
    }

    /// Ends the polling of this guest, unless there is news.
    fn leaves(&self, vm: VmId, news: &mut Receiver<()>) -> bool {
        let mut all = self.lock();
        let leaves = news.try_recv().is_err();
        if leaves {
            all.remove(&vm);
        }
        leaves
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<VmId, Sender<()>>> {
        // Map operations leave no partial entries.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Waits until a VM is recorded as running. Returns false if no operation can start it.
async fn started(app: &AppState, vm: VmId) -> bool {
    let mut changed = app.db.changed();
    loop {
        match guest_metrics::is_started(app, vm) {
            Some(false) => {}
            started => return started.is_some(),
        }
        if changed.changed().await.is_err() {
            return false;
        }
    }
}
