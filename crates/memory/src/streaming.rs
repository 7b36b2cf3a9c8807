//! Copies past the cache, into memory that nobody reads next.
//!
//! An ordinary store first reads the line into the cache and evicts another. For bytes of a disk
//! this is in vain: a guest seldom reads back what it has just written. A long copy therefore uses
//! non-temporal stores, which send whole lines to memory. A copy into guest memory never does,
//! because the guest reads these bytes next.

use std::ptr::copy_nonoverlapping;

use crate::{Buffers, Mapping};

/// Bytes of a list from which a copy passes the cache.
///
/// Such a copy is already faster at 4 KiB. But a guest that reads the bytes back at once waits for
/// memory, and up to 8 KiB that costs more than the copy gains. From 16 KiB the copy gains more, and
/// also more than a guest loses that writes the same bytes again while they are in the cache.
const STREAMED_BYTES: usize = 16 << 10;

/// Bytes of a piece from which it is streamed.
///
/// A piece that begins or ends within a line fills that line by ordinary stores. If most lines are
/// such, streaming the others makes the copy slower.
const STREAMED_PIECE_BYTES: usize = 512;

impl Buffers {
    /// Copies the whole list into `mapping` at byte `offset`, like [`Buffers::copy_to`]. If the list
    /// is long, the copy passes the cache. Returns false if it does not fit.
    pub fn stream_to(&self, mapping: &Mapping, offset: usize) -> bool {
        if self.len() < STREAMED_BYTES {
            return self.copy_to(mapping, offset);
        }
        let Some(mut at) = mapping.at(offset, self.len()) else { return false };
        for v in self.iovecs() {
            let source = v.iov_base.cast::<u8>();
            // SAFETY: as in `copy_to`. The pieces of the target do not overlap, and `finish` follows
            // before anything else accesses them.
            unsafe {
                if v.iov_len < STREAMED_PIECE_BYTES {
                    copy_nonoverlapping(source, at.as_ptr(), v.iov_len);
                } else {
                    stream(source, at.as_ptr(), v.iov_len);
                }
                at = at.add(v.iov_len);
            }
        }
        finish();
        true
    }
}

/// Copies `len` bytes, whole cache lines of the target past the cache.
///
/// # Safety
/// Both ranges are mapped and do not overlap. The caller calls [`finish`] before this thread
/// accesses the target again or tells another thread about it.
#[cfg(target_arch = "x86_64")]
unsafe fn stream(mut source: *const u8, mut target: *mut u8, len: usize) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_stream_si128};

    use crate::LINE_BYTES;

    let head = target.align_offset(LINE_BYTES).min(len);
    let (lines, tail) = ((len - head) / LINE_BYTES, (len - head) % LINE_BYTES);
    // SAFETY: `head`, `lines` and `tail` add up to `len`, so all accesses are inside both ranges.
    // The target is aligned after the head, and loads need no alignment. Every x86-64 has SSE2.
    unsafe {
        copy_nonoverlapping(source, target, head);
        (source, target) = (source.add(head), target.add(head));
        for _ in 0..lines {
            let (from, to) = (source.cast::<__m128i>(), target.cast::<__m128i>());
            // The stores of a line follow each other, so that the line leaves as a whole.
            let (first, second) = (_mm_loadu_si128(from), _mm_loadu_si128(from.add(1)));
            let (third, fourth) = (_mm_loadu_si128(from.add(2)), _mm_loadu_si128(from.add(3)));
            _mm_stream_si128(to, first);
            _mm_stream_si128(to.add(1), second);
            _mm_stream_si128(to.add(2), third);
            _mm_stream_si128(to.add(3), fourth);
            (source, target) = (source.add(LINE_BYTES), target.add(LINE_BYTES));
        }
        copy_nonoverlapping(source, target, tail);
    }
}

/// Orders the stores of [`stream`] before all that follow, such as those that publish a completion.
#[cfg(target_arch = "x86_64")]
fn finish() {
    // SAFETY: every x86-64 has SSE.
    unsafe { std::arch::x86_64::_mm_sfence() };
}

/// Copies `len` bytes.
///
/// # Safety
/// Both ranges are mapped and do not overlap.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn stream(source: *const u8, target: *mut u8, len: usize) {
    // SAFETY: the caller's promise.
    unsafe { copy_nonoverlapping(source, target, len) };
}

