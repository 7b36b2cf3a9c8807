//! Limits of concurrent calls.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{Semaphore, SemaphorePermit};
use xenapi::{ApiError, codes};

use crate::db::Ref;

/// Most long calls at once on the host. Each uses a record, a task of the runtime and its
/// parameters.
pub const MAX_PENDING: usize = 2_000;
/// Most long calls at once of one session, so that one client cannot use all permits.
pub const MAX_PENDING_OF_SESSION: usize = 500;

/// Most writes at once that wait until they are persisted.
pub const MAX_WRITES: usize = 256;

/// Limiter of short calls that write. Each holds a permit until its changes are persisted.
#[derive(Debug)]
pub struct WriteLimiter(Semaphore);

impl Default for WriteLimiter {
    fn default() -> Self {
        Self(Semaphore::new(MAX_WRITES))
    }
}

impl WriteLimiter {
    /// Waits for a permit, in the order of arrival.
    pub(super) async fn turn(&self) -> Option<SemaphorePermit<'_>> {
        // The semaphore is never closed.
        self.0.acquire().await.ok()
    }
}

/// Most waits for events at once of one user below pool-operator. Each has an answer of up to all
/// records in memory.
pub const MAX_WAITS_OF_USER: usize = 64;

/// Limiter of long calls, or of waits for events. Reads need no permit.
#[derive(Clone, Debug)]
pub struct CallLimiter {
    counts: Arc<Mutex<PermitCounts>>,
    in_all: usize,
    of_one: usize,
}

impl Default for CallLimiter {
    fn default() -> Self {
        Self::new(MAX_PENDING, MAX_PENDING_OF_SESSION)
    }
}

#[derive(Debug, Default)]
struct PermitCounts {
    in_all: usize,
    by_key: HashMap<Ref, usize>,
}

/// Permit of a long call. Dropping it releases it.
#[derive(Debug)]
pub struct CallPermit {
    call_limiter: CallLimiter,
    key: Ref,
}

impl CallLimiter {
    /// Creates a limiter of so many permits in all, and of one key.
    pub fn new(in_all: usize, of_one: usize) -> Self {
        Self { counts: Arc::default(), in_all, of_one }
    }

    /// Takes a permit for a call of this session, or of another key.
    ///
    /// # Errors
    /// `TOO_MANY_PENDING_TASKS` if no permit is free. The call does not wait, because only the
    /// client knows whether it still wants the operation later.
    pub fn take(&self, key: &Ref) -> Result<CallPermit, ApiError> {
        let mut permit_counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let of_one = permit_counts.by_key.get(key).copied().unwrap_or_default();
        if permit_counts.in_all >= self.in_all || of_one >= self.of_one {
            return Err(codes::too_many_pending_tasks());
        }
        permit_counts.in_all += 1;
        permit_counts.by_key.insert(key.clone(), of_one + 1);
        Ok(CallPermit { call_limiter: self.clone(), key: key.clone() })
    }

    /// Returns the number of permits in use.
    pub fn taken(&self) -> usize {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner).in_all
    }
}

impl Drop for CallPermit {
    fn drop(&mut self) {
        let mut permit_counts =
            self.call_limiter.counts.lock().unwrap_or_else(PoisonError::into_inner);
        permit_counts.in_all = permit_counts.in_all.saturating_sub(1);
        if let Some(count) = permit_counts.by_key.get_mut(&self.key) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                permit_counts.by_key.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_session_does_not_take_all() {
        let call_limiter = CallLimiter::default();
        let (one, other) = (Ref::from("one"), Ref::from("other"));
        let mut held: Vec<CallPermit> = Vec::new();
        while let Ok(call_permit) = call_limiter.take(&one) {
            held.push(call_permit);
        }
        assert_eq!(held.len(), MAX_PENDING_OF_SESSION);
        assert_eq!(call_limiter.take(&one).unwrap_err().details(), ["TOO_MANY_PENDING_TASKS"]);
        let others = call_limiter.take(&other).unwrap();
        held.pop();
        held.push(call_limiter.take(&one).unwrap());
        drop((held, others));
        assert_eq!(call_limiter.taken(), 0);
        assert!(
            call_limiter.counts.lock().unwrap().by_key.is_empty(),
            "nothing is kept of who is gone"
        );
    }

    #[test]
    fn all_sessions_together_have_a_bound() {
        let call_limiter = CallLimiter::default();
        let session = |number: usize| Ref::from(format!("{}", number / 400).as_str());
        let held: Vec<CallPermit> =
            (0..MAX_PENDING).map(|number| call_limiter.take(&session(number)).unwrap()).collect();
        assert!(call_limiter.take(&Ref::from("new")).is_err());
        drop(held);
        assert!(call_limiter.take(&Ref::from("new")).is_ok());
    }
}
