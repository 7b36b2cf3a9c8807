//! Lists whose first bytes lie in other memory: a header of this process before a guest's data.

use super::Buffers;
use crate::ThreadMapping;

impl Buffers {
    /// Puts `len` bytes of a thread mapping, from byte `offset`, before the remaining bytes of the
    /// list. Returns false and puts nothing if the mapping ends before. Both memories stay pinned.
    ///
    /// # Panics
    /// The list already has a head.
    #[must_use]
    pub fn put_head(&mut self, thread_mapping: &ThreadMapping, offset: usize, len: usize) -> bool {
        let Some(ptr) = thread_mapping.mapping.at(offset, len) else { return false };
        let list = self.list();
        assert!(list.head.is_none(), "one list of buffers has one head");
        if len == 0 {
            return true;
        }
        list.head = Some(thread_mapping.pin.clone());
        let piece = libc::iovec { iov_base: ptr.as_ptr().cast(), iov_len: len };
        list.bytes += len;
        // A header that was consumed has left a free entry.
        let free = list.first.checked_sub(1);
        match free.and_then(|at| Some((at, list.iov.get_mut(at)?))) {
            Some((at, place)) => (list.first, *place) = (at, piece),
            None => list.iov.insert(list.first, piece),
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::all;

    #[test]
    fn a_head_takes_the_place_of_what_was_consumed() {
        let (ours, theirs) =
            (ThreadMapping::private(4096).unwrap(), ThreadMapping::private(4096).unwrap());
        assert!(ours.write(10, b"head") && theirs.write(0, b"oldbody"));
        let mut list = Buffers::with_capacity(3);
        assert!(list.append_mapping(&theirs, 0, 3) && list.append_mapping(&theirs, 2000, 2));
        list.advance(3);
        let room = list.capacity();
        assert!(theirs.write(2000, b"xy") && list.put_head(&ours, 10, 4));
        assert_eq!((all(&list), list.iovecs().len()), (b"headxy".to_vec(), 2));
        assert!(list.take_last_byte().is_none(), "it would not know which memory to pin");
        assert_eq!(list.capacity(), room);
        list.advance(5);
        assert_eq!(all(&list), b"y");
    }

    #[test]
    fn a_head_goes_before_a_piece_that_is_used_in_part() {
        let (ours, theirs) =
            (ThreadMapping::private(4096).unwrap(), ThreadMapping::private(4096).unwrap());
        assert!(ours.write(0, b"head") && theirs.write(0, b"oldbody"));
        let mut list = Buffers::with_capacity(2);
        assert!(list.append_mapping(&theirs, 0, 7));
        list.advance(3);
        assert!(list.put_head(&ours, 0, 4) && !list.is_empty());
        // The list keeps the memory pinned without the mappings' own handles.
        drop((ours, theirs));
        assert_eq!(all(&list), b"headbody");
        list.truncate(4);
        assert_eq!(all(&list), b"head");
        list.clear();
        let other = ThreadMapping::private(4096).unwrap();
        assert!(!list.put_head(&other, 4090, 7) && list.put_head(&other, 0, 0));
        assert!(list.put_head(&other, 0, 1), "a list that was cleared has none");
    }

    #[test]
    #[should_panic(expected = "one head")]
    fn a_list_has_one_head() {
        let thread_mapping = ThreadMapping::private(4096).unwrap();
        let mut list = Buffers::default();
        assert!(list.put_head(&thread_mapping, 0, 1));
        let _ = list.put_head(&thread_mapping, 0, 1);
    }
}
