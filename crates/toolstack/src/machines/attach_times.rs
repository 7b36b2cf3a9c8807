//! Duration of storage calls by volume. Slow volumes begin first the next time.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use model::id::VdiId;

/// Most volumes with a stored duration. Beyond that, all are dropped and measured again: only the
/// order of steps depends on them.
const MOST: usize = 65_536;

/// Duration of each volume's last attach or detach.
#[derive(Debug, Default)]
pub(super) struct AttachTimes(Mutex<HashMap<VdiId, Duration>>);

impl AttachTimes {
    /// Records a successful attach or detach.
    pub(super) fn took(&self, vdi: VdiId, time: Duration) {
        let mut all = self.lock();
        if all.len() >= MOST && !all.contains_key(&vdi) {
            all.clear();
        }
        all.insert(vdi, time);
    }

    /// Returns the last duration; zero if none is stored.
    pub(super) fn of(&self, vdi: VdiId) -> Duration {
        self.lock().get(&vdi).copied().unwrap_or_default()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<VdiId, Duration>> {
        // Each change of the map is complete before it can panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use model::id::Uuid;

    use super::*;

    fn vdi(n: usize) -> VdiId {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&n.to_le_bytes());
        VdiId(Uuid::from_random(bytes))
    }

    #[test]
    fn the_last_time_counts_and_there_is_a_bound() {
        let (attach_times, long) = (AttachTimes::default(), Duration::from_millis(500));
        assert_eq!(attach_times.of(vdi(0)), Duration::ZERO);
        attach_times.took(vdi(0), long);
        attach_times.took(vdi(0), long * 2);
        assert_eq!(attach_times.of(vdi(0)), long * 2);
        for n in 0..=MOST {
            attach_times.took(vdi(n), long);
        }
        assert!(attach_times.lock().len() <= MOST);
        assert_eq!(attach_times.of(vdi(MOST)), long);
    }
}
