//! Lists cut in two.

use super::Buffers;

impl Buffers {
    /// Shortens the list to its first `count` bytes and returns the rest, which shares the pin. The
    /// rest is built in `spare`, whose former contents are dropped: a spare with enough capacity
    /// makes the cut free of allocations. The rest of a shorter list is empty.
    #[must_use]
    pub fn split_off(&mut self, count: usize, mut spare: Buffers) -> Buffers {
        spare.clear();
        let Some(list) = &mut self.0 else { return spare };
        if count >= list.bytes {
            return spare;
        }
        let rest = spare.list();
        // Find the piece that contains the first byte of the rest.
        let (mut at, mut into) = (list.first, count);
        while let Some(piece) = list.iov.get(at).filter(|piece| piece.iov_len <= into) {
            into -= piece.iov_len;
            at += 1;
        }
        rest.iov.extend_from_slice(list.iov.get(at..).unwrap_or_default());
        rest.bytes = list.bytes - count;
        rest.pin.clone_from(&list.pin);
        // Only a first piece can be a head. A cut inside of it leaves a part of it on both sides.
        if at == list.first {
            rest.head.clone_from(&list.head);
        }
        if let Some(piece) = rest.iov.first_mut() {
            // SAFETY: into < iov_len, so the new base is inside the same piece.
            piece.iov_base = unsafe { piece.iov_base.byte_add(into) };
            piece.iov_len -= into;
        }
        self.truncate(count);
        spare
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ThreadMapping;
    use crate::tests::all;

    /// Returns a list of three pieces, the first of which is a head, and its bytes. The memory lives
    /// only as long as the list.
    fn with_head() -> (Buffers, &'static [u8]) {
        let (ours, theirs) =
            (ThreadMapping::private(4096).unwrap(), ThreadMapping::private(4096).unwrap());
        assert!(ours.write(10, b"head") && theirs.write(0, b"body") && theirs.write(100, b"tail"));
        let mut list = Buffers::with_capacity(3);
        assert!(list.append_mapping(&theirs, 0, 4) && list.append_mapping(&theirs, 100, 4));
        assert!(list.put_head(&ours, 10, 4));
        (list, b"headbodytail")
    }

    #[test]
    fn both_sides_have_all_bytes_and_keep_their_memory() {
        for count in 0..=13 {
            for used in 0..=3 {
                let (mut list, bytes) = with_head();
                list.advance(used);
                let rest = list.split_off(count, Buffers::default());
                let bytes = &bytes[used..];
                let cut = count.min(bytes.len());
                assert_eq!((all(&list), list.len()), (bytes[..cut].to_vec(), cut));
                // Each side keeps what it points into without the other.
                drop(list);
                assert_eq!((all(&rest), rest.len()), (bytes[cut..].to_vec(), bytes.len() - cut));
                assert!(rest.iovecs().iter().all(|piece| piece.iov_len > 0));
            }
        }
    }

    #[test]
    fn a_rest_behind_the_head_has_none() {
        let (mut list, _) = with_head();
        let mut rest = list.split_off(4, Buffers::default());
        assert!(rest.take_last_byte().is_some() && list.take_last_byte().is_none());
        let (mut list, _) = with_head();
        let mut rest = list.split_off(3, Buffers::default());
        assert!(rest.take_last_byte().is_none(), "its first byte is in the head's memory");
    }

    #[test]
    fn a_spare_list_is_reused_without_its_former_contents() {
        let (mut list, _) = with_head();
        let mut spare = Buffers::with_capacity(3);
        let other = ThreadMapping::private(4096).unwrap();
        assert!(spare.append_mapping(&other, 0, 4096));
        let room = spare.capacity();
        let mut rest = list.split_off(6, spare);
        assert_eq!((all(&list), all(&rest)), (b"headbo".to_vec(), b"dytail".to_vec()));
        assert_eq!(rest.capacity(), room);
        // Parts can be cut again, and both are lists as any other.
        let last = rest.split_off(2, Buffers::default());
        rest.zero();
        assert_eq!((all(&rest), all(&last)), (vec![0; 2], b"tail".to_vec()));
        assert!(Buffers::default().split_off(1, last).is_empty(), "an empty list has no rest");
    }
}
