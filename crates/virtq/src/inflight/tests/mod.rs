//! Regions: creation, adoption and refusal.

mod crash;
mod hostile;

use std::os::fd::{AsFd, OwnedFd};

use memory::{Buffers, Mapping, Region, RegionSpec, Table, View};

use super::{InflightError, InflightRegion};

/// Returns the descriptor that a front-end stores.
fn kept(region: &InflightRegion) -> OwnedFd {
    region.fd().unwrap().try_clone_to_owned().unwrap()
}

fn adopt(fd: &OwnedFd, queues: u16, size: u16) -> Result<InflightRegion, InflightError> {
    InflightRegion::adopt(
        fd.as_fd(),
        InflightRegion::create(queues, size)?.mmap_size(),
        0,
        queues,
        size,
    )
}

/// Writes into a file as its other owner does.
fn scribble(fd: &OwnedFd, at: u64, bytes: &[u8]) {
    let spec =
        RegionSpec { guest_addr: 0, user_addr: 0, len: at + bytes.len() as u64, file_offset: 0 };
    let table = Table::new(vec![Region::map(spec, fd.as_fd()).unwrap()]).unwrap();
    let view = View::new(std::sync::Arc::new(table));
    let mut list = Buffers::default();
    list.append(&view, at, bytes.len() as u32).unwrap();
    list.write(bytes);
}

#[test]
fn a_region_outlives_its_maker() {
    let region = InflightRegion::create(4, 128).unwrap();
    assert_eq!((region.queues(), region.size(), region.mmap_offset()), (4, 128, 0));
    assert_eq!(region.mmap_size(), 64 + 4 * (64 + 128 * 16));
    assert!(region.queue(3).is_some() && region.queue(4).is_none());
    let fd = kept(&region);
    drop(region);
    let again = adopt(&fd, 4, 128).unwrap();
    assert_eq!(again.queue(3).unwrap().size(), 128);
    assert!(again.fd().is_some());
}

#[test]
fn nobody_resizes_a_region_of_ours() {
    let fd = kept(&InflightRegion::create(1, 8).unwrap());
    for len in [0, 64, 1 << 20] {
        let grown = std::fs::File::from(fd.try_clone().unwrap()).set_len(len);
        assert!(grown.is_err(), "sealed");
    }
}

#[test]
fn odd_shapes_are_refused() {
    for (queues, size) in [(0, 1), (1, 0), (257, 1), (1, 32769), (u16::MAX, u16::MAX)] {
        let refused = InflightRegion::create(queues, size).unwrap_err();
        assert!(matches!(refused, InflightError::Bounds { .. }), "{refused}");
    }
    assert!(InflightRegion::create(256, 32768).is_ok());
    // Sizes need not be powers of two: a front-end requests the size of its largest ring.
    assert!(InflightRegion::create(3, 100).is_ok());
}

#[test]
fn a_region_of_zeroes_is_fresh() {
    let zeroes = Mapping::memfd("zeroes", 64 + 2 * (64 + 128)).unwrap();
    let fd = zeroes.fd().unwrap().try_clone_to_owned().unwrap();
    assert!(adopt(&fd, 2, 8).is_ok());
    // Adoption has formatted the region with that shape.
    assert!(matches!(adopt(&fd, 1, 8), Err(InflightError::Shape { .. })));
    // A zero magic number makes a region fresh only if the rest is zero too.
    let noise = Mapping::memfd("noise", 64 + 2 * (64 + 128)).unwrap();
    let fd = noise.fd().unwrap().try_clone_to_owned().unwrap();
    scribble(&fd, 64 + 2 * (64 + 128) - 1, &[1]);
    assert!(matches!(adopt(&fd, 2, 8), Err(InflightError::Foreign)));
}

#[test]
fn what_a_front_end_says_of_a_region_is_checked() {
    let fd = kept(&InflightRegion::create(2, 8).unwrap());
    let with = |bytes, offset, queues, size| {
        InflightRegion::adopt(fd.as_fd(), bytes, offset, queues, size).map(drop)
    };
    let need = 64 + 2 * (64 + 128);
    assert!(with(need, 0, 2, 8).is_ok());
    for (bytes, offset) in
        [(need - 1, 0), (0, 0), (need, 1), (u64::MAX, 64), (need, 1 << 30), (u64::MAX, u64::MAX)]
    {
        let refused = with(bytes, offset, 2, 8).unwrap_err();
        assert!(matches!(refused, InflightError::Window { .. }), "{bytes} {offset}: {refused}");
    }
    for (queues, size) in [(1, 8), (2, 4)] {
        assert!(matches!(with(need, 0, queues, size), Err(InflightError::Shape { .. })));
    }
    // These are more bytes than the file has.
    for (bytes, offset) in [(need + 1, 0), (need, 64), (1 << 29, 0)] {
        assert!(matches!(with(bytes, offset, 2, 8), Err(InflightError::Memory(_))));
    }
}

#[test]
fn foreign_and_future_regions_are_refused() {
    let fd = kept(&InflightRegion::create(2, 8).unwrap());
    scribble(&fd, 8, &2u32.to_ne_bytes());
    assert!(matches!(adopt(&fd, 2, 8), Err(InflightError::Version { found: 2, known: 1 })));
    scribble(&fd, 0, b"GARBAGE!");
    assert!(matches!(adopt(&fd, 2, 8), Err(InflightError::Foreign)));
    let directory = OwnedFd::from(std::fs::File::open("/").unwrap());
    assert!(matches!(adopt(&directory, 2, 8), Err(InflightError::Memory(_))));
}
