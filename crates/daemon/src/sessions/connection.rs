//! Session of a connection. A call over the Unix socket need not name a session.
//!
//! A client of that socket is root already. A tool that makes one call saves the login and the
//! logout, which matters on a busy host. It leaves no session behind if it is killed.

use std::sync::{Mutex, MutexGuard, PoisonError};

use xenapi::ApiError;

use super::{AuthenticatedUser, Session, Sessions};
use crate::db::{Db, Ref};
use crate::peer::Peer;

/// Session of one connection, once it has one.
#[derive(Debug, Default)]
pub struct ConnectionSession(Mutex<Option<Ref>>);

impl ConnectionSession {
    fn reference(&self) -> MutexGuard<'_, Option<Ref>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sessions {
    /// Returns the named session. An empty name means the session of the connection, if it may have
    /// one.
    ///
    /// # Errors
    /// `SESSION_INVALID`, and those of the database.
    pub fn named(&self, db: &Db, name: &str, peer: &Peer) -> Result<Session, ApiError> {
        match &peer.connection_session {
            Some(connection_session) if name.is_empty() => {
                self.own(db, connection_session, peer.user_agent.as_deref().unwrap_or_default())
            }
            _ => self.find(db, name),
        }
    }

    /// Returns the session of a connection of root. Creates one if there is none or it has ended.
    ///
    /// # Errors
    /// Those of the database.
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

    /// Ends the session of a closed connection. Returns false if it had none.
    pub fn left(&self, db: &Db, connection_session: &ConnectionSession) -> bool {
        let reference = connection_session.reference().take();
        reference.is_some_and(|reference| self.end(db, &reference).is_ok())
    }
}
