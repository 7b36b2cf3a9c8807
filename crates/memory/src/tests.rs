//! Tests on guest memory without a guest.

use std::sync::Arc;

use proptest::prelude::*;

use crate::{Buffers, Mapping, MemoryError, Region, RegionSpec, Table, View};

pub(crate) fn region(guest_addr: u64, user_addr: u64, len: u64) -> Region {
    let mapping = Mapping::memfd("test", len).unwrap();
    let spec = RegionSpec { guest_addr, user_addr, len, file_offset: 0 };
    Region::within(spec, Arc::new(mapping)).unwrap()
}

pub(crate) fn view(regions: Vec<Region>) -> View {
    View::new(Arc::new(Table::new(regions).unwrap()))
}

/// Returns the bytes of a list.
pub(crate) fn all(list: &Buffers) -> Vec<u8> {
    let mut out = vec![0; list.len()];
    assert_eq!(list.peek(&mut out), out.len());
    out
}

#[test]
fn overlapping_regions_are_refused() {
    let regions = vec![region(0x1000, 0, 0x2000), region(0x2000, 0x9000, 0x1000)];
    assert!(matches!(Table::new(regions), Err(MemoryError::Overlap { .. })));
    let adjacent = vec![region(0x2000, 0x9000, 0x1000), region(0x1000, 0, 0x1000)];
    assert!(Table::new(adjacent).is_ok());
}

#[test]
fn a_region_that_wraps_or_is_empty_or_longer_than_its_file_is_refused() {
    let memory = Mapping::memfd("test", 4096).unwrap();
    let fd = memory.fd().unwrap();
    let spec = RegionSpec { guest_addr: 0, user_addr: 0, len: 4096, file_offset: 0 };
    assert!(Region::map(spec, fd).is_ok());
    for (bad, name) in [
        (RegionSpec { len: 0, ..spec }, "empty"),
        (RegionSpec { guest_addr: u64::MAX - 100, ..spec }, "guest wraps"),
        (RegionSpec { user_addr: u64::MAX - 100, ..spec }, "user wraps"),
        (RegionSpec { file_offset: u64::MAX - 100, ..spec }, "file wraps"),
    ] {
        assert!(matches!(Region::map(bad, fd), Err(MemoryError::BadRange { .. })), "{name}");
    }
    let long = RegionSpec { file_offset: 1, ..spec };
    assert!(matches!(Region::map(long, fd), Err(MemoryError::Truncated { .. })));
}

#[test]
fn a_list_spans_adjacent_regions_and_stops_at_a_hole() {
    let view = view(vec![region(0, 0, 4096), region(4096, 0x10000, 4096)]);
    let mut list = Buffers::default();
    list.append(&view, 4000, 200).unwrap();
    assert_eq!((list.len(), list.iovecs().len()), (200, 2));
    let mut list = Buffers::default();
    assert!(matches!(list.append(&view, 8000, 200), Err(MemoryError::Outside { .. })));
    let mut list = Buffers::default();
    assert!(list.append(&view, u64::MAX - 8, 100).is_err());
}

#[test]
fn whatever_was_found_last_an_address_is_found_in_its_own_region() {
    let view = view(vec![region(0x1000, 0, 0x1000), region(0x8000, 0x10000, 0x1000)]);
    let room = |addr| view.find(addr).map(|(_, room)| room);
    for _ in 0..2 {
        assert_eq!(room(0x8fff), Some(1));
        assert_eq!((room(0), room(0xfff), room(0x2000)), (None, None, None));
        assert_eq!(room(0x1000), Some(0x1000));
        assert_eq!((room(0x7fff), room(0x9000), room(u64::MAX)), (None, None, None));
    }
    // A hint may name any address.
    [0, 0x1fff, 0x2000, u64::MAX].into_iter().for_each(|addr| view.fetch(addr));
}

#[test]
fn ring_addresses_translate_from_the_frontends_space() {
    let table = Table::new(vec![region(0x1000, 0x7f00_0000, 0x1000)]).unwrap();
    assert_eq!(table.user_to_guest(0x7f00_0010), Some(0x1010));
    assert_eq!(table.user_to_guest(0x7f00_1000), None);
}

#[test]
fn arrays_must_fit_and_be_aligned() {
    let view = view(vec![region(0x1000, 0, 0x1000)]);
    assert!(view.array::<u64>(0x1000, 512).is_ok());
    assert!(matches!(view.array::<u64>(0x1000, 513), Err(MemoryError::Outside { .. })));
    assert!(matches!(view.array::<u16>(0x1001, 1), Err(MemoryError::Misaligned { .. })));
}

#[test]
fn truncated_memory_reads_zeroes_and_is_marked() {
    let file = tempfile_in_memory(8192);
    let spec = RegionSpec { guest_addr: 0, user_addr: 0, len: 8192, file_offset: 0 };
    let region = Region::map(spec, std::os::fd::AsFd::as_fd(&file)).unwrap();
    let view = view(vec![region]);
    let mut list = Buffers::default();
    list.append(&view, 0, 8192).unwrap();
    assert_eq!(list.write(&[7; 8192]), 8192);
    assert!(!view.table().faulted());
    rustix::fs::ftruncate(&file, 4096).unwrap();
    let mut copy = [1; 8192];
    assert_eq!(list.peek(&mut copy), 8192);
    assert_eq!(copy[8191], 0);
    assert!(view.table().faulted());
}

