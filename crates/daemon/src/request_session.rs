//! Sessions of HTTP requests that are not calls.

use std::sync::Arc;

use xenapi::table::Role;
use xenapi::{ApiError, codes};

use crate::app::AppState;
use crate::http::SessionRequest;
use crate::peer::Peer;
use crate::sessions::Session;

/// Session of a request.
#[derive(Clone)]
pub(crate) struct RequestSession {
    pub(crate) session: Session,
    /// Whether the session ends with the request.
    is_temporary: bool,
}

impl RequestSession {
    /// Finds or begins the session of a request, whose user needs this permission, which comes with
    /// this role.
    ///
    /// # Errors
    /// `SESSION_INVALID`, `SESSION_AUTHENTICATION_FAILED`, `RBAC_PERMISSION_DENIED`.
    pub(crate) async fn open(
        app: &Arc<AppState>,
        session_request: &SessionRequest,
        peer: &Peer,
        (permission, least): (&str, Role),
    ) -> Result<Self, ApiError> {
        let session = match &session_request.credentials {
            Some((user, password)) => {
                let begun = app.sessions.login(app, user, password, peer, "").await?;
                app.sessions.find(&app.db, begun.as_str())?
            }
            None => app.sessions.named(&app.db, &session_request.session, peer)?,
        };
        let role = session.role;
        let opened = Self { session, is_temporary: session_request.credentials.is_some() };
        if role >= least {
            return Ok(opened);
        }
        opened.close(app);
        let why = format!("role {role} may not do this; it needs role {least}");
        Err(codes::permission_denied(permission, why))
    }

    /// Ends a temporary session.
    pub(crate) fn close(&self, app: &AppState) {
        if self.is_temporary {
            // It may have ended already.
            let _ended = app.sessions.logout(app, &self.session.reference);
        }
    }
}
