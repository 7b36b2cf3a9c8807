//! History of a block: every write with the time it began and the time it ended. It says which
//! values a read may return.

/// A value that was written, or that the block had at first.
#[derive(Clone, Copy, Debug)]
pub(super) struct Event {
    pub(super) value: u64,
    pub(super) began: u64,
    /// `u64::MAX` while the request runs.
    pub(super) ended: u64,
}

/// Events of one block.
#[derive(Clone, Debug, Default)]
pub(super) struct History {
    pub(super) events: Vec<Event>,
    /// Values of durable writes that have ended.
    pub(super) durable: Vec<u64>,
}

impl History {
    pub(super) fn new(value: u64) -> Self {
        let mut history = Self::default();
        history.reset(value, 0);
        history
    }

    /// Forgets all but one value.
    pub(super) fn reset(&mut self, value: u64, now: u64) {
        self.events = vec![Event { value, began: now, ended: now }];
        self.durable.clear();
    }

    pub(super) fn begin(&mut self, value: u64, now: u64) {
        self.events.push(Event { value, began: now, ended: u64::MAX });
    }

    /// Ends the event that began then with this value.
    pub(super) fn end(&mut self, value: u64, began: u64, now: u64) {
        let is_it = |one: &&mut Event| one.value == value && one.began == began;
        if let Some(event) = self.events.iter_mut().find(is_it) {
            event.ended = now;
        }
    }

    /// Returns whether a read that began at `since` and ends at `until` may see `value`: it was
    /// written, and nothing that began after its end has ended before the read began.
    pub(super) fn allows(&self, value: u64, since: u64, until: u64) -> bool {
        let replaced =
            |one: &Event| self.events.iter().any(|f| one.ended < f.began && f.ended < since);
        self.events.iter().any(|one| one.value == value && one.began <= until && !replaced(one))
    }

    /// Returns a durable write that is lost if the block reads as `value` after a power cut.
    pub(super) fn lost_durable(&self, value: u64) -> Option<u64> {
        let lost = |durable: &&u64| {
            let Some(event) = self.events.iter().find(|one| one.value == **durable) else {
                return false;
            };
            self.events.iter().all(|one| one.value != value || one.ended < event.began)
        };
        self.durable.iter().find(lost).copied()
    }

    /// Forgets events that can be read neither now nor after a power cut. `since`: begin of the
    /// last flush that ended, or of the oldest request.
    pub(super) fn prune(&mut self, since: u64) {
        if self.events.len() <= 12 {
            return;
        }
        let events = self.events.clone();
        let is_replaced =
            |one: &Event| events.iter().any(|f| one.ended < f.began && f.ended < since);
        self.events.retain(|one| !is_replaced(one));
        let events = &self.events;
        self.durable.retain(|value| events.iter().any(|one| one.value == *value));
    }
}
