//! Memory tables: checked, immutable sets of regions.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use crate::{Mapping, MemoryAmount, MemoryCharge, MemoryError};

/// Most regions of one table: vhost-user front-ends send no more (QEMU: 509 memory slots).
pub const MAX_REGIONS: usize = 509;

/// A piece of guest memory as a front-end describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionSpec {
    /// First guest physical address.
    pub guest_addr: u64,
    /// Address of the same byte in the front-end's address space, which ring addresses use.
    pub user_addr: u64,
    /// Length in bytes.
    pub len: u64,
    /// Offset of the first byte in the file.
    pub file_offset: u64,
}

/// A mapped piece of guest memory.
#[derive(Clone, Debug)]
pub struct Region {
    spec: RegionSpec,
    mapping: Arc<Mapping>,
    base: NonNull<u8>,
    /// Descriptor of the file, stored to pass the region to another process.
    file: Option<Arc<OwnedFd>>,
    /// Charge for the mapping and the descriptor, if a budget bounds them.
    charge: Option<Arc<MemoryCharge>>,
}

// SAFETY: `base` points into `mapping`, which is Send and Sync and kept alive by the Arc.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// Maps the file behind a region. Maps only the pages that contain the region, so a piece of a
    /// large file takes no more addresses than it has bytes.
    ///
    /// # Errors
    /// The range is empty or wraps, the file is too short, or a system call failed.
    pub fn map(spec: RegionSpec, fd: BorrowedFd<'_>) -> Result<Self, MemoryError> {
        let bad = |start| MemoryError::BadRange { start, len: spec.len };
        let fits = |start: u64| start.checked_add(spec.len).ok_or(bad(start));
        fits(spec.guest_addr)?;
        fits(spec.user_addr)?;
        fits(spec.file_offset)?;
        if spec.len == 0 {
            return Err(bad(spec.guest_addr));
        }
        let (mapping, skip) = Mapping::window(fd, spec.file_offset, spec.len)?;
        let file = fd.try_clone_to_owned().map_err(|error| MemoryError::Os {
            action: "keep the descriptor of",
            source: rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::MFILE),
        })?;
        Self::at(spec, Arc::new(mapping), skip, Some(Arc::new(file)))
    }

    /// Returns what the region will take of a budget when it is mapped.
    ///
    /// # Errors
    /// The kernel cannot inspect the file.
    pub fn amount(spec: RegionSpec, fd: BorrowedFd<'_>) -> Result<MemoryAmount, MemoryError> {
        Ok(MemoryAmount::region(crate::map::addresses(fd, spec.len)?))
    }

    /// Returns what the region takes of a budget.
    pub fn taken(&self) -> MemoryAmount {
        let charged = self.charge.as_ref().map(|charge| charge.amount());
        charged.unwrap_or(MemoryAmount::region(self.spec.len))
    }

    /// Creates a region in memory that is mapped already.
    ///
    /// # Errors
    /// [`MemoryError::BadRange`] if the mapping does not contain it.
    pub fn within(spec: RegionSpec, mapping: Arc<Mapping>) -> Result<Self, MemoryError> {
        let skip = usize::try_from(spec.file_offset);
        let skip =
            skip.map_err(|_| MemoryError::BadRange { start: spec.file_offset, len: spec.len })?;
        Self::at(spec, mapping, skip, None)
    }

    /// Creates a region that begins at byte `skip` of a mapping.
    fn at(
        spec: RegionSpec,
        mapping: Arc<Mapping>,
        skip: usize,
        file: Option<Arc<OwnedFd>>,
    ) -> Result<Self, MemoryError> {
        let base = usize::try_from(spec.len).ok().and_then(|len| mapping.at(skip, len));
        let base = base.ok_or(MemoryError::BadRange { start: spec.file_offset, len: spec.len })?;
        Ok(Self { spec, mapping, base, file, charge: None })
    }

    /// Returns the file behind the region. `None`: the memory did not come as a file, or this
    /// process allocated it without one.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().map(AsFd::as_fd).or_else(|| self.mapping.fd())
    }

    /// Checks that another process could map the region now, as this one did.
    ///
    /// # Errors
    /// As [`Region::map`]. The file's owner may have truncated or sealed it since then
    /// ([`MemoryError::is_owner_fault`]).
    pub fn check_mappable(&self) -> Result<(), MemoryError> {
        let RegionSpec { file_offset, len, .. } = self.spec;
        let Some(fd) = self.fd() else { return Ok(()) };
        Mapping::window(fd, file_offset, len).map(drop)
    }

    /// Returns the front-end's description of the region.
    pub fn spec(&self) -> RegionSpec {
        self.spec
    }

    /// Returns the region with a charge that lives as long as its mapping is used.
    #[must_use]
    pub fn charged(self, charge: MemoryCharge) -> Self {
        Self { charge: Some(Arc::new(charge)), ..self }
    }

    fn span(&self) -> Span {
        Span { start: self.spec.guest_addr, len: self.spec.len, base: self.base }
    }
}

