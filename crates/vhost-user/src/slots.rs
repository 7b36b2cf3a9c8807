//! Memory tables from memory messages. Each change makes a new table; the old one lives until
//! the last request that uses it has ended.

use std::os::fd::{AsFd, OwnedFd};

use memory::{Region, RegionSpec, Table};

use crate::error::Refusal;

/// A table of the regions of one `SET_MEM_TABLE`.
pub(crate) fn replaced(parts: Vec<(RegionSpec, OwnedFd)>) -> Result<Table, Refusal> {
    let regions = parts.into_iter().map(|(spec, fd)| Region::map(spec, fd.as_fd()));
    checked(regions.collect::<Result<_, _>>()?)
}

/// The table with one more region.
pub(crate) fn with(table: &Table, spec: RegionSpec, fd: &OwnedFd) -> Result<Table, Refusal> {
    let mut regions = table.regions().to_vec();
    regions.push(Region::map(spec, fd.as_fd())?);
    checked(regions)
}

/// The table without the region of that guest address, user address and length. Its offset is
/// ignored, as the specification demands.
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

/// Ring addresses are given in user addresses, so those may not be ambiguous either.
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
