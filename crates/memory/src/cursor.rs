//! Copies between the next bytes of a list and a mapping.

use crate::{Buffers, Mapping};

/// A position in a list of buffers, from which bytes are copied to a mapping or filled. The list itself
/// does not change, so a copy can be repeated from an earlier position.
#[derive(Clone, Copy, Debug)]
pub struct Cursor<'a> {
    pieces: &'a [libc::iovec],
    /// Bytes of the first piece before the position.
    skip: usize,
}

impl Buffers {
    /// Returns the position of the first byte.
    pub fn cursor(&self) -> Cursor<'_> {
        Cursor { pieces: self.iovecs(), skip: 0 }
    }
}

impl Cursor<'_> {
    /// Copies the next `len` bytes to byte `offset` of a mapping. Returns false if the mapping or the
    /// list ends before; bytes that fitted may have been copied.
    #[must_use]
    #[inline]
    pub fn store_to(&mut self, mapping: &Mapping, offset: usize, len: usize) -> bool {
        let Some(target) = mapping.at(offset, len) else { return false };
        self.each_piece(len, |piece, at, count| {
            // SAFETY: `piece` has `count` bytes, which the list pins. The mapping has `len` bytes at
            // `target`, and `at + count <= len`. A guest may share the memory of neither.
            unsafe { std::ptr::copy_nonoverlapping(piece, target.as_ptr().add(at), count) };
        })
    }

    /// Fills the next `len` bytes from byte `offset` of a mapping. Returns false if the mapping or the
    /// list ends before; bytes that fitted may have been filled.
    #[must_use]
    #[inline]
    pub fn load_from(&mut self, mapping: &Mapping, offset: usize, len: usize) -> bool {
        let Some(source) = mapping.at(offset, len) else { return false };
        self.each_piece(len, |piece, at, count| {
            // SAFETY: as in `store_to`, in the other direction.
            unsafe { std::ptr::copy_nonoverlapping(source.as_ptr().add(at), piece, count) };
        })
    }

    /// Fills the next `len` bytes with zeroes. Returns false if the list ends before.
    #[must_use]
    #[inline]
    pub fn zero(&mut self, len: usize) -> bool {
        self.each_piece(len, |piece, _, count| {
            // SAFETY: `piece` has `count` bytes, which the list pins.
            unsafe { std::ptr::write_bytes(piece, 0, count) };
        })
    }

    /// Calls `with` for the parts of the next `len` bytes: address, distance from the first of them,
    /// length. Returns false if the list ends before.
    #[inline]
    fn each_piece(&mut self, len: usize, mut with: impl FnMut(*mut u8, usize, usize)) -> bool {
        let mut done = 0;
        while done < len {
            let Some((piece, rest)) = self.pieces.split_first() else { return false };
            let count = (piece.iov_len - self.skip).min(len - done);
            with(piece.iov_base.cast::<u8>().wrapping_add(self.skip), done, count);
            done += count;
            self.skip += count;
            if self.skip == piece.iov_len {
                (self.pieces, self.skip) = (rest, 0);
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ThreadMapping;

    #[test]
    fn bytes_move_between_a_list_and_a_mapping_across_pieces() {
        let guest = ThreadMapping::private(4096).unwrap();
        assert!(guest.write(0, b"abc") && guest.write(100, b"defgh"));
        let mut list = Buffers::default();
        assert!(list.append_mapping(&guest, 0, 3) && list.append_mapping(&guest, 100, 5));
        let store = ThreadMapping::private(4096).unwrap();
        let mut cursor = list.cursor();
        assert!(cursor.store_to(store.mapping(), 10, 2) && cursor.store_to(store.mapping(), 20, 4));
        let again = cursor;
        assert!(!cursor.store_to(store.mapping(), 30, 3), "two bytes are left");
        cursor = again;
        assert!(cursor.zero(1) && cursor.load_from(store.mapping(), 10, 1) && !cursor.zero(1));
        let read = |mapping: &ThreadMapping, at, len| {
            let mut out = vec![0; len];
            assert!(mapping.read(at, &mut out));
            out
        };
        assert_eq!((read(&store, 10, 2), read(&store, 20, 4)), (b"ab".to_vec(), b"cdef".to_vec()));
        assert_eq!(read(&guest, 100, 5), b"def\0a");
        assert!(!list.cursor().store_to(store.mapping(), 4095, 2), "the mapping ends before");
        assert!(!list.cursor().load_from(store.mapping(), usize::MAX, 2));
    }
}