/// Location of a region's bytes. Valid as long as the table of that region lives.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    start: u64,
    len: u64,
    /// Pointer that is followed by `len` mapped bytes.
    base: NonNull<u8>,
}

impl Span {
    /// A span without bytes.
    pub(crate) const EMPTY: Self = Self { start: 0, len: 0, base: NonNull::dangling() };

    /// Returns the host address of guest byte `addr`, and the bytes from there to the region's end.
    #[inline]
    pub(crate) fn find(&self, addr: u64) -> Option<(NonNull<u8>, u64)> {
        // An address before the start wraps around to more than any length.
        let offset = addr.wrapping_sub(self.start);
        if offset >= self.len {
            return None;
        }
        // SAFETY: offset < len, and `base` is followed by `len` mapped bytes.
        let ptr = unsafe { self.base.add(offset as usize) };
        Some((ptr, self.len - offset))
    }
}

/// All memory of one guest at one time.
#[derive(Debug, Default)]
pub struct Table {
    regions: Box<[Region]>,
}

impl Table {
    /// Creates a table and checks that the regions do not overlap.
    ///
    /// # Errors
    /// [`MemoryError::TooMany`], [`MemoryError::Overlap`].
    pub fn new(mut regions: Vec<Region>) -> Result<Self, MemoryError> {
        if regions.len() > MAX_REGIONS {
            return Err(MemoryError::TooMany { count: regions.len() });
        }
        regions.sort_by_key(|region| region.spec.guest_addr);
        for pair in regions.windows(2) {
            if let [a, b] = pair {
                // Region::map checked that the end does not wrap.
                if a.spec.guest_addr.saturating_add(a.spec.len) > b.spec.guest_addr {
                    let (first, second) = (a.spec.guest_addr, b.spec.guest_addr);
                    return Err(MemoryError::Overlap { first, second });
                }
            }
        }
        Ok(Self { regions: regions.into() })
    }

    /// Returns what its regions take of a budget.
    pub fn amount(&self) -> MemoryAmount {
        let regions = self.regions.iter().map(Region::taken);
        regions.fold(MemoryAmount::default(), MemoryAmount::plus)
    }

    /// Returns the regions, sorted by guest address.
    pub fn regions(&self) -> &[Region] {
        &self.regions
    }

    /// Returns the guest address of byte `user` of the front-end's address space.
    pub fn user_to_guest(&self, user: u64) -> Option<u64> {
        self.regions.iter().find_map(|region| {
            let offset = user.checked_sub(region.spec.user_addr)?;
            (offset < region.spec.len).then(|| region.spec.guest_addr + offset)
        })
    }

    /// Returns whether a front-end truncated some memory. Bytes read from it are no longer the
    /// guest's.
    pub fn faulted(&self) -> bool {
        self.regions.iter().any(|region| region.mapping.faulted())
    }

    /// Returns the only region that may contain `addr`.
    pub(crate) fn span_of(&self, addr: u64) -> Option<Span> {
        let after = self.regions.partition_point(|region| region.spec.guest_addr <= addr);
        Some(self.regions.get(after.checked_sub(1)?)?.span())
    }
}
