//! Waiting steps of one fault domain, and their order.

use std::collections::btree_map::Range;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound::{Excluded, Unbounded};
use std::time::Duration;

use super::StepKey;
use crate::id::VmId;

/// Returns the entries of the map after `last`, then those up to `last`.
pub(super) fn in_turn<K: Ord + Copy, V>(
    map: &BTreeMap<K, V>,
    last: Option<K>,
) -> impl Iterator<Item = (&K, &V)> {
    let after: Range<'_, K, V> = map.range((last.map_or(Unbounded, Excluded), Unbounded));
    after.chain(last.into_iter().flat_map(move |last| map.range(..=last)))
}

/// Steps of several machines, which take turns. The steps of one machine stay in order.
#[derive(Debug, Default)]
struct Turns {
    machines: BTreeMap<VmId, VecDeque<StepKey>>,
    last: Option<VmId>,
}

impl Turns {
    fn first(&self, room: impl Fn(VmId) -> bool) -> Option<VmId> {
        in_turn(&self.machines, self.last).map(|(vm, _)| *vm).find(|vm| room(*vm))
    }

    fn take(&mut self, vm: VmId) -> Option<StepKey> {
        let key = self.machines.get_mut(&vm)?.pop_front();
        self.drop_if_empty(vm);
        self.last = Some(vm);
        key
    }

    fn remove(&mut self, vm: VmId, key: StepKey) {
        if let Some(keys) = self.machines.get_mut(&vm) {
            keys.retain(|one| *one != key);
        }
        self.drop_if_empty(vm);
    }

    fn drop_if_empty(&mut self, vm: VmId) {
        if self.machines.get(&vm).is_some_and(VecDeque::is_empty) {
            self.machines.remove(&vm);
        }
    }
}

/// A fault domain: its slots in use, and its waiting steps.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// Running steps, including stuck ones.
    pub(super) running: u16,
    /// Host slots that they use.
    pub(super) host: u16,
    /// Stuck steps among them.
    pub(super) stuck: u16,
    /// Whether a step has ended in time and none has become stuck since.
    pub(super) alive: bool,
    /// Time at which a step last ended.
    pub(super) moved: Duration,
    /// Waiting steps.
    pub(super) waiting: usize,
    begun: Turns,
    fresh: Turns,
}

impl Queue {
    pub(super) fn push(&mut self, vm: VmId, key: StepKey, begun: bool) {
        self.turns(begun).machines.entry(vm).or_default().push_back(key);
        self.waiting += 1;
    }

    /// Returns the next machine that `room` accepts, and whether its step is a begun one. Begun
    /// steps go first.
    pub(super) fn first(&self, room: impl Fn(VmId) -> bool) -> Option<(VmId, bool)> {
        let begun = self.begun.first(&room).map(|vm| (vm, true));
        begun.or_else(|| self.fresh.first(&room).map(|vm| (vm, false)))
    }

    pub(super) fn take(&mut self, vm: VmId, begun: bool) -> Option<StepKey> {
        let key = self.turns(begun).take(vm)?;
        self.waiting = self.waiting.saturating_sub(1);
        Some(key)
    }

    pub(super) fn remove(&mut self, vm: VmId, key: StepKey, begun: bool) {
        self.turns(begun).remove(vm, key);
        self.waiting = self.waiting.saturating_sub(1);
    }

    pub(super) fn is_idle(&self) -> bool {
        self.running == 0 && self.waiting == 0
    }

    fn turns(&mut self, begun: bool) -> &mut Turns {
        if begun { &mut self.begun } else { &mut self.fresh }
    }
}
