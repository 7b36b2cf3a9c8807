//! The table while its process hands over to another, and after it has taken over.

use std::sync::{Arc, PoisonError};

use model::rpc::{RpcError, code};

use super::{CLOSING, Disks, Entry, RefusedDisk, Table, busy, wrong_state};
use crate::error::text;
use crate::export::{Export, ExportError};
use crate::handover::{Arrivals, Arrived};
use crate::held::Held;
use crate::lifecycle::{Phase, Rest};

/// Answer to every verb meanwhile.
const UPGRADING: &str = "an upgrade is under way; try again when it has ended";

impl Disks {
    /// Verbs are carried out now.
    pub(super) fn open(&self) -> Result<(), RpcError> {
        if self.closing {
            return Err(wrong_state(CLOSING));
        }
        if self.upgrading { Err(busy(UPGRADING)) } else { Ok(()) }
    }
}

impl Table {
    /// Refuses a call that would find another process serving when it is done.
    pub(crate) fn refuse_while_upgrading(&self) -> Result<(), RpcError> {
        if self.disks().upgrading { Err(busy(UPGRADING)) } else { Ok(()) }
    }

    /// From here on no verb changes anything, until [`Self::end_upgrade`].
    ///
    /// # Errors
    /// A verb is at work, another upgrade is, the keeper does not know all as it is, or the process
    /// is about to end.
    pub(crate) fn begin_upgrade(&self) -> Result<Vec<Arc<Export>>, RpcError> {
        let mut disks = self.disks();
        disks.open()?;
        if disks.poll.busy() {
            return Err(wrong_state("poll.defaults is at work; try again when it has ended"));
        }
        if disks.poll.unheld() {
            return Err(wrong_state(
                "the keeper may hold other defaults of polling than are in force, and the new \
                 worker would find them; repeat poll.defaults, then try again",
            ));
        }
        for (id, entry) in &disks.by_id {
            if let Phase::Busy(..) = entry.phase {
                let message = format!("a verb is at work on disk {id:?}; try again when it ended");
                return Err(RpcError { code: code::WRONG_STATE, message });
            }
            if entry.unheld {
                let message = format!(
                    "the keeper does not know disk {id:?} as it is, and the new worker would \
                     not either; repeat the last verb on it, then try again"
                );
                return Err(RpcError { code: code::WRONG_STATE, message });
            }
        }
        self.nics.begin_upgrade()?;
        disks.upgrading = true;
        Ok(disks.by_id.values().filter_map(|entry| entry.export.clone()).collect())
    }

    /// Nothing came of it.
    pub(crate) fn end_upgrade(&self) {
        self.disks().upgrading = false;
        self.nics.end_upgrade();
        self.ended.notify_all();
    }

    /// Another process serves all this.
    pub(crate) fn handed_over(&self) {
        self.disks().handed_over = true;
        self.ended.notify_all();
    }

    /// Nothing here is ours any more.
    pub(crate) fn is_handed_over(&self) -> bool {
        self.disks().handed_over
    }

    /// The process is about to end: from here on verbs are refused. Waits for an upgrade that is
    /// under way; false: nothing here is ours any more.
    pub fn begin_end(&self) -> bool {
        let mut disks = self.disks();
        disks.closing = true;
        self.nics.begin_end();
        while disks.upgrading && !disks.handed_over {
            disks = self.ended.wait(disks).unwrap_or_else(PoisonError::into_inner);
        }
        !disks.handed_over
    }

    /// Goes on with disks and NICs of another process.
    pub(crate) fn take_over(self: &Arc<Self>, arrived: Arrivals) {
        // One that waits for its storage must not hold up a frame.
        self.nics.take_over(arrived.nics);
        for Arrived { held, taken } in arrived.disks {
            let (id, queues) = (held.spec.id.clone(), held.spec.queues);
            let export = Arc::clone(&taken.export);
            let (phase, refused) = (Phase::At(rest(&held)), None);
            let shown = Some(Arc::clone(&export));
            let entry = Entry { phase, queues, export: shown, refused, unheld: false };
            let mut disks = self.disks();
            export.set_poll_defaults(disks.poll.spec());
            disks.by_id.insert(id, entry);
            drop(disks);
            if let Err(error) = taken.take_over() {
                self.give_up(&export, held, &error);
            }
        }
    }

    /// A disk that was to go on here, or by another process, and cannot: it is refused, and tried
    /// again if that may help. Its front-end is sent away and waits in the backlog.
    pub(crate) fn give_up(self: &Arc<Self>, export: &Arc<Export>, held: Held, error: &ExportError) {
        let (id, reason) = (held.spec.id.clone(), text(error));
        tracing::error!(disk = id, "its guest waits: {reason}");
        // Its socket stays.
        export.let_go();
        if let Some(entry) = self.disks().by_id.get_mut(&id) {
            entry.phase = Phase::At(Rest::Refused);
            (entry.export, entry.refused) =
                (None, Some(Arc::new(RefusedDisk { held, reason, novel: false })));
        }
        if error.is_passing() {
            self.bring_back_later(id);
        }
    }
}

fn rest(held: &Held) -> Rest {
    match held {
        Held { active: false, .. } => Rest::Attached,
        Held { paused: true, .. } => Rest::Paused,
        Held { .. } => Rest::Active,
    }
}