#[cfg(not(target_arch = "x86_64"))]
fn finish() {}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::ThreadMapping;
    use crate::tests::view;

    /// Bytes of the areas in which short copies are tried.
    const AREA: usize = 512;
    /// Content of the target before a copy.
    const UNTOUCHED: u8 = 0xee;

    fn pattern(len: usize) -> Vec<u8> {
        (0..len).map(|at| (at % 229) as u8).collect()
    }

    /// Returns a mapping of 2 * STREAMED_BYTES that holds `byte`.
    fn target(byte: u8) -> Mapping {
        let mapping = Mapping::memfd("stream", 2 * STREAMED_BYTES as u64).unwrap();
        let whole = vec![byte; mapping.len()];
        assert_eq!(rustix::io::pwrite(mapping.fd().unwrap(), &whole, 0), Ok(whole.len()));
        mapping
    }

    fn content(mapping: &Mapping) -> Vec<u8> {
        let mut bytes = vec![0; mapping.len()];
        assert_eq!(rustix::io::pread(mapping.fd().unwrap(), &mut bytes, 0), Ok(mapping.len()));
        bytes
    }

    #[repr(align(64))]
    struct Area([u8; AREA]);

    #[test]
    fn every_alignment_and_length_gives_the_bytes_and_touches_no_others() {
        let source = Area(std::array::from_fn(|at| (at % 229) as u8));
        let check = |from: usize, to: usize, len: usize| {
            let mut target = Area([UNTOUCHED; AREA]);
            let mut expected = target.0;
            expected[to..to + len].copy_from_slice(&source.0[from..from + len]);
            // SAFETY: both areas have AREA bytes, which the offsets and the length never exceed.
            unsafe { stream(source.0.as_ptr().add(from), target.0.as_mut_ptr().add(to), len) };
            finish();
            assert!(target.0 == expected, "{len} bytes from {from} to {to}");
        };
        for from in 0..64 {
            for to in 0..64 {
                for len in [0, 1, 15, 16, 63, 64, 65, 127, 128, 200, 300] {
                    check(from, to, len);
                }
            }
            (0..=320).for_each(|len| check(from, (from * 11 + len) % 64, len));
            (0..=320).for_each(|len| check((from * 11 + len) % 64, from, len));
        }
    }

    #[test]
    fn lists_around_the_threshold_arrive_whole_wherever_they_begin() {
        let source = ThreadMapping::private(4 * STREAMED_BYTES).unwrap();
        assert!(source.write(0, &pattern(4 * STREAMED_BYTES)));
        for (round, delta) in [-65, -64, -1, 0, 1, 17, 63, 64, 65, 4095].into_iter().enumerate() {
            let len = STREAMED_BYTES.strict_add_signed(delta);
            let offset = round * 131;
            let mut list = Buffers::default();
            let mut left = len;
            // Pieces of all sizes, with gaps between them.
            for piece in [1, 0, 100, 4096, 64, 63, 511, 8192].into_iter().cycle() {
                let (piece, at) = (left.min(piece), 2 * (len - left) + round);
                assert!(list.append_mapping(&source, at, piece));
                left -= piece;
                if left == 0 {
                    break;
                }
            }
            let mapping = target(UNTOUCHED);
            assert!(list.stream_to(&mapping, offset));
            let mut expected = vec![UNTOUCHED; mapping.len()];
            assert_eq!(list.peek(&mut expected[offset..offset + len]), len);
            assert!(content(&mapping) == expected, "{len} bytes at {offset}");
            assert!(!list.stream_to(&mapping, mapping.len() - len + 1), "it would not fit");
            assert!(content(&mapping) == expected, "a list that does not fit changes nothing");
        }
    }

    /// Returns a view of guest memory of 2 * STREAMED_BYTES full of 7, and the whole of it.
    fn guest(file: &impl AsFd) -> (crate::View, Buffers) {
        let len = 2 * STREAMED_BYTES as u32;
        let spec =
            crate::RegionSpec { guest_addr: 0, user_addr: 0, len: len.into(), file_offset: 0 };
        let view = view(vec![crate::Region::map(spec, file.as_fd()).unwrap()]);
        let mut list = Buffers::default();
        list.append(&view, 0, len).unwrap();
        assert_eq!(list.write(&vec![7; len as usize]), len as usize);
        (view, list)
    }

    #[test]
    fn a_hole_in_guest_memory_is_copied_as_zeroes_and_marks_its_table() {
        let memory = target(0);
        let (view, list) = guest(&memory.fd().unwrap());
        rustix::fs::ftruncate(memory.fd().unwrap(), STREAMED_BYTES as u64).unwrap();
        let disk = target(UNTOUCHED);
        assert!(!view.table().faulted() && list.stream_to(&disk, 0));
        assert!(view.table().faulted() && !disk.faulted());
        // The mapping is replaced as a whole, by zeroes.
        assert!(content(&disk)[STREAMED_BYTES..] == [0; STREAMED_BYTES]);
    }

    #[test]
    fn a_hole_in_the_target_marks_the_target() {
        let memory = target(0);
        let (view, list) = guest(&memory.fd().unwrap());
        let disk = target(UNTOUCHED);
        rustix::fs::ftruncate(disk.fd().unwrap(), STREAMED_BYTES as u64).unwrap();
        assert!(list.stream_to(&disk, 0));
        assert!(disk.faulted() && !view.table().faulted());
    }
}
