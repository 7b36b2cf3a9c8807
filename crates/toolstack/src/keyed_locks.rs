//! Mutexes by key, for operations on one disk, NIC or network.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::sync::{Mutex as Turn, OwnedMutexGuard};

/// Async mutexes by key. Waiters for the same key share a `T`, which starts as the default value if
/// the key has no holder and no waiter.
#[derive(Debug)]
pub(crate) struct KeyedLocks<T = ()>(Mutex<HashMap<String, Weak<Turn<T>>>>);

impl<T> Default for KeyedLocks<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T: Default> KeyedLocks<T> {
    /// Locks `id` and waits for its present holder. The guard unlocks on drop.
    pub(crate) async fn of(&self, id: &str) -> OwnedMutexGuard<T> {
        let turn = self.turn(id);
        turn.lock_owned().await
    }

    /// Returns the keys with a holder.
    pub(crate) fn locked_keys(&self) -> Vec<String> {
        let all = self.lock();
        all.iter().filter(|(_, turn)| is_used(turn)).map(|(id, _)| id.clone()).collect()
    }

    /// Returns the number of holders and waiters of `id`.
    pub(crate) fn at(&self, id: &str) -> usize {
        self.lock().get(id).map_or(0, Weak::strong_count)
    }

    fn turn(&self, id: &str) -> Arc<Turn<T>> {
        let mut all = self.lock();
        if let Some(turn) = all.get(id).and_then(Weak::upgrade) {
            return turn;
        }
        all.retain(|_, turn| is_used(turn));
        let turn = Arc::default();
        all.insert(id.to_owned(), Arc::downgrade(&turn));
        turn
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Weak<Turn<T>>>> {
        // Each change of the map is complete before it can panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_used<T>(turn: &Weak<Turn<T>>) -> bool {
    turn.strong_count() > 0
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_after_the_other_and_each_for_itself() {
        let keyed_locks = KeyedLocks::<()>::default();
        let soon = Duration::from_secs(1);
        let one = keyed_locks.of("a").await;
        assert_eq!((keyed_locks.at("a"), keyed_locks.at("b")), (1, 0));
        timeout(soon, keyed_locks.of("a")).await.unwrap_err();
        let other = timeout(soon, keyed_locks.of("b")).await.unwrap();
        let mut busy = keyed_locks.locked_keys();
        busy.sort();
        assert_eq!(busy, ["a", "b"]);
        drop(one);
        drop(timeout(soon, keyed_locks.of("a")).await.unwrap());
        assert_eq!(keyed_locks.locked_keys(), ["b"]);
        drop(other);
        drop(keyed_locks.of("c").await);
        assert_eq!(keyed_locks.lock().len(), 1, "those that nobody waits for are forgotten");
    }
}
