//! Memory tables from memory messages. Each change makes a new table. The old table lives until the
//! last request that uses it has ended.

use std::os::fd::{AsFd, OwnedFd};

use memory::{Region, RegionSpec, Table};

use crate::error::Refusal;

/// Most bytes of guest memory that one session may map: 16 TiB. A process has 128 TiB of addresses,
/// which all its disks share. A front-end with a larger file would take addresses from the others.
const MAX_MAPPED_BYTES: u64 = 16 << 40;

/// Creates a table from the regions of one `SET_MEM_TABLE`.
pub(crate) fn replaced(parts: Vec<(RegionSpec, OwnedFd)>) -> Result<Table, Refusal> {
    affordable(parts.iter().map(|(spec, _)| *spec))?;
    let regions = parts.into_iter().map(|(spec, fd)| Region::map(spec, fd.as_fd()));
    checked(regions.collect::<Result<_, _>>()?)
}

/// Returns the table with one more region.
pub(crate) fn with(table: &Table, spec: RegionSpec, fd: &OwnedFd) -> Result<Table, Refusal> {
    affordable(table.regions().iter().map(Region::spec).chain([spec]))?;
    let mut regions = table.regions().to_vec();
    regions.push(Region::map(spec, fd.as_fd())?);
    checked(regions)
}

/// Returns the table without the region of that guest address, user address and length. Ignores
/// the offset, as the specification demands.
pub(crate) fn without(table: &Table, gone: RegionSpec) -> Result<Table, Refusal> {
    let key = |spec: RegionSpec| (spec.guest_addr, spec.user_addr, spec.len);
    let mut regions = table.regions().to_vec();
    regions.retain(|region| key(region.spec()) != key(gone));
    if regions.len() == table.regions().len() {
        let RegionSpec { guest_addr, len, .. } = gone;
        return Err(Refusal::NoSuchRegion { guest_addr, len });
    }
    checked(regions)
}

/// Refuses regions whose total exceeds [`MAX_MAPPED_BYTES`], before any of them is mapped.
fn affordable(specs: impl Iterator<Item = RegionSpec>) -> Result<(), Refusal> {
    let bytes = specs.fold(0u64, |sum, spec| sum.saturating_add(spec.len));
    if bytes <= MAX_MAPPED_BYTES {
        return Ok(());
    }
    let accepted = "at most 16 TiB are mapped for one front-end";
    Err(Refusal::Field { field: "guest memory in bytes", value: bytes, accepted })
}

/// Refuses regions that overlap in user addresses: ring addresses are user addresses and must be
/// unambiguous.
fn checked(regions: Vec<Region>) -> Result<Table, Refusal> {
    let mut users: Vec<_> = regions.iter().map(|r| (r.spec().user_addr, r.spec().len)).collect();
    users.sort_unstable();
    for pair in users.windows(2) {
        if let [(first, len), (second, _)] = *pair {
            // Mapping a region checked that its end does not wrap.
            if first.saturating_add(len) > second {
                return Err(Refusal::UserOverlap { first, second });
            }
        }
    }
    Ok(Table::new(regions)?)
}

#[cfg(test)]
mod tests {
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    use super::*;

    const TIB: u64 = 1 << 40;

    /// Creates a region of a sparse file. The tests never touch its memory.
    fn part(guest_addr: u64, len: u64) -> (RegionSpec, OwnedFd) {
        let fd = memfd_create("addresses", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&fd, len).unwrap();
        (RegionSpec { guest_addr, user_addr: guest_addr, len, file_offset: 0 }, fd)
    }

    fn too_much<T: std::fmt::Debug>(result: Result<T, Refusal>, bytes: u64) {
        let refused = result.unwrap_err();
        assert!(matches!(refused, Refusal::Field { value, .. } if value == bytes), "{refused}");
    }

    #[test]
    fn a_session_maps_so_much_and_no_more() {
        let table = replaced(vec![part(0, 8 * TIB), part(32 * TIB, 8 * TIB)]).unwrap();
        assert_eq!(table.regions().len(), 2);
        let (spec, fd) = part(64 * TIB, 4096);
        too_much(with(&table, spec, &fd), 16 * TIB + 4096);
        too_much(replaced(vec![part(0, 16 * TIB), part(32 * TIB, 4096)]), 16 * TIB + 4096);
        // Bytes before a region in its file are not mapped and do not count.
        let (_, file) = part(0, 7 * TIB);
        let pieces = (0..400).map(|at| {
            let file_offset = 6 * TIB + at * 4096;
            let guest_addr = 64 * TIB + at * 4096;
            let spec = RegionSpec { guest_addr, user_addr: guest_addr, len: 4096, file_offset };
            (spec, file.try_clone().unwrap())
        });
        assert_eq!(replaced(pieces.collect()).unwrap().regions().len(), 400);
        // After a removal there is space, and the table accepts the same region.
        let smaller = without(&table, part(0, 8 * TIB).0).unwrap();
        assert_eq!(with(&smaller, spec, &fd).unwrap().regions().len(), 2);
    }
}
