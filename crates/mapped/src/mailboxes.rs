//! All channels of an owner.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::mailbox::Mailbox;

/// Mailboxes by the number of their channel. A number is not used again: late answers to a channel
/// that is gone must not reach another one.
#[derive(Default)]
pub(crate) struct Mailboxes {
    pub(crate) by_channel: BTreeMap<u32, Registered>,
    last: u32,
    pub(crate) is_stopped: bool,
}

/// Registered channel.
pub(crate) struct Registered {
    pub(crate) mailbox: Arc<Mailbox>,
    /// Ring of the journal that it writes. `None` for a thread that only asks.
    pub(crate) ring: Option<u32>,
}

impl Mailboxes {
    pub(crate) fn get(&self, channel: u32) -> Option<&Arc<Mailbox>> {
        Some(&self.by_channel.get(&channel)?.mailbox)
    }

    pub(crate) fn free_ring(&self, rings: u32) -> Option<u32> {
        let used: BTreeSet<_> = self.by_channel.values().filter_map(|one| one.ring).collect();
        (0..rings).find(|ring| !used.contains(ring))
    }

    pub(crate) fn insert(&mut self, registered: Registered) -> Option<u32> {
        if self.is_stopped {
            return None;
        }
        // After four billion channels, numbers come again.
        self.last = self.last.wrapping_add(1);
        while self.by_channel.contains_key(&self.last) {
            self.last = self.last.wrapping_add(1);
        }
        self.by_channel.insert(self.last, registered);
        Some(self.last)
    }
}
