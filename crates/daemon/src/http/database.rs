//! `/pool/xmldbdump`: a database that replaces the one of the daemon.
//!
//! XenServer has the same path, with its own format.

use hyper::body::Incoming;
use hyper::{Request, Response, StatusCode};

use super::ApiHandler;
use super::connection::Caller;
use super::console::word;
use super::disks::{ImportBody, SessionRequest, refused};
use super::response::{ResponseBody, last, text};

/// Path of the database.
pub(super) const PATH: &str = "/pool/xmldbdump";
/// Method of a restore.
pub(super) const METHOD: &str = "PUT";

/// Requested restore of the database.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RestoreRequest {
    /// Session of the request.
    pub session: SessionRequest,
    /// Whether the database is only checked.
    pub dry_run: bool,
}

/// Answers a restore.
pub(super) async fn restore(
    request: Request<Incoming>,
    caller: Caller,
    api_handler: &dyn ApiHandler,
) -> Response<ResponseBody> {
    let (head, body) = request.into_parts();
    let mut restore_request = RestoreRequest::default();
    for pair in head.uri.query().unwrap_or_default().split('&') {
        match pair.split_once('=').unwrap_or((pair, "")) {
            ("session_id", value) => match word(value) {
                Some(session) => restore_request.session.session = session,
                None => return odd("session_id= is a word"),
            },
            ("dry_run", "true") => restore_request.dry_run = true,
            ("dry_run", "false") => restore_request.dry_run = false,
            ("dry_run", _) => return odd("dry_run= is true or false"),
            _ => {}
        }
    }
    let Some(session) = restore_request.session.with_headers(&head.headers) else {
        return odd("the cookie session_id is a word");
    };
    let restore_request = RestoreRequest { session, ..restore_request };
    let body = ImportBody::new(body, &head.headers);
    match api_handler.restore(restore_request, body, caller.asks(&head.headers)).await {
        Ok(()) => last(text(StatusCode::OK, "text/plain", String::new())),
        Err(error) => refused(&error),
    }
}

fn odd(why: &str) -> Response<ResponseBody> {
    let why = format!("The request is not understood: {why}.\n");
    last(text(StatusCode::BAD_REQUEST, "text/plain", why))
}
