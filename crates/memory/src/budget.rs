//! Budget of the process for the memory of front-ends.
//!
//! A front-end chooses how much memory it shares, in how many pieces. Each piece takes addresses,
//! a descriptor, a mapping of the kernel's and a guard slot ([`sigbus`](crate::sigbus)), and all
//! front-ends of the process share these. If one of them runs out, no thread can start and no other
//! front-end can connect.
//!
//! Each device has a [`MemoryShare`] of the budget. A device may always use its fair part: the
//! budget divided by the number of devices. It may use more as long as the fair parts of all other
//! devices stay free. Memory that a front-end has replaced, and that requests in flight still use,
//! is bounded in the same way, on its own.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::sigbus::MAX_MAPPINGS;

/// Addresses for the present memory of front-ends, in bytes. Old memory of front-ends that change
/// theirs may take as much again. A process has 128 TiB on x86-64; the rest is for stacks and heap.
const BYTES: u64 = 48 << 40;
/// Mappings for the present memory of front-ends, and as many again for old memory. The other guard
/// slots are for in-flight regions and links.
const MAPPINGS: u64 = MAX_MAPPINGS as u64 / 16 * 7;
/// Part of the free descriptors for the present memory of front-ends. Old memory may take as many
/// again; the others are for devices that are attached later.
const FILES_PART: (u64, u64) = (3, 8);

/// Amount of memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryAmount {
    /// Size in bytes.
    pub bytes: u64,
    /// Number of mappings, each with a descriptor.
    pub mappings: u64,
}

impl MemoryAmount {
    /// Returns the amount of one region of `bytes`.
    pub fn region(bytes: u64) -> Self {
        Self { bytes, mappings: 1 }
    }

    /// Returns the sum.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        let bytes = self.bytes.saturating_add(other.bytes);
        Self { bytes, mappings: self.mappings.saturating_add(other.mappings) }
    }

    fn minus(self, other: Self) -> Self {
        let bytes = self.bytes.saturating_sub(other.bytes);
        Self { bytes, mappings: self.mappings.saturating_sub(other.mappings) }
    }
}

/// Reason why a front-end gets no more memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "guest memory with {asked} {unit} is too much: all front-ends of this process share {limit}, and \
     {left} of them are left for this one; use fewer or smaller memory backends, or serve this \
     device by a process of its own"
)]
pub struct OverBudget {
    unit: &'static str,
    asked: u64,
    limit: u64,
    left: u64,
}

