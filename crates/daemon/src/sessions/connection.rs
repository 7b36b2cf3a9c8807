//! The session of a connection: through the Unix socket a call need not name one.
//!
//! Who comes through that socket is root already. A tool that makes one call and goes away is spared
//! two others, which counts on a host that is busy, and leaves no session behind if it is killed.

use std::sync::{Mutex, MutexGuard, PoisonError};

use xenapi::ApiError;

use super::{AuthenticatedUser, Session, Sessions};
use crate::db::{Db, Ref};
use crate::dispatch::Peer;

/// The session of one connection, once it has one.
#[derive(Debug, Default)]
pub struct ConnectionSession(Mutex<Option<Ref>>);

impl ConnectionSession {
    fn reference(&self) -> MutexGuard<'_, Option<Ref>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sessions {
    /// The session that somebody names. An empty name is that of the connection, if it has one.
    ///
    /// # Errors
    /// `SESSION_INVALID`, and that of the database.
    pub fn named(&self, db: &Db, name: &str, peer: &Peer) -> Result<Session, ApiError> {
        match &peer.connection_session {
            Some(connection_session) if name.is_empty() => {
                self.own(db, connection_session, peer.user_agent.as_deref().unwrap_or_default())
            }
            _ => self.find(db, name),
        }
    }

    /// The session of a connection of root, which begins now unless there is one. One that was ended
    /// meanwhile begins anew.
    ///
    /// # Errors
    /// That of the database.
    pub(super) fn own(
        &self,
        db: &Db,
        connection_session: &ConnectionSession,
        originator: &str,
    ) -> Result<Session, ApiError> {
        let mut reference = connection_session.reference();
        if let Some(reference) = &*reference
            && let Ok(session) = self.find(db, reference.as_str())
        {
            return Ok(session);
        }
        let begun = self.begin(db, AuthenticatedUser::of_socket(), originator)?;
        let session = self.find(db, begun.as_str());
        *reference = Some(begun);
        session
    }

    /// The connection has ended, and its session with it. False if it had none any more.
    pub fn left(&self, db: &Db, connection_session: &ConnectionSession) -> bool {
        let reference = connection_session.reference().take();
        reference.is_some_and(|reference| self.end(db, &reference).is_ok())
    }
}
