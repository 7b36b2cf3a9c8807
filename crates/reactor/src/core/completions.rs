//! Delivery of the kernel's completions to their pollers.

use std::os::fd::AsRawFd;

use super::{Core, Watch, WatchOwner};
use crate::op::{InFlight, OpCompletion};
use crate::ring::{Cqe, Token};

impl Core {
    /// Delivers one completion.
    pub(crate) fn deliver(&mut self, cqe: Cqe) {
        match cqe.token {
            Token::Op(index) => self.deliver_op(index, cqe.result),
            Token::Watch(index) => self.deliver_watch(index, cqe),
            Token::Bell(id) => self.confirm_bell(id),
            Token::Unwatch(index) => self.ensure_unwatched(index, cqe.result),
            Token::Ignore => {}
        }
    }

    fn confirm_bell(&mut self, id: u32) {
        let Some((_, state)) = self.notifiers.get(&id) else { return };
        if state.confirmed()
            && let Some(send) = state.next()
        {
            self.ring.signal(state, send);
        }
    }

    /// Cancels a watch again if the kernel could not cancel it because it was just reporting.
    /// Otherwise the descriptor would stay open for ever.
    fn ensure_unwatched(&mut self, index: u32, result: i32) {
        let closes = |watch: &Watch| matches!(watch.owner, WatchOwner::Closing);
        if result == -libc::EALREADY && self.watches.get(index).is_some_and(closes) {
            self.ring.unwatch(index);
        }
    }

    fn deliver_op(&mut self, index: u32, result: i32) {
        let Some(op) = self.ring.ops.remove(index) else { return };
        let InFlight { port, generation, tag, buffers, timer, .. } = op;
        let Some(slot) = self.ports.get_mut(port).filter(|p| p.generation == generation) else {
            return;
        };
        let result = if timer && result == -libc::ETIME { 0 } else { result };
        slot.op_completion.push(OpCompletion { tag, result, buffers });
        let owner = slot.owner;
        self.make_runnable(owner);
    }

    fn deliver_watch(&mut self, index: u32, cqe: Cqe) {
        let Some(watch) = self.watches.get(index) else { return };
        let owner = match &watch.owner {
            WatchOwner::Closing => {
                if !cqe.more {
                    self.watches.remove(index);
                }
                return;
            }
            WatchOwner::Mailbox => None,
            WatchOwner::Poller(id) => Some(*id),
        };
        if !cqe.more {
            // The kernel ends a multishot poll when its queue overflows: start the poll again.
            let raw = watch.fd.as_raw_fd();
            self.ring.watch(raw, index);
        }
        let error = cqe.result > 0 && cqe.result & i32::from(libc::POLLERR) != 0;
        self.counters().add_wakeup();
        match owner {
            None => self.tasks = true,
            Some(id) => {
                if let Some(poller) = self.resident(id).and_then(|r| r.poller.as_mut()) {
                    poller.on_kick(error);
                }
                self.make_runnable(id);
            }
        }
    }
}
