//! File systems of a guest that its agent freezes while a snapshot is taken.
//!
//! A frozen guest does not thaw by itself. So a file in the domain's directory says that it may be
//! frozen, from before the freeze until after the thaw, and the next daemon thaws it.

use std::time::Duration;

use super::agent::talking_for;
use super::domain::Domain;
use super::os;
use crate::hv::HvError;

/// Longest freeze: the guest writes back what it has cached.
const FREEZE_DEADLINE: Duration = Duration::from_secs(60);
/// Longest thaw.
const THAW_DEADLINE: Duration = Duration::from_secs(10);

/// Freezes all file systems. Returns false if no agent listens.
pub(super) async fn freeze(domain: &Domain) -> Result<bool, HvError> {
    if !domain.agent_listens().await? {
        return Ok(false);
    }
    let marked = domain.dir.mark_frozen();
    marked.map_err(|source| os("marking as frozen", domain.dir.path(), source))?;
    let frozen = ask(domain, "guest-fsfreeze-freeze", FREEZE_DEADLINE).await;
    frozen.map(|()| true)
}

/// Thaws all file systems.
pub(super) async fn thaw(domain: &Domain) -> Result<(), HvError> {
    if domain.agent_listens().await? {
        ask(domain, "guest-fsfreeze-thaw", THAW_DEADLINE).await?;
    }
    let unmarked = domain.dir.unmark_frozen();
    unmarked.map_err(|source| os("marking as thawed", domain.dir.path(), source))
}

/// Thaws what a former daemon left frozen.
pub(super) async fn thaw_left(domain: &Domain) {
    if domain.dir.is_frozen()
        && let Err(error) = thaw(domain).await
    {
        tracing::warn!(vm = %domain.vm, "its file systems may be frozen: {error}");
    }
}

async fn ask(domain: &Domain, command: &str, deadline: Duration) -> Result<(), HvError> {
    let talk = talking_for(domain, deadline, async |agent_session| {
        agent_session.ask(command).await.map(drop)
    });
    talk.await
}
