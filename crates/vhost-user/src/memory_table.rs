//! Memory tables from memory messages. Each change makes a new table. The old table lives until the
//! last request that uses it has ended.

use std::os::fd::{AsFd, OwnedFd};

use memory::{MemoryAmount, MemoryShare, Region, RegionSpec, Table};

use crate::error::Refusal;

/// Most bytes of guest memory that one session may map: 16 TiB. A process has 128 TiB of addresses,
/// which all its disks share. A front-end with a larger file would take addresses from the others.
const MAX_MAPPED_BYTES: u64 = 16 << 40;

/// Creates a table from the regions of one `SET_MEM_TABLE`, within a share of the process's memory.
pub(crate) fn replaced(
    parts: &[(RegionSpec, OwnedFd)],
    share: Option<&MemoryShare>,
) -> Result<Table, Refusal> {
    affordable(parts.iter().map(|(spec, _)| *spec))?;
    checked(mapped(parts, MemoryAmount::default(), share)?)
}

/// Returns the table with one more region, within a share of the process's memory.
pub(crate) fn with(
    table: &Table,
    spec: RegionSpec,
    fd: OwnedFd,
    share: Option<&MemoryShare>,
) -> Result<Table, Refusal> {
    affordable(table.regions().iter().map(Region::spec).chain([spec]))?;
    let mut regions = table.regions().to_vec();
    regions.extend(mapped(&[(spec, fd)], table.amount(), share)?);
    checked(regions)
}

/// Returns the table of a session that another process has served. That process has admitted it.
pub(crate) fn charged(table: &Table, share: &MemoryShare) -> Result<Table, Refusal> {
    let amounts: Vec<_> = table.regions().iter().map(Region::taken).collect();
    let charges = share.take_over(table.amount(), &amounts);
    let regions = table.regions().iter().cloned().zip(charges);
    checked(regions.map(|(region, charge)| region.charged(charge)).collect())
}

/// Maps regions beside those that take `others` of the share.
fn mapped(
    parts: &[(RegionSpec, OwnedFd)],
    others: MemoryAmount,
    share: Option<&MemoryShare>,
) -> Result<Vec<Region>, Refusal> {
    let Some(share) = share else {
        let regions = parts.iter().map(|(spec, fd)| Region::map(*spec, fd.as_fd()));
        return Ok(regions.collect::<Result<_, _>>()?);
    };
    let amounts = parts.iter().map(|(spec, fd)| Region::amount(*spec, fd.as_fd()));
    let amounts = amounts.collect::<Result<Vec<_>, _>>()?;
    let charges = share.take(amounts.iter().copied().fold(others, MemoryAmount::plus), &amounts)?;
    let regions = parts.iter().zip(charges);
    let region = |((spec, fd), charge): (&(RegionSpec, OwnedFd), _)| {
        Ok(Region::map(*spec, fd.as_fd())?.charged(charge))
    };
    regions.map(region).collect()
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
        let table = replaced(&[part(0, 8 * TIB), part(32 * TIB, 8 * TIB)], None).unwrap();
        assert_eq!(table.regions().len(), 2);
        let (spec, fd) = part(64 * TIB, 4096);
        too_much(with(&table, spec, fd.try_clone().unwrap(), None), 16 * TIB + 4096);
        too_much(replaced(&[part(0, 16 * TIB), part(32 * TIB, 4096)], None), 16 * TIB + 4096);
        // Bytes before a region in its file are not mapped and do not count.
        let (_, file) = part(0, 7 * TIB);
        let pieces: Vec<_> = (0..400)
            .map(|at| {
                let file_offset = 6 * TIB + at * 4096;
                let guest_addr = 64 * TIB + at * 4096;
                let spec = RegionSpec { guest_addr, user_addr: guest_addr, len: 4096, file_offset };
                (spec, file.try_clone().unwrap())
            })
            .collect();
        assert_eq!(replaced(&pieces, None).unwrap().regions().len(), 400);
        // After a removal there is space, and the table accepts the same region.
        let smaller = without(&table, part(0, 8 * TIB).0).unwrap();
        assert_eq!(with(&smaller, spec, fd, None).unwrap().regions().len(), 2);
    }
}
