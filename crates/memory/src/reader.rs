//! Sequential reads from a list of buffers.

use crate::Buffers;

/// A read position in a list. Reading does not change the list, so the same bytes can be copied
/// several times.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    pieces: &'a [libc::iovec],
    /// Number of bytes of the first piece that were read.
    skip: usize,
}

impl Buffers {
    /// Returns a reader that starts at the front.
    pub fn reader(&self) -> Reader<'_> {
        Reader { pieces: self.iovecs(), skip: 0 }
    }
}

impl Reader<'_> {
    /// Copies the next bytes to the front of `target`, up to its length or the end of the list.
    /// Returns their number.
    pub fn copy_to(&mut self, target: &Buffers) -> usize {
        let mut done = 0;
        for v in target.iovecs() {
            let mut at = 0;
            while at < v.iov_len {
                let Some((from, rest)) = self.pieces.split_first() else { return done };
                let count = (v.iov_len - at).min(from.iov_len - self.skip);
                // SAFETY: both lists are borrowed, so their pins live; `at` and `skip` stay inside
                // their pieces. `copy` allows a guest to name the same page twice.
                unsafe {
                    let source = from.iov_base.cast::<u8>().add(self.skip);
                    std::ptr::copy(source, v.iov_base.cast::<u8>().add(at), count);
                }
                at += count;
                done += count;
                self.skip += count;
                if self.skip == from.iov_len {
                    (self.pieces, self.skip) = (rest, 0);
                }
            }
        }
        done
    }
}

#[cfg(test)]
mod tests {
    use crate::{Buffers, ThreadMapping};

    fn list(thread_mapping: &ThreadMapping, pieces: &[(usize, usize)]) -> Buffers {
        let mut list = Buffers::default();
        assert!(pieces.iter().all(|(at, len)| list.append_mapping(thread_mapping, *at, *len)));
        list
    }

    #[test]
    fn a_list_is_read_on_where_the_last_target_was_full() {
        let thread_mapping = ThreadMapping::private(4096).unwrap();
        assert!(thread_mapping.write(0, b"abcdefghij"));
        let source = list(&thread_mapping, &[(0, 3), (4, 1), (6, 4)]);
        let mut reader = source.reader();
        let targets = [&[(100, 2)][..], &[(200, 1), (210, 3)], &[(300, 1), (310, 9)], &[(400, 1)]];
        let copied = targets.map(|pieces| reader.copy_to(&list(&thread_mapping, pieces)));
        assert_eq!(copied, [2, 4, 2, 0]);
        let read = |at, len| {
            let mut out = vec![0; len];
            assert!(thread_mapping.read(at, &mut out));
            String::from_utf8(out).unwrap()
        };
        assert_eq!([read(100, 2), read(200, 1), read(210, 3)], ["ab", "c", "egh"]);
        assert_eq!([read(300, 1), read(310, 1)], ["i", "j"]);
        assert_eq!(source.len(), 8);
    }
}