#[test]
fn many_holes_in_sparse_memory_cost_one_mapping() {
    // More holes than the kernel allows mappings (vm.max_map_count is 65530).
    const LEN: u64 = 4096 * 2 * 70_000;
    let file = tempfile_in_memory(LEN);
    let spec = RegionSpec { guest_addr: 0, user_addr: 0, len: LEN, file_offset: 0 };
    let region = Region::map(spec, std::os::fd::AsFd::as_fd(&file)).unwrap();
    let view = view(vec![region]);
    rustix::fs::ftruncate(&file, 0).unwrap();
    for page in 0..70_000 {
        let mut list = Buffers::default();
        list.append(&view, page * 8192, 1).unwrap();
        assert_eq!(list.peek(&mut [1]), 1);
    }
    assert!(view.table().faulted());
}

#[test]
fn mappings_beyond_reason_are_refused() {
    let file = tempfile_in_memory(1 << 46);
    let whole = crate::Mapping::file(std::os::fd::AsFd::as_fd(&file), 1 << 46);
    assert!(matches!(whole, Err(MemoryError::BadRange { .. })));
}

fn tempfile_in_memory(len: u64) -> std::os::fd::OwnedFd {
    let fd = rustix::fs::memfd_create("truncated", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&fd, len).unwrap();
    fd
}

proptest! {
    /// Cutting a list at the front and at the end equals slicing a flat buffer.
    #[test]
    fn cutting_equals_slicing(
        pieces in prop::collection::vec((0u64..4000, 1u32..300), 1..8),
        front in 0usize..600,
        keep in 0usize..600,
    ) {
        let view = view(vec![region(0, 0, 8192)]);
        let mut whole = Buffers::default();
        whole.append(&view, 0, 8192).unwrap();
        let pattern: Vec<u8> = (0..8192u32).map(|i| (i % 251) as u8).collect();
        whole.write(&pattern);

        let mut list = Buffers::default();
        let mut flat = Vec::new();
        for (addr, len) in pieces {
            list.append(&view, addr, len).unwrap();
            flat.extend_from_slice(&pattern[addr as usize..addr as usize + len as usize]);
        }
        list.advance(front);
        flat.drain(..front.min(flat.len()));
        list.truncate(keep);
        flat.truncate(keep);
        prop_assert_eq!(list.len(), flat.len());
        let mut out = vec![0; flat.len()];
        prop_assert_eq!(list.peek(&mut out), flat.len());
        prop_assert_eq!(&out, &flat);

        let copy = Buffers::alloc(flat.len().max(1)).unwrap();
        prop_assert_eq!(copy.copy_from_buffers(&list), flat.len());
        let mut out = vec![0; flat.len()];
        copy.peek(&mut out);
        prop_assert_eq!(&out, &flat);
        let last = flat.last().copied();
        prop_assert_eq!(list.take_last_byte().is_some(), last.is_some());
        prop_assert_eq!(list.len(), flat.len().saturating_sub(1));
    }
}

#[test]
fn a_region_is_mapped_from_its_own_page_on_and_gives_its_file() {
    let whole = Mapping::memfd("test", 1 << 20).unwrap();
    let fd = whole.fd().unwrap();
    for file_offset in [0, 5000, 4096, 0x8_1234] {
        let bytes = [file_offset as u8, 2, 3];
        assert_eq!(rustix::io::pwrite(fd, &bytes, file_offset), Ok(3));
        let spec = RegionSpec { guest_addr: 0x1000, user_addr: 0, len: 0x2000, file_offset };
        let region = Region::map(spec, fd).unwrap();
        let twin = rustix::fs::fstat(region.fd().unwrap()).unwrap();
        assert_eq!(twin.st_ino, rustix::fs::fstat(fd).unwrap().st_ino);
        let view = view(vec![region]);
        let mut list = Buffers::default();
        list.append(&view, 0x1000, 3).unwrap();
        let mut found = [0; 3];
        assert_eq!(list.peek(&mut found), 3);
        assert_eq!(found, bytes, "at {file_offset:#x}");
        // Up to its last byte, and not further.
        assert!(list.append(&view, 0x2fff, 1).is_ok());
        assert!(list.append(&view, 0x2fff, 2).is_err());
    }
}

#[test]
fn cells_of_a_mapping_are_shared_between_its_mappings() {
    let first = Mapping::memfd("cells", 4096).unwrap();
    let second = Mapping::file(first.fd().unwrap(), 4096).unwrap();
    assert_eq!(first.cells().len(), 512);
    first.cells()[511].store(7, std::sync::atomic::Ordering::Release);
    assert_eq!(second.cells()[511].load(std::sync::atomic::Ordering::Acquire), 7);
}
