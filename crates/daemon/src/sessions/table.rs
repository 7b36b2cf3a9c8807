//! Sessions by reference and by last use. Pure, without a clock.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};

use super::Session;
use crate::auth::passwords::CredentialStamp;
use crate::db::Ref;

/// All sessions.
#[derive(Debug, Default)]
pub(super) struct SessionTable {
    by_reference: HashMap<Ref, Entry>,
    /// Order of last use. The number distinguishes sessions used at the same time.
    by_use: BTreeMap<(Instant, u64), Ref>,
    by_user: HashMap<String, BTreeSet<Ref>>,
    uses: u64,
}

#[derive(Debug)]
struct Entry {
    session: Session,
    stamp: Option<CredentialStamp>,
    used: (Instant, u64),
    /// Time at which the record was last updated.
    recorded_at: Instant,
}

impl SessionTable {
    /// Adds a session. Removes and returns the user's least recently used sessions above `most`.
    pub(super) fn add(
        &mut self,
        session: Session,
        stamp: Option<CredentialStamp>,
        now: Instant,
        most: usize,
    ) -> Vec<Ref> {
        let (reference, user) = (session.reference.clone(), session.user.clone());
        let used = self.next(now);
        self.by_use.insert(used, reference.clone());
        self.by_user.entry(user.clone()).or_default().insert(reference.clone());
        self.by_reference.insert(reference, Entry { session, stamp, used, recorded_at: now });
        let mut surplus = Vec::new();
        while let Some(oldest) = self.surplus(&user, most) {
            surplus.extend(self.remove(&oldest));
        }
        surplus
    }

    fn surplus(&self, user: &str, most: usize) -> Option<Ref> {
        let of_user = self.by_user.get(user).filter(|of_user| of_user.len() > most)?;
        let used = |one: &&Ref| self.by_reference.get(*one).map(|entry| entry.used);
        of_user.iter().min_by_key(used).cloned()
    }

    /// Records a use of the session. Returns the session and whether its record is due for an
    /// update.
    pub(super) fn used(
        &mut self,
        reference: &str,
        now: Instant,
        record_interval: Duration,
    ) -> Option<(Session, bool)> {
        let next = self.next(now);
        let entry = self.by_reference.get_mut(reference)?;
        let was = std::mem::replace(&mut entry.used, next);
        let moved = self.by_use.remove(&was)?;
        self.by_use.insert(next, moved);
        let record_due = now.saturating_duration_since(entry.recorded_at) >= record_interval;
        if record_due {
            entry.recorded_at = now;
        }
        Some((entry.session.clone(), record_due))
    }

    pub(super) fn remove(&mut self, reference: &Ref) -> Option<Ref> {
        let entry = self.by_reference.remove(reference)?;
        self.by_use.remove(&entry.used);
        if let Some(of_user) = self.by_user.get_mut(&entry.session.user) {
            of_user.remove(reference);
            if of_user.is_empty() {
                self.by_user.remove(&entry.session.user);
            }
        }
        Some(entry.session.reference)
    }

    /// Removes and returns all sessions that were unused for this long.
    pub(super) fn remove_idle(&mut self, now: Instant, idle_max: Duration) -> Vec<Ref> {
        let mut idle = Vec::new();
        while let Some((&(used, _), reference)) = self.by_use.first_key_value()
            && now.saturating_duration_since(used) >= idle_max
        {
            let reference = reference.clone();
            idle.extend(self.remove(&reference));
        }
        idle
    }

    /// Removes and returns all sessions that match.
    pub(super) fn remove_where(
        &mut self,
        is: impl Fn(&Session, Option<CredentialStamp>) -> bool,
    ) -> Vec<Ref> {
        let entries = self.by_reference.iter();
        let found = entries.filter(|(_, entry)| is(&entry.session, entry.stamp));
        let found: Vec<Ref> = found.map(|(reference, _)| reference.clone()).collect();
        found.iter().filter_map(|reference| self.remove(reference)).collect()
    }

    /// Replaces the stamp of a session, if it has one.
    pub(super) fn restamp(&mut self, reference: &Ref, stamp: CredentialStamp) {
        if let Some(entry) = self.by_reference.get_mut(reference) {
            entry.stamp = entry.stamp.map(|_| stamp);
        }
    }

    pub(super) fn count(&self) -> usize {
        self.by_reference.len()
    }

    fn next(&mut self, now: Instant) -> (Instant, u64) {
        self.uses += 1;
        (now, self.uses)
    }
}
