//! Connection, messages and loss of the keeper.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use vhost_user::StopSignal;

use super::client::State;
use super::{CONTROL, KeeperClient, PreserveError, SAY_DEADLINE};
use crate::keeper_link::{KeeperInfo, KeeperMessage, Link, WorkerMessage};

impl KeeperClient {
    /// Receives messages until the keeper is gone, and signals `end` when this process must end.
    pub(crate) fn run_link(&self, link: &Arc<Link>, end: &StopSignal) {
        loop {
            match link.receive::<KeeperMessage>() {
                Ok(Some((record, _))) => {
                    if self.handle_message(record) {
                        end.stop();
                    }
                }
                Ok(None) => break,
                Err(error) => {
                    tracing::error!("cannot read the keeper's message: {error}");
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
                "start ringway-io with the same --control to adopt it"
            } else {
                "stop it with SIGTERM and start it again when its guest can tolerate that"
            };
            tracing::warn!(
                "the keeper has ended: this process still serves, but would not be replaced \
                 after a crash; {advice}"
            );
        }
    }

    /// Creates a link for a new keeper, which receives all preserved entries and the last keeper's
    /// information.
    ///
    /// # Errors
    /// [`PreserveError::Kept`], or there are no descriptors or threads left.
    pub(crate) fn adopt(&self, end: &StopSignal) -> Result<(KeeperInfo, OwnedFd), PreserveError> {
        let mut state = self.state();
        // A worker that has handed over cannot be adopted: its entries belong to another process.
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
            if let Some(link) = keeper_client.send_everything(link) {
                keeper_client.run_link(&link, &end);
            }
        };
        std::thread::Builder::new().name("keeper".into()).spawn(work)?;
        state.adopting = true;
        Ok((state.keeper_info.clone().unwrap_or_default(), theirs))
    }

    /// Sends all preserved entries to a new keeper. From then on verbs send their changes to it.
    /// Earlier changes are only recorded here, so that no older state follows a newer one. If
    /// sending fails, the link is closed.
    fn send_everything(&self, link: Link) -> Option<Arc<Link>> {
        // Locked until everything is sent.
        let mut state = self.state();
        state.adopting = false;
        let mut sent = Ok(());
        for (key, preserved_entry) in &state.holdings {
            let (what, fds) = preserved_entry.written(key);
            // No call has this number, because the reply is not awaited.
            sent =
                sent.and_then(|()| link.send(&WorkerMessage::Hold { seq: u64::MAX, what }, &fds));
        }
        if state.ending {
            sent = sent.and_then(|()| link.send(&WorkerMessage::Ending, &[]));
        }
        if let Err(error) = sent {
            tracing::error!("cannot send the preserved records to the new keeper: {error}");
            return None;
        }
        let link = Arc::new(link);
        (state.link, state.introduced) = (Some(Arc::clone(&link)), false);
        Some(link)
    }

    /// Handles a message. Returns true if this process must end in order.
    fn handle_message(&self, record: KeeperMessage) -> bool {
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
                // The keeper has received everything by now.
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
    /// Handles the loss of the keeper.
    pub(super) fn on_keeper_lost(&mut self, link: &Arc<Link>) {
        if self.link.as_ref().is_some_and(|now| Arc::ptr_eq(now, link)) {
            self.link = None;
        }
    }
}
