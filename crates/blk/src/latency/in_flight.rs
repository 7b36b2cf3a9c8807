//! Requests that the disk works on, indexed by the head of their chain and linked in pop order.

use memory::Byte;
use virtq::Chain;

use super::{Class, RequestTimestamps};

/// A request that the disk works on.
#[derive(Debug)]
pub(crate) struct InFlight {
    pub(crate) chain: Chain,
    pub(crate) status: Byte,
    pub(crate) class: Class,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
    pub(crate) request_timestamps: RequestTimestamps,
}

const NONE: u16 = u16::MAX;

#[derive(Debug)]
struct Slot<T> {
    entry: Option<T>,
    earlier: u16,
    later: u16,
}

/// In-flight requests of a queue. Slots are linked in pop order to find the oldest at any time.
#[derive(Debug)]
pub(crate) struct InFlightTable<T = InFlight> {
    slots: Box<[Slot<T>]>,
    first: u16,
    last: u16,
}

impl<T> InFlightTable<T> {
    /// Creates a table for a ring of `size` entries.
    pub(crate) fn new(size: u16) -> Self {
        let free = |_| Slot { entry: None, earlier: NONE, later: NONE };
        Self { slots: (0..size).map(free).collect(), first: NONE, last: NONE }
    }

    fn slot(&mut self, head: u16) -> Option<&mut Slot<T>> {
        self.slots.get_mut(usize::from(head))
    }

    /// Adds the latest request under the head of its chain, which must not be in flight.
    pub(crate) fn insert(&mut self, head: u16, entry: T) {
        let last = self.last;
        let Some(slot) = self.slot(head) else { return };
        *slot = Slot { entry: Some(entry), earlier: last, later: NONE };
        match self.slot(last) {
            Some(slot) => slot.later = head,
            None => self.first = head,
        }
        self.last = head;
    }

    /// Returns the request under `head`.
    pub(crate) fn get_mut(&mut self, head: u32) -> Option<&mut T> {
        self.slot(u16::try_from(head).ok()?)?.entry.as_mut()
    }

    /// Removes and returns the request under `head`.
    pub(crate) fn take(&mut self, head: u32) -> Option<T> {
        let slot = self.slot(u16::try_from(head).ok()?)?;
        let entry = slot.entry.take()?;
        let (earlier, later) = (slot.earlier, slot.later);
        match self.slot(earlier) {
            Some(slot) => slot.later = later,
            None => self.first = later,
        }
        match self.slot(later) {
            Some(slot) => slot.earlier = earlier,
            None => self.last = earlier,
        }
        Some(entry)
    }

    /// Returns the request that was popped first.
    pub(crate) fn oldest(&self) -> Option<&T> {
        self.slots.get(usize::from(self.first))?.entry.as_ref()
    }

    /// Removes and returns all requests.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = T> {
        (self.first, self.last) = (NONE, NONE);
        self.slots.iter_mut().filter_map(|slot| slot.entry.take())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_is_known_whoever_ends_first() {
        let mut table = InFlightTable::new(4);
        assert_eq!((table.take(0), table.take(9)), (None::<char>, None));
        assert_eq!(table.oldest(), None);
        for (head, entry) in [(2, 'a'), (0, 'b'), (3, 'c')] {
            table.insert(head, entry);
        }
        assert_eq!(table.take(0), Some('b'));
        assert_eq!(table.oldest(), Some(&'a'));
        table.insert(0, 'd');
        assert_eq!(table.take(2), Some('a'));
        assert_eq!(table.oldest(), Some(&'c'));
        assert_eq!(table.take(3), Some('c'));
        assert_eq!(table.oldest(), Some(&'d'));
        assert_eq!(table.take(0), Some('d'));
        assert_eq!(table.oldest(), None);
        table.insert(1, 'e');
        table.insert(2, 'f');
        assert_eq!(table.drain().collect::<String>(), "ef");
        assert_eq!(table.oldest(), None);
        assert_eq!(table.take(1), None);
    }
}
