//! Who waits in one lane, and whose turn it is.

use std::collections::btree_map::Range;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound::{Excluded, Unbounded};
use std::time::Duration;

use super::StepKey;
use crate::id::VmId;

/// The map's entries from the one after `last` on, once around.
pub(super) fn in_turn<K: Ord + Copy, V>(
    map: &BTreeMap<K, V>,
    last: Option<K>,
) -> impl Iterator<Item = (&K, &V)> {
    let after: Range<'_, K, V> = map.range((last.map_or(Unbounded, Excluded), Unbounded));
    after.chain(last.into_iter().flat_map(move |last| map.range(..=last)))
}

/// Steps of several machines, which take turns; those of one machine are served in order.
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

/// One lane: what holds its slots, and who waits for one.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// Steps that run, the stuck ones too.
    pub(super) running: u16,
    /// Host slots that they hold.
    pub(super) host: u16,
    /// Steps among them that are stuck.
    pub(super) stuck: u16,
    /// A step has ended in time, and none is stuck since.
    pub(super) alive: bool,
    /// When a step of it has last ended.
    pub(super) moved: Duration,
    /// Steps that wait.
    pub(super) waiting: usize,
    begun: Turns,
    fresh: Turns,
}

impl Queue {
    pub(super) fn push(&mut self, vm: VmId, key: StepKey, begun: bool) {
        self.turns(begun).machines.entry(vm).or_default().push_back(key);
        self.waiting += 1;
    }

    /// The machine whose turn it is among those that have room, and whether its step goes on
    /// with what it began: such steps come first.
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
