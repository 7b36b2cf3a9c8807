//! Memory of the overlays of this process, which the host must have.
//!
//! An overlay takes memory as its guest writes, long after its attach. So an attach is refused if the
//! host could not provide what all overlays of the process may still take.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use disk::Disk as _;
use overlay::OverlayDisk;

use super::OpenError;

/// Share of the host's memory that stays for all else: a sixteenth.
const RESERVE_DIVISOR: u64 = 16;

/// Overlays of this process.
static OVERLAYS: Mutex<Vec<Weak<OverlayDisk>>> = Mutex::new(Vec::new());

/// Counts an overlay from now on, as long as it exists.
pub(super) fn add(overlay: &Arc<OverlayDisk>) {
    let mut overlays = OVERLAYS.lock().unwrap_or_else(PoisonError::into_inner);
    overlays.retain(|one| one.strong_count() > 0);
    overlays.push(Arc::downgrade(overlay));
}

/// Checks that the host has memory for one more overlay with `ram` bytes. A host that does not tell its
/// memory has enough.
///
/// # Errors
/// [`OpenError::OverlayMemory`].
pub(super) fn check(ram: u64) -> Result<(), OpenError> {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let (Some(available), Some(total)) = (bytes(&text, "MemAvailable:"), bytes(&text, "MemTotal:"))
    else {
        return Ok(());
    };
    let overlays = OVERLAYS.lock().unwrap_or_else(PoisonError::into_inner);
    let counts = overlays.iter().filter_map(|one| one.upgrade()?.overlay_counts());
    let promised = counts.map(|one| one.ram_bytes.saturating_sub(one.ram_used_bytes)).sum();
    let room = room(available, total, promised);
    if ram <= room { Ok(()) } else { Err(OpenError::OverlayMemory { ram, room, promised }) }
}

/// Returns the bytes that a new overlay may have.
fn room(available: u64, total: u64, promised: u64) -> u64 {
    available.saturating_sub(promised).saturating_sub(total / RESERVE_DIVISOR)
}

/// Returns a value of `/proc/meminfo` in bytes.
fn bytes(text: &str, name: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix(name))?;
    value.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_promised_and_a_reserve_stay() {
        let text = "MemTotal:       16000 kB\nMemFree: 3 kB\nMemAvailable:    8000 kB\n";
        let of = |name| bytes(text, name).unwrap() / 1024;
        assert_eq!((of("MemTotal:"), of("MemAvailable:")), (16000, 8000));
        assert_eq!(bytes("", "MemTotal:"), None);
        assert_eq!(room(8000, 16000, 0), 7000);
        assert_eq!(room(8000, 16000, 6000), 1000);
        assert_eq!(room(8000, 16000, 8000), 0);
        check(0).unwrap();
        let error = check(1 << 60).unwrap_err().to_string();
        assert!(error.contains("give less ram"), "{error}");
    }
}
