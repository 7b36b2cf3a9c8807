//! When guests are asked what they have: as they say that there is something new, one question after
//! the other for each, so that no answer is recorded over a later one.
//!
//! Who has claimed an address may not have it yet: a client of DHCP asks its server for it first, and
//! an agent that is asked in between knows of none, nor may it answer just then. So a guest is asked
//! again until all that is seen of it is told, or some time is over. While its machine starts, that is
//! waited for.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use model::id::VmId;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::time::timeout;

use super::guest_metrics::{self, GuestPoll};
use crate::app::AppState;

/// Milliseconds before each further question: two minutes in all.
const AGAIN_MS: [u64; 8] = [500, 1000, 2000, 4000, 8000, 16_000, 32_000, 64_000];

/// Guests that are being asked.
#[derive(Debug, Default)]
pub(super) struct GuestPoller(Mutex<HashMap<VmId, Sender<()>>>);

impl GuestPoller {
    /// Something of a guest is new. Called within a runtime.
    pub(super) fn ask(self: &Arc<Self>, app: &Arc<AppState>, vm: VmId) {
        let mut all = self.lock();
        // Where one word waits it is for this as well. One that has panicked is followed by another.
        if let Some(tell) = all.get(&vm)
            && !matches!(tell.try_send(()), Err(TrySendError::Closed(())))
        {
            return;
        }
        let (tell, news) = channel(1);
        all.insert(vm, tell);
        let (guests, app) = (self.clone(), app.clone());
        tokio::spawn(async move { guests.follow(&app, vm, news).await });
    }

    async fn follow(&self, app: &AppState, vm: VmId, mut news: Receiver<()>) {
        let mut waits = AGAIN_MS.into_iter();
        loop {
            let wait = match guest_metrics::update_guest_metrics(app, vm).await {
                GuestPoll::Nothing => None,
                GuestPoll::Something => waits.next(),
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

    /// Nobody asks this guest any more, unless something is new.
    fn leaves(&self, vm: VmId, news: &mut Receiver<()>) -> bool {
        let mut all = self.lock();
        let leaves = news.try_recv().is_err();
        if leaves {
            all.remove(&vm);
        }
        leaves
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<VmId, Sender<()>>> {
        // Entries come and go whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Waits until a machine is recorded to run; false: it does not, and nobody starts it.
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
