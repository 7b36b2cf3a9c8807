//! Planted bugs: each breaks one rule, so that the simulation proves that it would notice. They
//! exist in tests only.

/// A rule that a test can break.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(dead_code, reason = "only tests plant bugs")]
pub(crate) enum Bug {
    /// Space is reused although a request that uses it is in flight.
    EpochIgnored,
    /// Space is reused before the cleared reference is durable.
    FreedBeforeDurable,
    /// A successor forgets committed references.
    CommitsForgotten,
    /// References are written before the data is synced.
    ReferencesBeforeData,
    /// A cluster is referenced before its refcount is written.
    NoRefcount,
    /// A round writes references that were committed after its first sync.
    NewestWritten,
    /// A granule that a channel fills is granted again.
    BusyGranted,
    /// A write is acknowledged before it is committed.
    EarlyAcknowledgement,
    /// Space is reused before it is punched.
    LatePunch,
    /// A successor does not sync before it frees space.
    NoSyncAtTakeover,
    /// A durable write ends although its reference is not durable.
    DurableWithoutRound,
    /// A page is evicted together with its entries in the journal.
    DirtyEvicted,
    /// Written blocks are not recorded.
    NoRecord,
    /// A record of a cluster that was discarded stays, and its epoch ends early.
    RecordNotCanceled,
    /// A successor leaves the journal as it is.
    JournalNotFolded,
    /// New refcount blocks are named before they are durable.
    BlocksNotSynced,
    /// A note of where a layer below has a granule is taken for a cluster of the top.
    LowerIsTop,
    /// A cluster that a reference replaced is freed before the reference is durable.
    ReplacedFreedEarly,
}

#[cfg(test)]
thread_local! {
    static PLANTED: std::cell::Cell<Option<Bug>> = const { std::cell::Cell::new(None) };
}

/// Plants a bug in this thread.
#[cfg(test)]
pub(crate) fn plant(bug: Option<Bug>) {
    PLANTED.set(bug);
}

/// Returns whether the bug is planted.
#[cfg(test)]
#[inline]
pub(crate) fn is_planted(bug: Bug) -> bool {
    PLANTED.get() == Some(bug)
}

/// Returns whether the bug is planted: never, outside of tests.
#[cfg(not(test))]
#[inline(always)]
pub(crate) const fn is_planted(_: Bug) -> bool {
    false
}