/// Budget of a process.
#[derive(Debug)]
pub struct MemoryBudget {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    limit: MemoryAmount,
    devices: HashMap<u64, Device>,
    next: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Device {
    /// Memory of the last table.
    present: MemoryAmount,
    /// Memory that is mapped, including that of former tables.
    mapped: MemoryAmount,
}

impl Default for MemoryBudget {
    fn default() -> Self {
        Self::new(MemoryAmount { bytes: BYTES, mappings: MAPPINGS })
    }
}

impl MemoryBudget {
    /// Creates a budget with these limits.
    pub fn new(limit: MemoryAmount) -> Self {
        Self { state: Mutex::new(State { limit, devices: HashMap::new(), next: 0 }) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Each change is complete, so a panic elsewhere cannot leave the state inconsistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Limits the mappings to what `free` descriptors allow. `free` is the limit of open files less
    /// what all devices need without the memory of their front-ends.
    pub fn limit_files(&self, free: u64) {
        let (part, of) = FILES_PART;
        self.state().limit.mappings = (free / of).saturating_mul(part).min(MAPPINGS);
    }

    /// Returns how many descriptors the devices use for memory, without the first `included` of
    /// each.
    pub fn files_beyond(&self, included: u64) -> u64 {
        let state = self.state();
        let beyond = |device: &Device| device.mapped.mappings.saturating_sub(included);
        state.devices.values().map(beyond).sum()
    }

    /// Adds a device.
    pub fn join(self: &Arc<Self>) -> MemoryShare {
        let mut state = self.state();
        let id = state.next;
        state.next += 1;
        state.devices.insert(id, Device::default());
        drop(state);
        MemoryShare { budget: Arc::clone(self), id }
    }
}

impl State {
    /// Checks that device `id` may have `asked` in its table, and map `added` for it.
    fn check(&self, id: u64, asked: MemoryAmount, added: MemoryAmount) -> Result<(), OverBudget> {
        let mapped = self.devices.get(&id).map_or(MemoryAmount::default(), |device| device.mapped);
        let bytes: fn(&MemoryAmount) -> u64 = |amount| amount.bytes;
        let mappings: fn(&MemoryAmount) -> u64 = |amount| amount.mappings;
        for (unit, of) in [("bytes", bytes), ("regions", mappings)] {
            let (asked, limit) = (of(&asked), of(&self.limit));
            let fair = limit / (self.devices.len().max(1) as u64);
            let others = self.devices.iter().filter(|(device, _)| **device != id);
            let others = others.map(|(_, device)| of(&device.present).max(fair));
            let left = limit.saturating_sub(others.fold(0, u64::saturating_add)).max(fair);
            let old = (of(&mapped).saturating_add(of(&added))).saturating_sub(asked);
            if asked > left || old > left {
                return Err(OverBudget { unit, asked: asked.max(old), limit, left });
            }
        }
        Ok(())
    }
}

/// Share of a device in a budget. Dropping it gives the share back.
#[derive(Debug)]
pub struct MemoryShare {
    budget: Arc<MemoryBudget>,
    id: u64,
}

impl MemoryShare {
    /// Takes `asked` for the device's table in place of what it has, and charges each piece of
    /// `added`, which is to be mapped for it.
    ///
    /// # Errors
    /// [`OverBudget`]: the device keeps what it has.
    pub fn take(
        &self,
        asked: MemoryAmount,
        added: &[MemoryAmount],
    ) -> Result<Vec<MemoryCharge>, OverBudget> {
        let sum = added.iter().copied().fold(MemoryAmount::default(), MemoryAmount::plus);
        let mut state = self.budget.state();
        state.check(self.id, asked, sum)?;
        Ok(self.charge(&mut state, asked, added))
    }

    /// Takes memory like [`Self::take`], without a check: another process has admitted it.
    pub fn take_over(&self, has: MemoryAmount, pieces: &[MemoryAmount]) -> Vec<MemoryCharge> {
        self.charge(&mut self.budget.state(), has, pieces)
    }

    /// Sets what the device's table has, when the table that it took memory for was not made.
    pub fn set_present(&self, present: MemoryAmount) {
        self.budget.state().devices.entry(self.id).or_default().present = present;
    }

    fn charge(
        &self,
        state: &mut State,
        present: MemoryAmount,
        pieces: &[MemoryAmount],
    ) -> Vec<MemoryCharge> {
        let device = state.devices.entry(self.id).or_default();
        device.present = present;
        let charge = |&amount: &MemoryAmount| {
            device.mapped = device.mapped.plus(amount);
            MemoryCharge { budget: Arc::clone(&self.budget), id: self.id, amount }
        };
        pieces.iter().map(charge).collect()
    }
}

impl Drop for MemoryShare {
    fn drop(&mut self) {
        self.budget.state().devices.remove(&self.id);
    }
}

/// Charge for a mapping. Dropping it gives the memory back.
#[derive(Debug)]
pub struct MemoryCharge {
    budget: Arc<MemoryBudget>,
    id: u64,
    amount: MemoryAmount,
}

impl MemoryCharge {
    pub(crate) fn amount(&self) -> MemoryAmount {
        self.amount
    }
}

impl Drop for MemoryCharge {
    fn drop(&mut self) {
        if let Some(device) = self.budget.state().devices.get_mut(&self.id) {
            device.mapped = device.mapped.minus(self.amount);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn amount(bytes: u64, mappings: u64) -> MemoryAmount {
        MemoryAmount { bytes, mappings }
    }

    /// Takes memory for a table whose mappings are gone at once.
    fn take(share: &MemoryShare, bytes: u64, mappings: u64) -> Result<(), OverBudget> {
        share.take(amount(bytes, mappings), &[]).map(drop)
    }

    #[test]
    fn a_device_may_always_have_its_fair_part() {
        let budget = Arc::new(MemoryBudget::new(amount(100, 1000)));
        let greedy = budget.join();
        assert_eq!(take(&greedy, 100, 1), Ok(()), "it is alone");
        let [first, second, third] = [(); 3].map(|()| budget.join());
        // A later device gets its part although nothing is left of the others'.
        assert_eq!(take(&first, 25, 250), Ok(()));
        let refused = take(&first, 26, 1).unwrap_err();
        assert_eq!(refused, OverBudget { unit: "bytes", asked: 26, limit: 100, left: 25 });
        drop(greedy);
        // Of three, one may use what the fair parts of the other two leave.
        assert_eq!(take(&second, 34, 1), Ok(()));
        assert!(take(&second, 35, 1).is_err(), "33 are for each of the other two");
        let refused = take(&third, 1, 417).unwrap_err();
        assert_eq!(refused, OverBudget { unit: "regions", asked: 417, limit: 1000, left: 334 });
        assert!(refused.to_string().contains("with 417 regions is too much"), "{refused}");
        assert_eq!(take(&second, 0, 0), Ok(()));
    }

    #[test]
    fn many_greedy_devices_leave_each_neighbour_its_part() {
        let budget = Arc::new(MemoryBudget::default());
        let shares: Vec<_> = (0..100).map(|_| budget.join()).collect();
        let (neighbour, greedy) = shares.split_first().unwrap();
        let taken = greedy.iter().filter(|share| take(share, 16 << 40, 509).is_ok()).count();
        assert!(taken < 3, "{taken} took 16 TiB");
        // 256 GiB of guest memory in eight pieces.
        assert_eq!(take(neighbour, 256 << 30, 8), Ok(()));
    }

    #[test]
    fn old_memory_is_bounded_as_present_memory_is() {
        let budget = Arc::new(MemoryBudget::new(amount(100, 1000)));
        let (share, _other) = (budget.join(), budget.join());
        let pieces = [MemoryAmount::region(30), MemoryAmount::region(10)];
        let first = share.take(amount(40, 2), &pieces).unwrap();
        // Requests in flight use the first table while the second one is there.
        let second = share.take(amount(40, 2), &pieces).unwrap();
        let refused = share.take(amount(40, 2), &pieces).unwrap_err();
        assert_eq!(refused, OverBudget { unit: "bytes", asked: 80, limit: 100, left: 50 });
        drop(first);
        let third = share.take(amount(40, 2), &pieces).unwrap();
        drop((second, third, share));
        assert_eq!(budget.files_beyond(0), 0);
    }

    #[test]
    fn descriptors_limit_the_mappings() {
        let budget = Arc::new(MemoryBudget::default());
        budget.limit_files(4000);
        let [first, second] = [(); 2].map(|()| budget.join());
        let region = [MemoryAmount::region(1); 509];
        let _first = first.take(amount(509, 509), &region).unwrap();
        budget.limit_files(400);
        assert_eq!(take(&second, 1, 75), Ok(()));
        assert!(take(&second, 1, 76).is_err());
        assert_eq!(budget.files_beyond(8), 501);
        budget.limit_files(u64::MAX);
        assert_eq!(take(&second, 1, 509), Ok(()));
    }
}
