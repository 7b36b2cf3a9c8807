//! Memory of the host, and reservations of guests.
//!
//! A guest takes its memory page by page while it runs, so the memory available now says little
//! about later. Two limits apply. All guests together must fit into the host. A new guest must fit
//! into the available memory, without the share of guests that are still starting.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use model::id::VmId;

/// Memory reserved for the host itself, in bytes.
pub const HOST_RESERVE_BYTES: u64 = 256 << 20;

/// Memory of a host, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostBytes {
    /// Total memory.
    pub total: u64,
    /// Memory available without swapping.
    pub available: u64,
}

/// Source of the host's memory size.
pub trait HostMemory: fmt::Debug + Send + Sync {
    /// Reads the present values.
    fn read(&self) -> HostBytes;
}

/// The kernel's values in `/proc/meminfo`.
#[derive(Clone, Copy, Debug)]
pub struct Meminfo;

impl HostMemory for Meminfo {
    fn read(&self) -> HostBytes {
        parse(&std::fs::read_to_string("/proc/meminfo").unwrap_or_default())
    }
}

/// Parses the values. An unreadable value sets no limit: the kernel then refuses by itself.
fn parse(meminfo: &str) -> HostBytes {
    let of = |name: &str| {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name));
        let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
        kib.map_or(u64::MAX, |kib| kib.saturating_mul(1024))
    };
    HostBytes { total: of("MemTotal:"), available: of("MemAvailable:") }
}

/// Memory reserved for machines.
#[derive(Debug, Default)]
pub(super) struct MemoryReservations(Mutex<HashMap<VmId, Reservation>>);

#[derive(Clone, Copy, Debug)]
struct Reservation {
    bytes: u64,
    /// True if the machine's domain exists.
    made: bool,
}

/// Error: the memory does not fit. Values in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MemoryShortfall {
    pub(super) needed: u64,
    pub(super) available: u64,
}

impl MemoryReservations {
    /// Reserves memory for a machine, in place of its earlier reservation.
    pub(super) fn take(
        &self,
        host: HostBytes,
        vm: VmId,
        needed: u64,
    ) -> Result<(), MemoryShortfall> {
        let mut all = self.lock();
        let others = all.iter().filter(|(of, _)| **of != vm).map(|(_, reservation)| reservation);
        let (mut promised, mut coming) = (HOST_RESERVE_BYTES, HOST_RESERVE_BYTES);
        for reservation in others {
            promised = promised.saturating_add(reservation.bytes);
            coming = coming.saturating_add(if reservation.made { 0 } else { reservation.bytes });
        }
        let fits = host.total.saturating_sub(promised);
        let available = fits.min(host.available.saturating_sub(coming));
        if needed > available {
            return Err(MemoryShortfall { needed, available });
        }
        all.insert(vm, Reservation { bytes: needed, made: false });
        Ok(())
    }

    /// Marks a machine's domain as existing: the host's available memory now includes its use.
    pub(super) fn made(&self, vm: VmId) {
        if let Some(reservation) = self.lock().get_mut(&vm) {
            reservation.made = true;
        }
    }

    /// Reserves the memory of a discovered domain.
    pub(super) fn found(&self, vm: VmId, bytes: u64) {
        self.lock().insert(vm, Reservation { bytes, made: true });
    }

    /// Removes the reservation of a machine without a domain.
    pub(super) fn release(&self, vm: VmId) {
        self.lock().remove(&vm);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<VmId, Reservation>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use model::id::Uuid;

    use super::*;

    const GIB: u64 = 1 << 30;

    fn vm(n: u8) -> VmId {
        VmId(Uuid::from_random([n; 16]))
    }

    #[test]
    fn the_kernels_account_is_read() {
        let text = "MemTotal:       16000000 kB\nMemFree: 1 kB\nMemAvailable:    8000000 kB\n";
        let expected = HostBytes { total: 16_000_000 * 1024, available: 8_000_000 * 1024 };
        assert_eq!(parse(text), expected);
        assert_eq!(parse("nonsense"), HostBytes { total: u64::MAX, available: u64::MAX });
        assert_eq!(parse("MemTotal: x kB"), HostBytes { total: u64::MAX, available: u64::MAX });
        assert!(Meminfo.read().total >= Meminfo.read().available);
    }

    #[test]
    fn starts_at_once_do_not_all_pass() {
        let (memory_reservations, host) =
            (MemoryReservations::default(), HostBytes { total: 64 * GIB, available: 13 * GIB });
        let fits = (0..20).filter(|n| memory_reservations.take(host, vm(*n), GIB).is_ok()).count();
        assert_eq!(fits, 12, "13 GiB less what the host keeps");
        let memory_shortfall = memory_reservations.take(host, vm(99), GIB).unwrap_err();
        assert_eq!(
            memory_shortfall,
            MemoryShortfall { needed: GIB, available: 13 * GIB - HOST_RESERVE_BYTES - 12 * GIB }
        );
        // A repeated reservation of a machine ignores its earlier one.
        memory_reservations.take(host, vm(0), GIB).unwrap();
        memory_reservations.release(vm(0));
        memory_reservations.take(host, vm(99), GIB).unwrap();
    }

    #[test]
    fn all_guests_fit_even_if_they_have_taken_nothing_yet() {
        let (memory_reservations, host) =
            (MemoryReservations::default(), HostBytes { total: 4 * GIB, available: 4 * GIB });
        for n in 0..3 {
            memory_reservations.take(host, vm(n), GIB).unwrap();
            memory_reservations.made(vm(n));
        }
        assert!(
            memory_reservations.take(host, vm(3), GIB).is_err(),
            "the host keeps a part of the fourth"
        );
        memory_reservations.found(vm(0), GIB / 2);
        memory_reservations.take(host, vm(3), GIB).unwrap();
    }
}
