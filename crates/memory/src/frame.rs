//! Frames behind a header, each in one piece of guest memory.

use std::ptr::NonNull;

use crate::{Buffers, LINE_BYTES, View};

/// Returns whether a header of N bytes at `ptr` ends with its cache line. That line then contains
/// no byte of the frame. Drivers that reserve space before received data have this layout (DPDK).
/// They leave the old header in place, and the next header is usually the same.
#[inline]
pub(crate) fn is_alone<const N: usize>(ptr: NonNull<u8>) -> bool {
    (ptr.as_ptr() as usize).wrapping_add(N).is_multiple_of(LINE_BYTES)
}

impl View {
    /// Copies a fixed header at `addr` and the bytes that follow it into `into`. Copies at most
    /// `len` bytes in all, and at most as many as fit. Returns header and rest, which lie in
    /// `into`. Reads each byte once.
    ///
    /// Returns `None` if the `len` bytes do not lie in one region, or are fewer than the header.
    #[inline]
    pub fn read_frame<'a, const N: usize>(
        &self,
        (addr, len): (u64, u32),
        into: &'a mut [u8],
    ) -> Option<(&'a [u8; N], &'a [u8])> {
        let (ptr, _) = self.find(addr).filter(|(_, room)| u64::from(len) <= *room)?;
        let into = into.get_mut(..into.len().min(len as usize))?;
        // SAFETY: `len` bytes from `ptr` are mapped as long as this view lives (`find`). `into` is
        // ours and has no more bytes.
        unsafe { std::ptr::copy_nonoverlapping(ptr.as_ptr(), into.as_mut_ptr(), into.len()) };
        into.split_first_chunk()
    }

    /// Copies `header`, `head` and `body`, one after the other, to `addr`. Returns their total
    /// bytes.
    ///
    /// If a header has a cache line for itself and the guest's memory already contains it, this
    /// does not write it. The line then stays in the cache of the CPU that reads it.
    ///
    /// Returns `None` and writes nothing if the bytes exceed `len`, or if `len` bytes do not lie in
    /// one region.
    #[inline]
    pub fn write_frame<const N: usize>(
        &self,
        (addr, len): (u64, u32),
        header: &[u8; N],
        head: &[u8],
        body: &Buffers,
    ) -> Option<usize> {
        let (ptr, _) = self.find(addr).filter(|(_, room)| u64::from(len) <= *room)?;
        let bytes = N + head.len() + body.len();
        if bytes > len as usize {
            return None;
        }
        let at = ptr.as_ptr();
        // SAFETY: `len` bytes from `at` are mapped as long as this view lives (`find`), and `bytes`
        // is no more: the pieces of a list add up to its length. `header` and `head` are ours, the
        // list pins its pieces. `copy` allows a guest to name the same page twice.
        unsafe {
            let place = at.cast::<[u8; N]>();
            if !is_alone::<N>(ptr) || place.read_unaligned() != *header {
                place.write_unaligned(*header);
            }
            std::ptr::copy_nonoverlapping(head.as_ptr(), at.add(N), head.len());
            let mut at = at.add(N + head.len());
            for v in body.iovecs() {
                std::ptr::copy(v.iov_base.cast::<u8>(), at, v.iov_len);
                at = at.add(v.iov_len);
            }
        }
        Some(bytes)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ThreadMapping;
    use crate::tests::{region, view};

    const ROOM: u32 = 4096;

    /// Creates a view of two regions, which are not adjacent in this process.
    fn guest() -> View {
        view(vec![region(0, 0, ROOM.into()), region(ROOM.into(), 1 << 30, ROOM.into())])
    }

    fn read(view: &View, addr: u64, len: u32) -> Vec<u8> {
        let mut list = Buffers::default();
        list.append(view, addr, len).unwrap();
        let mut out = vec![0; list.len()];
        list.peek(&mut out);
        out
    }

    proptest! {
        /// Bodies in any pieces arrive whole at any address.
        #[test]
        fn a_frame_is_written_as_its_parts_one_after_the_other(
            addr in 0..ROOM + 10,
            len in 0u32..1500,
            head in prop::collection::vec(any::<u8>(), 0..200),
            pieces in prop::collection::vec(1usize..300, 0..4),
        ) {
            let (guest, theirs) = (guest(), ThreadMapping::private(4096).unwrap());
            assert!(theirs.write(0, &[7; 4096]));
            let (mut body, mut at) = (Buffers::default(), 0);
            for piece in &pieces {
                assert!(body.append_mapping(&theirs, at, *piece));
                at += piece + 1;
            }
            let want = [&[1; 12], &head[..], &vec![7; body.len()]].concat();
            let border = addr < ROOM && addr + len > ROOM;
            let fits = !border && want.len() <= len as usize;
            let written = guest.write_frame((addr.into(), len), &[1; 12], &head, &body);
            prop_assert_eq!(written, fits.then_some(want.len()));
            let mut expected = vec![0; 2 * ROOM as usize];
            if fits {
                expected[addr as usize..][..want.len()].copy_from_slice(&want);
            }
            prop_assert!(read(&guest, 0, 2 * ROOM) == expected, "there and nowhere else");
            let mut into = [9; 140];
            let got = guest.read_frame::<12>((addr.into(), len), &mut into);
            let count = (len as usize).min(140);
            let there = (!border && len >= 12)
                .then(|| expected[addr as usize..][..count].split_first_chunk().unwrap());
            prop_assert_eq!(got, there);
        }
    }

    /// Writes headers before, behind and at the address where a header has a cache line for itself.
    #[test]
    fn a_header_becomes_what_it_must_be() {
        let (guest, nothing) = (guest(), Buffers::default());
        for addr in [51u64, 52, 53] {
            for header in [[1; 12], [1; 12], [2; 12], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]] {
                assert_eq!(guest.write_frame((addr, 100), &header, b"x", &nothing), Some(13));
                assert_eq!(read(&guest, addr, 13), [&header[..], b"x"].concat());
            }
        }
        let alone = |at: usize| is_alone::<12>(NonNull::new(at as *mut u8).unwrap());
        assert_eq!([51, 52, 53, 64 + 52].map(alone), [false, true, false, true]);
    }

    #[test]
    fn what_is_not_there_is_not_touched() {
        let (guest, nothing) = (guest(), Buffers::default());
        for addr in [u64::from(2 * ROOM), 1 << 40, u64::MAX] {
            assert_eq!(guest.write_frame((addr, 100), &[1; 12], &[], &nothing), None);
            assert_eq!(guest.read_frame::<12>((addr, 100), &mut [0; 128]), None);
        }
    }
}
