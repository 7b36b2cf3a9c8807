//! `/console`: the serial console of a VM. `CONNECT` carries plain bytes; browsers use a
//! [WebSocket](websocket).

use std::sync::Arc;

use hyper::body::Incoming;
use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::upgrade::{OnUpgrade, on};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::io::copy_bidirectional;
use tokio::net::UnixStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use toolstack::boxed_future::BoxFuture;

use super::connection::Caller;
use super::response::{ResponseBody, last, text};
use super::{ApiHandler, stopped, websocket};
use crate::peer::Peer;

/// Path of consoles.
pub(super) const PATH: &str = "/console";
/// Most open consoles.
pub(super) const OPEN_MAX: usize = 128;
/// Longest reference or UUID that is looked up, in bytes.
const WORD_BYTES_MAX: usize = 128;

/// Requested console and session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConsoleRequest {
    /// Session from a cookie or the query. Empty: the session of the connection, if it has one.
    pub session: String,
    /// Reference of a console or VM.
    pub reference: Option<String>,
    /// UUID of a console or VM.
    pub uuid: Option<String>,
}

/// Open console of a VM.
pub struct ConsoleLine {
    /// Bytes from and to the guest.
    pub stream: UnixStream,
    /// Ends when the client's session ends.
    pub session_ended: BoxFuture<'static, ()>,
}

/// Reason why a console is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConsoleError {
    /// The session does not allow it.
    Denied,
    /// The VM does not exist or does not run.
    Absent,
    /// The console exists but does not respond now.
    Failed,
}

/// Answers `CONNECT /console` and then carries bytes.
pub(super) async fn console(
    request: Request<Incoming>,
    caller: Caller,
    api_handler: &dyn ApiHandler,
    consoles: &Arc<Semaphore>,
    stop: watch::Receiver<bool>,
) -> Response<ResponseBody> {
    let console_request = wanted(request.uri().query().unwrap_or_default(), request.headers());
    let peer = caller.asks(request.headers());
    match open(console_request, peer, api_handler, consoles).await {
        Ok((line, held)) => {
            tokio::spawn(carry(on(request), line, held, stop, false));
            text(StatusCode::OK, "application/octet-stream", String::new())
        }
        Err(refusal) => refusal,
    }
}

/// Answers a WebSocket request to `/console` and then carries bytes.
pub(super) async fn socket(
    request: Request<Incoming>,
    caller: Caller,
    api_handler: &dyn ApiHandler,
    consoles: &Arc<Semaphore>,
    stop: watch::Receiver<bool>,
) -> Response<ResponseBody> {
    let Some(accept) = websocket::accept(request.headers()) else {
        return refused(StatusCode::UPGRADE_REQUIRED, "Ask for a WebSocket of version 13.");
    };
    // A browser sends its cookies for any page's request, so only the query may name the session.
    let console_request = wanted(request.uri().query().unwrap_or_default(), &HeaderMap::new());
    let peer = caller.asks(request.headers());
    let (line, held) = match open(console_request, peer, api_handler, consoles).await {
        Ok(open) => open,
        Err(refusal) => return refusal,
    };
    let Ok(accept) = HeaderValue::try_from(accept) else {
        return refused(StatusCode::BAD_REQUEST, "The key of the WebSocket is invalid.");
    };
    let mut response = text(StatusCode::SWITCHING_PROTOCOLS, "text/plain", String::new());
    let headers = response.headers_mut();
    headers.clear();
    headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(header::SEC_WEBSOCKET_ACCEPT, accept);
    if websocket::offers_binary(request.headers()) {
        headers.insert(header::SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(websocket::BINARY));
    }
    tokio::spawn(carry(on(request), line, held, stop, true));
    response
}

/// Opens the requested console with a permit, or returns the refusal.
async fn open(
    console_request: Option<ConsoleRequest>,
    peer: Peer,
    api_handler: &dyn ApiHandler,
    consoles: &Arc<Semaphore>,
) -> Result<(ConsoleLine, OwnedSemaphorePermit), Response<ResponseBody>> {
    let Some(console_request) = console_request else {
        let why = "Name the machine: ref=... or uuid=...";
        return Err(refused(StatusCode::BAD_REQUEST, why));
    };
    let Ok(place) = Arc::clone(consoles).try_acquire_owned() else {
        let why = "Too many consoles are open. Close one.";
        return Err(refused(StatusCode::SERVICE_UNAVAILABLE, why));
    };
    let refusal = match api_handler.console(console_request, peer).await {
        Ok(line) => return Ok((line, place)),
        Err(ConsoleError::Denied) => {
            refused(StatusCode::UNAUTHORIZED, "Log in first, as a user who may use consoles.")
        }
        Err(ConsoleError::Absent) => {
            refused(StatusCode::NOT_FOUND, "There is no such machine, or it does not run.")
        }
        Err(ConsoleError::Failed) => {
            refused(StatusCode::SERVICE_UNAVAILABLE, "The console does not answer. Try again.")
        }
    };
    Err(refusal)
}

