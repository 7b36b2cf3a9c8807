//! Values with small stable indices.

/// Vector whose free slots are reused.
#[derive(Debug)]
pub struct Slab<T> {
    slots: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self { slots: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slab<T> {
    /// Stores a value and returns its index. [`Slab::remove`] frees the index.
    pub fn insert(&mut self, value: T) -> u32 {
        if let Some(index) = self.free.pop() {
            if let Some(slot) = self.slots.get_mut(index as usize) {
                *slot = Some(value);
            }
            return index;
        }
        self.slots.push(Some(value));
        (self.slots.len() - 1) as u32
    }

    /// Returns the index that the next [`Slab::insert`] returns.
    #[inline]
    pub fn next_index(&self) -> u32 {
        self.free.last().copied().unwrap_or(self.slots.len() as u32)
    }

    /// Returns the value at an index. `None` if the index is free.
    pub fn get(&self, index: u32) -> Option<&T> {
        self.slots.get(index as usize)?.as_ref()
    }

    /// Returns the value at an index. `None` if the index is free.
    pub fn get_mut(&mut self, index: u32) -> Option<&mut T> {
        self.slots.get_mut(index as usize)?.as_mut()
    }

    /// Removes the value at an index and frees the index. `None` if the index is free.
    pub fn remove(&mut self, index: u32) -> Option<T> {
        let value = self.slots.get_mut(index as usize)?.take()?;
        self.free.push(index);
        Some(value)
    }

    /// Returns whether no value is stored.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of stored values.
    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Returns the values with their indices.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        let slots = (0..).zip(&self.slots);
        slots.filter_map(|(index, slot)| Some((index, slot.as_ref()?)))
    }

    /// Returns the indices in use.
    pub(crate) fn indices(&self) -> Vec<u32> {
        self.iter().map(|(index, _)| index).collect()
    }
}
