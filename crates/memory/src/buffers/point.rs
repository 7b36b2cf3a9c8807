//! Lists that point to one piece after the other, and prefetches of a list.

use std::ptr::NonNull;

use super::Buffers;
use crate::{View, lines, prefetch, prefetch_to_write};

impl Buffers {
    /// Sets the list to `len` bytes at guest address `addr`. The list is empty afterwards if they
    /// do not lie in one region. A list of the same view is changed in place.
    #[inline]
    pub fn set_to(&mut self, view: &View, addr: u64, len: u32) {
        let list = self.list();
        let found = view.find(addr).filter(|(_, room)| u64::from(len) <= *room && len > 0);
        match (found, &mut list.iov[..], &list.pin) {
            (Some((ptr, _)), [piece], Some(pin)) if view.same_pin(pin) => {
                *piece = libc::iovec { iov_base: ptr.as_ptr().cast(), iov_len: len as usize };
                (list.first, list.bytes) = (0, len as usize);
            }
            _ => self.point_anew(view, found.map(|(ptr, _)| (ptr, len as usize))),
        }
    }

    #[inline(never)]
    fn point_anew(&mut self, view: &View, piece: Option<(NonNull<u8>, usize)>) {
        self.clear();
        if let Some((ptr, len)) = piece {
            let list = self.list();
            list.pin = Some(view.pin());
            list.push(ptr, len);
        }
    }

    /// Prefetches the first `bytes` of the first piece, for reading.
    #[inline]
    pub fn fetch(&self, bytes: usize) {
        self.first_lines(bytes, prefetch);
    }

    /// Prefetches the first `bytes` of the first piece, for writing.
    #[inline]
    pub fn fetch_to_write(&self, bytes: usize) {
        self.first_lines(bytes, prefetch_to_write);
    }

    /// Calls `bring` with a byte of each cache line of the first piece, up to `bytes`.
    #[inline]
    fn first_lines(&self, bytes: usize, bring: impl FnMut(NonNull<u8>)) {
        if let Some(first) = self.iovecs().first()
            && let Some(ptr) = NonNull::new(first.iov_base.cast())
        {
            lines(ptr, first.iov_len.min(bytes), bring);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ThreadMapping;
    use crate::tests::{all, region, view};

    const ROOM: usize = 4096;

    #[test]
    fn every_line_of_the_first_piece_comes_closer_and_no_other() {
        let thread_mapping = ThreadMapping::private(ROOM).unwrap();
        let lines = |at: usize, len: usize, bytes: usize| -> Vec<usize> {
            let mut list = Buffers::default();
            assert!(
                list.append_mapping(&thread_mapping, at, len)
                    && list.append_mapping(&thread_mapping, 3000, 10)
            );
            let start = list.iovecs()[0].iov_base as usize - at;
            let mut seen = vec![];
            list.first_lines(bytes, |ptr| seen.push((ptr.as_ptr() as usize - start) / 64));
            seen
        };
        assert_eq!(lines(0, 64, 64), [0]);
        assert_eq!(lines(0, 65, 1000), [0, 1]);
        assert_eq!(lines(63, 2, 2), [0, 1], "across a border");
        assert_eq!(lines(100, 1000, 30), [1, 2]);
        assert_eq!(lines(100, 1000, 0), [0; 0]);
        Buffers::default().first_lines(64, |_| panic!("there is none"));
    }

    #[test]
    fn a_list_becomes_another_piece() {
        let (first, other) = (
            view(vec![region(0, 0, 4096), region(4096, 9000 << 12, 4096)]),
            view(vec![region(0, 0, 4096)]),
        );
        let mut list = Buffers::default();
        list.set_to(&first, 100, 50);
        assert_eq!((list.write(b"abc"), list.len(), list.iovecs().len()), (3, 50, 1));
        list.advance(1);
        list.set_to(&first, 100, 2);
        assert_eq!(all(&list), b"ab");
        list.set_to(&first, 4090, 20);
        assert!(list.is_empty(), "it lies in two regions");
        list.set_to(&first, 1 << 40, 20);
        assert!(list.is_empty());
        list.set_to(&first, 100, 0);
        assert!(list.is_empty() && list.iovecs().is_empty());
        list.set_to(&other, 100, 3);
        assert_eq!(all(&list), [0; 3], "another guest's memory");
        drop((first, other));
        assert_eq!(all(&list), [0; 3], "it stays");
    }
}
