//! A frame behind a header, all in one piece of guest memory.

use crate::{Buffers, View};

impl View {
    /// Copies a fixed header from `addr` on, and then as much as `prefix` has room for of what follows it,
    /// up to `len` bytes in all. Each byte is read once. `None`: those do not lie in one region, or are
    /// fewer than the header.
    #[inline]
    pub fn read_frame<'a, const N: usize>(
        &self,
        (addr, len): (u64, u32),
        prefix: &'a mut [u8],
    ) -> Option<([u8; N], &'a [u8])> {
        let (ptr, _) = self.find(addr).filter(|(_, room)| u64::from(len) <= *room)?;
        let count = (len as usize).checked_sub(N)?.min(prefix.len());
        let prefix = prefix.get_mut(..count)?;
        let at = ptr.as_ptr();
        // SAFETY: `len` bytes from `at` on are mapped as long as this view lives (`find`), and N + count
        // are no more; `prefix` is ours.
        let header = unsafe {
            std::ptr::copy_nonoverlapping(at.add(N), prefix.as_mut_ptr(), count);
            at.cast::<[u8; N]>().read_unaligned()
        };
        Some((header, prefix))
    }

    /// Copies `header`, `head` and `body`, one behind the other, to `addr`; returns how many bytes those
    /// are. `None`, and nothing is written: there are not so many within the `len` bytes there, or
    /// those do not lie in one region.
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
        // SAFETY: `len` bytes from `at` on are mapped as long as this view lives (`find`), and `bytes` are no
        // more: the pieces of a list have as many as it tells. `header` and `head` are ours, the list
        // pins its pieces. `copy` allows a guest to name the same page twice.
        unsafe {
            at.cast::<[u8; N]>().write_unaligned(*header);
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
    use crate::Area;
    use crate::tests::{region, view};

    const ROOM: u32 = 4096;

    /// A view of two regions, the second elsewhere in our memory.
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
        /// However the body is cut, and wherever it goes.
        #[test]
        fn a_frame_is_written_as_its_parts_one_after_the_other(
            addr in 0..ROOM + 10,
            len in 0u32..1500,
            head in prop::collection::vec(any::<u8>(), 0..200),
            pieces in prop::collection::vec(1usize..300, 0..4),
        ) {
            let (guest, theirs) = (guest(), Area::private(4096).unwrap());
            assert!(theirs.write(0, &[7; 4096]));
            let (mut body, mut at) = (Buffers::default(), 0);
            for piece in &pieces {
                assert!(body.append_area(&theirs, at, *piece));
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
            let mut prefix = [9; 128];
            let got = guest.read_frame::<12>((addr.into(), len), &mut prefix);
            let count = (len as usize).saturating_sub(12).min(128);
            let there = (!border && len >= 12).then(|| {
                let all = &expected[addr as usize..];
                (*all.first_chunk().unwrap(), &all[12..12 + count])
            });
            prop_assert_eq!(got, there);
        }
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
