//! Order in which slots went to channels.

/// No slot.
const NONE: u32 = u32::MAX;

/// List of slots, the one that was added first at the front. Each slot is in it at most once.
#[derive(Debug)]
pub(crate) struct SlotOrder {
    /// Slot before and slot behind each slot. The last entry is the head of the ring.
    links: Vec<(u32, u32)>,
}

impl SlotOrder {
    /// Creates an empty list for `slots` slots.
    pub(crate) fn new(slots: u32) -> Self {
        let mut links = vec![(NONE, NONE); slots as usize + 1];
        if let Some(head) = links.last_mut() {
            *head = (slots, slots);
        }
        Self { links }
    }

    fn head(&self) -> u32 {
        self.links.len() as u32 - 1
    }

    fn link(&mut self, at: u32) -> Option<&mut (u32, u32)> {
        self.links.get_mut(at as usize)
    }

    /// Appends a slot, or moves it to the end.
    pub(crate) fn push(&mut self, slot: u32) {
        self.remove(slot);
        let head = self.head();
        let Some(last) = self.links.last().map(|(last, _)| *last) else { return };
        if let Some(link) = self.link(slot) {
            *link = (last, head);
        }
        if let Some(link) = self.link(last) {
            link.1 = slot;
        }
        if let Some(link) = self.link(head) {
            link.0 = slot;
        }
    }

    /// Removes a slot, if it is in the list.
    pub(crate) fn remove(&mut self, slot: u32) {
        let Some((before, behind)) = self.links.get(slot as usize).copied() else { return };
        if before == NONE || slot == self.head() {
            return;
        }
        if let Some(link) = self.link(before) {
            link.1 = behind;
        }
        if let Some(link) = self.link(behind) {
            link.0 = before;
        }
        if let Some(link) = self.link(slot) {
            *link = (NONE, NONE);
        }
    }

    /// Returns the slots from the front.
    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> {
        let next = |at: &u32| self.links.get(*at as usize).map(|(_, behind)| *behind);
        let head = self.head();
        std::iter::successors(next(&head), move |slot| next(slot)).take_while(move |at| *at < head)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_come_in_the_order_of_their_last_push() {
        let mut order = SlotOrder::new(4);
        let slots = |order: &SlotOrder| order.iter().collect::<Vec<_>>();
        assert_eq!(slots(&order), [0; 0]);
        for slot in [2, 0, 3, 2] {
            order.push(slot);
        }
        assert_eq!(slots(&order), [0, 3, 2]);
        order.remove(3);
        order.remove(3);
        order.remove(1);
        assert_eq!(slots(&order), [0, 2]);
        order.remove(0);
        order.push(1);
        assert_eq!(slots(&order), [2, 1]);
    }
}
