//! The keeper comes, speaks and goes.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use vhost_user::StopSignal;

use super::client::State;
use super::{CONTROL, KeeperClient, PreserveError, SAY_DEADLINE};
use crate::keeper_link::{KeeperInfo, KeeperMessage, Link, WorkerMessage};

impl KeeperClient {
    /// Hears the keeper until its end, and gives `end` when this process is to end.
    pub(crate) fn run_link(&self, link: &Arc<Link>, end: &StopSignal) {
        loop {
            match link.receive::<KeeperMessage>() {
                Ok(Some((record, _))) => {
                    if self.heard(record) {
                        end.stop();
                    }
                }
                Ok(None) => break,
                Err(error) => {
                    tracing::error!("the keeper cannot be understood: {error}");
                    break;
                }
            }
        }
        let mut state = self.state();
        state.on_keeper_lost(link);
        self.shared.answered.notify_all();
        if state.retired {
            return;
        }
        if state.keeper_info.as_ref().is_some_and(|keeper_info| keeper_info.die_together) {
            end.stop();
        } else {
            let advice = if state.holdings.contains_key(CONTROL) {
                "start ringway-io with the same --control to keep it again"
            } else {
                "end it with SIGTERM and start it again when its guest can bear that"
            };
            tracing::warn!(
                "the keeper is gone: serving goes on, but nobody would replace this process; \
                 {advice}"
            );
        }
    }

    /// A link for a new keeper, who is told everything that is held, and what the last one knew.
    ///
    /// # Errors
    /// [`PreserveError::PreservedFds`], or no descriptors and threads.
    pub(crate) fn adopt(&self, end: &StopSignal) -> Result<(KeeperInfo, OwnedFd), PreserveError> {
        let mut state = self.state();
        // One that has handed over is not to be kept, and what it holds is another's.
        if state.adopting || state.retired {
            return Err(PreserveError::Adopting);
        }
        if let Some(link) = state.link.clone() {
            if !link.is_closed()? {
                let pid = state.keeper_info.as_ref().map_or(0, |keeper_info| keeper_info.pid);
                return Err(PreserveError::Kept { pid });
            }
            state.on_keeper_lost(&link);
            self.shared.answered.notify_all();
        }
        let (link, theirs) = Link::pair()?;
        link.limit_waits(SAY_DEADLINE)?;
        let (keeper_client, end) = (self.clone(), end.clone());
        let work = move || {
            if let Some(link) = keeper_client.tell_everything(link) {
                keeper_client.run_link(&link, &end);
            }
        };
        std::thread::Builder::new().name("keeper".into()).spawn(work)?;
        state.adopting = true;
        Ok((state.keeper_info.clone().unwrap_or_default(), theirs))
    }

    /// Tells a new keeper everything that is held. From then on verbs go to it: what changes
    /// before is only remembered, so that nothing older is told after it. If it cannot be told,
    /// its link is closed.
    fn tell_everything(&self, link: Link) -> Option<Arc<Link>> {
        // Held until all is said.
        let mut state = self.state();
        state.adopting = false;
        let mut told = Ok(());
        for (key, preserved_entry) in &state.holdings {
            let (what, fds) = preserved_entry.written(key);
            // Its answer is not waited for; no call has this number.
            told =
                told.and_then(|()| link.send(&WorkerMessage::Hold { seq: u64::MAX, what }, &fds));
        }
        if state.ending {
            told = told.and_then(|()| link.send(&WorkerMessage::Ending, &[]));
        }
        if let Err(error) = told {
            tracing::error!("a new keeper could not be told what is held: {error}");
            return None;
        }
        let link = Arc::new(link);
        (state.link, state.introduced) = (Some(Arc::clone(&link)), false);
        Some(link)
    }

    /// Takes a record; true: end in order.
    fn heard(&self, record: KeeperMessage) -> bool {
        match record {
            KeeperMessage::Done { seq, problem } => {
                if let Some(call) = self.state().calls.get_mut(&seq) {
                    *call = Some(problem);
                }
                self.shared.answered.notify_all();
            }
            KeeperMessage::Keeper(keeper_info) => {
                let mut state = self.state();
                (state.keeper_info, state.introduced) = (Some(keeper_info), true);
                state.adopted = Some(Instant::now());
                drop(state);
                // It has been told everything by now.
                self.ready();
            }
            KeeperMessage::Ping => self.send_no_reply(&WorkerMessage::Pong),
            KeeperMessage::Stop => return true,
            KeeperMessage::Restore { .. } | KeeperMessage::TakeOver | KeeperMessage::Begin => {}
        }
        false
    }
}

impl State {
    /// Nobody is at the other end any more.
    pub(super) fn on_keeper_lost(&mut self, link: &Arc<Link>) {
        if self.link.as_ref().is_some_and(|now| Arc::ptr_eq(now, link)) {
            self.link = None;
        }
    }
}
