//! Mappings owned by one thread, from which it makes lists of pieces.

use std::rc::Rc;
use std::sync::Arc;

use crate::view::{Pin, Pinned};
use crate::{Mapping, MemoryError};

/// A mapping as one thread uses it. Lists of its pieces share one pin, counted without atomics.
#[derive(Clone, Debug)]
pub struct ThreadMapping {
    pub(crate) mapping: Arc<Mapping>,
    pub(crate) pin: Pin,
}

impl ThreadMapping {
    /// Allocates `len` bytes of zeroed memory that only this process has. The kernel provides pages
    /// when they are touched.
    ///
    /// # Errors
    /// The kernel refuses the mapping.
    pub fn private(len: usize) -> Result<Self, MemoryError> {
        let mapping = Arc::new(Mapping::private(len)?);
        Ok(Self { pin: Rc::new(Pinned::Mapping(mapping.clone())), mapping })
    }

    /// Wraps a mapping that other threads use too, for the calling thread. These threads must agree
    /// which of them touches which bytes, and when.
    pub fn over(mapping: Arc<Mapping>) -> Self {
        Self { pin: Rc::new(Pinned::Mapping(mapping.clone())), mapping }
    }

    /// Returns the shared mapping.
    pub fn mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.mapping.len()
    }

    /// Returns false: a mapping has at least one byte.
    pub fn is_empty(&self) -> bool {
        self.mapping.is_empty()
    }

    /// Copies bytes from `offset` into `out`. Returns false if the mapping ends before.
    #[must_use]
    pub fn read(&self, offset: usize, out: &mut [u8]) -> bool {
        let Some(at) = self.mapping.at(offset, out.len()) else { return false };
        // SAFETY: the mapping has as many bytes there; `out` is ours and elsewhere.
        unsafe { std::ptr::copy_nonoverlapping(at.as_ptr(), out.as_mut_ptr(), out.len()) };
        true
    }

    /// Copies `data` to `offset`. Returns false if it does not fit.
    #[must_use]
    pub fn write(&self, offset: usize, data: &[u8]) -> bool {
        let Some(at) = self.mapping.at(offset, data.len()) else { return false };
        // SAFETY: the mapping has as many bytes there; `data` is borrowed and elsewhere.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), at.as_ptr(), data.len()) };
        true
    }

    /// Copies `len` bytes from one offset to another. Both ranges may overlap. Returns false if
    /// either is outside the mapping.
    #[must_use]
    pub fn move_within(&self, from: usize, to: usize, len: usize) -> bool {
        let (Some(from), Some(to)) = (self.mapping.at(from, len), self.mapping.at(to, len)) else {
            return false;
        };
        // SAFETY: both ranges have `len` bytes; `copy` allows them to overlap.
        unsafe { std::ptr::copy(from.as_ptr(), to.as_ptr(), len) };
        true
    }

    /// Copies `len` bytes to another mapping. Returns false if either range is outside.
    #[must_use]
    pub fn copy_to(&self, from: usize, target: &ThreadMapping, to: usize, len: usize) -> bool {
        let (Some(from), Some(to)) = (self.mapping.at(from, len), target.mapping.at(to, len))
        else {
            return false;
        };
        // SAFETY: both ranges have `len` bytes; `copy` allows the mappings to be the same.
        unsafe { std::ptr::copy::<u8>(from.as_ptr(), to.as_ptr(), len) };
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Buffers;

    #[test]
    fn pieces_that_touch_are_one() {
        let thread_mapping = ThreadMapping::private(8192).unwrap();
        let mut list = Buffers::with_capacity(4);
        assert!(
            list.append_mapping(&thread_mapping, 0, 100)
                && list.append_mapping(&thread_mapping, 100, 50)
        );
        assert!(
            list.append_mapping(&thread_mapping, 4096, 10)
                && list.append_mapping(&thread_mapping, 4106, 0)
        );
        assert_eq!((list.len(), list.iovecs().len()), (160, 2));
        assert!(
            !list.append_mapping(&thread_mapping, 8190, 3)
                && !list.append_mapping(&thread_mapping, usize::MAX, 2)
        );
        assert_eq!(list.write(&[7; 160]), 160);
        let mut out = [0; 10];
        assert!(thread_mapping.read(4096, &mut out));
        assert_eq!(out, [7; 10]);
    }

    #[test]
    fn a_piece_that_was_consumed_is_not_made_longer() {
        let thread_mapping = ThreadMapping::private(4096).unwrap();
        let mut list = Buffers::default();
        assert!(list.append_mapping(&thread_mapping, 0, 4));
        list.advance(4);
        assert!(thread_mapping.write(4, b"next") && list.append_mapping(&thread_mapping, 4, 4));
        let mut out = [0; 8];
        assert_eq!((list.len(), list.iovecs().len(), list.peek(&mut out)), (4, 1, 4));
        assert_eq!(&out[..4], b"next");
    }

    #[test]
    fn bytes_move_and_stay_inside() {
        let (thread_mapping, other) =
            (ThreadMapping::private(4096).unwrap(), ThreadMapping::private(4096).unwrap());
        assert!(thread_mapping.write(0, b"abcdef") && thread_mapping.move_within(0, 2, 6));
        assert!(thread_mapping.copy_to(0, &other, 4088, 8));
        let mut out = [0; 8];
        assert!(other.read(4088, &mut out));
        assert_eq!(&out, b"ababcdef");
        assert!(!thread_mapping.write(4090, b"abcdefg") && !thread_mapping.read(4096, &mut [0]));
        assert!(
            !thread_mapping.move_within(0, 4090, 7) && !thread_mapping.copy_to(0, &other, 4089, 8)
        );
    }

    #[test]
    #[should_panic(expected = "one area")]
    fn a_list_has_one_area() {
        let (thread_mapping, other) =
            (ThreadMapping::private(1).unwrap(), ThreadMapping::private(1).unwrap());
        let mut list = Buffers::with_capacity(2);
        assert!(list.append_mapping(&thread_mapping, 0, 1));
        let _ = list.append_mapping(&other, 0, 1);
    }
}