fn refused(status: StatusCode, why: &str) -> Response<ResponseBody> {
    last(text(status, "text/plain", format!("{why}\n")))
}

/// Carries bytes until either side or the session ends or the server stops. `framed` selects
/// WebSocket frames.
async fn carry(
    upgraded: OnUpgrade,
    line: ConsoleLine,
    held: OwnedSemaphorePermit,
    mut stop: watch::Receiver<bool>,
    framed: bool,
) {
    let Ok(upgraded) = upgraded.await else { return };
    let mut upgraded = TokioIo::new(upgraded);
    let ConsoleLine { stream: mut line, session_ended } = line;
    let carried = async {
        match framed {
            true => websocket::carry(upgraded, &mut line).await,
            false => {
                copy_bidirectional(&mut upgraded, &mut line).await.map(drop).map_err(Into::into)
            }
        }
    };
    tokio::select! {
        ended = carried => {
            if let Err(error) = ended {
                tracing::debug!("a console ended: {error}");
            }
        }
        () = session_ended => {}
        () = stopped(&mut stop) => {}
    }
    drop(held);
}

/// Parses a console request. `None` if the request names no console.
fn wanted(query: &str, headers: &HeaderMap) -> Option<ConsoleRequest> {
    let mut console_request = ConsoleRequest::default();
    for pair in query.split('&') {
        let Some((name, value)) = pair.split_once('=') else { continue };
        match name {
            "session_id" => console_request.session = word(value)?,
            "ref" => console_request.reference = Some(word(value)?),
            "uuid" => console_request.uuid = Some(word(value)?),
            _ => {}
        }
    }
    if let Some(session) = session_of(headers)? {
        console_request.session = session;
    }
    (console_request.reference.is_some() || console_request.uuid.is_some())
        .then_some(console_request)
}

/// Returns the session that a cookie names. The outer `None` stands for one that is no word.
pub(super) fn session_of(headers: &HeaderMap) -> Option<Option<String>> {
    let cookies = headers.get_all(header::COOKIE).into_iter();
    let cookies = cookies.filter_map(|cookie| cookie.to_str().ok());
    let mut cookies = cookies.flat_map(|cookie| cookie.split(';'));
    let session = cookies.find_map(|cookie| cookie.trim().strip_prefix("session_id="));
    session.map(word).map_or(Some(None), |session| session.map(Some))
}

/// Decodes a word of a URL. References contain only one character that may be escaped, the colon.
pub(super) fn word(text: &str) -> Option<String> {
    let text = text.replace("%3A", ":").replace("%3a", ":");
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b':' || byte == b'-';
    (text.len() <= WORD_BYTES_MAX && text.bytes().all(plain)).then_some(text)
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

    use super::*;

    #[test]
    fn a_console_is_asked_for_in_several_ways() {
        let of = |query: &str, cookie: Option<&'static str>| {
            let mut headers = HeaderMap::new();
            if let Some(cookie) = cookie {
                headers.insert(header::COOKIE, HeaderValue::from_static(cookie));
            }
            wanted(query, &headers)
        };
        let with = |session: &str, reference: Option<&str>, uuid: Option<&str>| {
            let own = |text: &str| text.to_owned();
            let (reference, uuid) = (reference.map(own), uuid.map(own));
            Some(ConsoleRequest { session: own(session), reference, uuid })
        };
        assert_eq!(
            of("ref=OpaqueRef:a-b&session_id=OpaqueRef%3Ac", None),
            with("OpaqueRef:c", Some("OpaqueRef:a-b"), None)
        );
        assert_eq!(
            of("uuid=a-b&x", Some("theme=dark; session_id=OpaqueRef:c")),
            with("OpaqueRef:c", None, Some("a-b"))
        );
        assert_eq!(of("uuid=a", None), with("", None, Some("a")));
        for query in ["", "session_id=OpaqueRef:c", "uuid=../etc", "ref=a%00", "uuid=a/b"] {
            assert_eq!(of(query, None), None, "{query}");
        }
        assert_eq!(of(&format!("uuid={}", "a".repeat(WORD_BYTES_MAX + 1)), None), None);
    }
}
