//! `/export_raw_vdi` and `/import_raw_vdi`: the content of disks.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use hyper::body::{Body as _, Incoming};
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::{Request, Response, StatusCode};
use tokio::sync::mpsc;
use tokio::time::timeout;
use xenapi::ApiError;

use super::ApiHandler;
use super::connection::Caller;
use super::console::{session_of, word};
use super::response::{ResponseBody, last, text};
use super::rpc::discard;

/// Paths of exports and imports. Clients also put a slash behind them.
const EXPORT: &str = "/export_raw_vdi";
const IMPORT: &str = "/import_raw_vdi";
/// Header with the task of a request, as XenServer has it.
const TASK_ID: HeaderName = HeaderName::from_static("task-id");
/// Length that clients announce if they do not know it: 1 PiB. They cut the connection behind the
/// image.
const UNKNOWN_LENGTH: u64 = 1 << 50;
/// Longest time in which no byte of an import arrives. Backup programs pause between disks of one
/// backup.
const STALL_DEADLINE: Duration = Duration::from_secs(600);
/// Longest credentials that are decoded, in bytes.
const CREDENTIALS_BYTES_MAX: usize = 2048;

/// Direction of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Export,
    Import,
}

impl Direction {
    /// Returns the direction of a path.
    pub(super) fn of_path(path: &str) -> Option<Self> {
        match path.strip_suffix('/').unwrap_or(path) {
            EXPORT => Some(Self::Export),
            IMPORT => Some(Self::Import),
            _ => None,
        }
    }

    /// Returns the method that is taken.
    pub(super) fn method(self) -> &'static str {
        match self {
            Self::Export => "GET",
            Self::Import => "PUT",
        }
    }
}

/// Session of a request that is not a call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionRequest {
    /// Session from a cookie or the query. Empty: the session of the connection, if it has one.
    pub session: String,
    /// Name and password of a user, for a session that ends with the request.
    pub credentials: Option<(String, String)>,
}

impl SessionRequest {
    /// Completes the session that the query names by the headers. `None` if the cookie is no word.
    pub(super) fn with_headers(mut self, headers: &HeaderMap) -> Option<Self> {
        if self.session.is_empty() {
            self.session = session_of(headers)?.unwrap_or_default();
        }
        if self.session.is_empty() {
            self.credentials = credentials(headers);
        }
        Some(self)
    }
}

/// Requested export or import.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DiskRequest {
    /// Session of the request.
    pub session: SessionRequest,
    /// Reference of the task that shows the progress.
    pub task: Option<String>,
    /// Reference or UUID of the VDI.
    pub vdi: Option<String>,
    /// Reference or UUID of the VDI that the reader has already.
    pub base: Option<String>,
    /// Format, as the client names it.
    pub format: Option<String>,
    /// Whether the client sends chunks with places, a format of XenServer's own.
    pub chunked: bool,
}

/// Image that is sent to the client.
#[derive(Debug)]
pub struct ExportBody {
    /// Length in bytes.
    pub bytes: u64,
    /// Content type.
    pub content_type: &'static str,
    /// Suggested name of the file.
    pub file_name: String,
    /// Reference of the task.
    pub task: String,
    /// The image, in pieces. An error cuts the connection.
    pub pieces: mpsc::Receiver<io::Result<Bytes>>,
}

/// Answer to an import.
#[derive(Debug)]
pub enum ImportAnswer {
    /// The disk has its new content. The reference is that of the task.
    Done(String),
    /// The task will tell. The answer ends with the stream, which has no bytes.
    Begun(String, mpsc::Receiver<io::Result<Bytes>>),
}

/// Body of an import.
#[derive(Debug)]
pub struct ImportBody {
    body: Incoming,
    /// First bytes, if they were waited for.
    first: Option<Bytes>,
    /// Whether the client waits for a word before it sends.
    expects: bool,
    length: Option<u64>,
}

/// Reason why no more of a body arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyCut {
    /// The connection ended, or was broken.
    Lost,
    /// No byte arrived for this long.
    Stalled(Duration),
}

impl ImportBody {
    pub(super) fn new(body: Incoming, headers: &HeaderMap) -> Self {
        let length = headers.get(header::CONTENT_LENGTH);
        let length = length.and_then(|length| length.to_str().ok()?.parse().ok());
        Self { body, first: None, expects: headers.contains_key(header::EXPECT), length }
    }

    /// Returns the announced length in bytes. `None` if the client does not know it.
    pub fn length(&self) -> Option<u64> {
        self.length
    }

    /// Returns whether the client cuts the connection behind the image, because it does not know its
    /// length.
    pub fn has_open_end(&self) -> bool {
        self.length == Some(UNKNOWN_LENGTH)
    }

    /// Waits for the first bytes. Returns false if none come.
    pub async fn has_bytes(&mut self) -> bool {
        if self.first.is_none() {
            self.first = self.next().await.ok().flatten();
        }
        self.first.is_some()
    }

    /// Returns the next bytes; `None` at the end.
    ///
    /// # Errors
    /// The client has gone, or sends nothing any more.
    pub async fn next(&mut self) -> Result<Option<Bytes>, BodyCut> {
        if let Some(first) = self.first.take() {
            return Ok(Some(first));
        }
        loop {
            let frame = poll_fn(|context| Pin::new(&mut self.body).poll_frame(context));
            match timeout(STALL_DEADLINE, frame).await {
                Err(_late) => return Err(BodyCut::Stalled(STALL_DEADLINE)),
                Ok(None) => return Ok(None),
                Ok(Some(Err(_))) => return Err(BodyCut::Lost),
                Ok(Some(Ok(frame))) => {
                    if let Ok(data) = frame.into_data() {
                        return Ok(Some(data));
                    }
                }
            }
        }
    }

    /// Discards some of what the client still sends, so that it reads the response.
    pub async fn discard(mut self) {
        // A client that waits for a word has not sent its body.
        if !self.expects {
            discard(&mut self.body).await;
        }
    }
}

/// Answers a request of this direction.
pub(super) async fn answer(
    direction: Direction,
    request: Request<Incoming>,
    caller: Caller,
    api_handler: &dyn ApiHandler,
) -> Response<ResponseBody> {
    let (head, body) = request.into_parts();
    let query = head.uri.query().unwrap_or_default();
    let Some(disk_request) = wanted(query, &head.headers) else {
        let why = "The request is not understood: vdi=, format=, base= and task_id= are words.\n";
        return last(text(StatusCode::BAD_REQUEST, "text/plain", why.to_owned()));
    };
    let peer = caller.asks(&head.headers);
    match direction {
        Direction::Export => match api_handler.export(disk_request, peer).await {
            Ok(export_body) => exported(export_body),
            Err(error) => refused(&error),
        },
        Direction::Import => {
            let import_body = ImportBody::new(body, &head.headers);
            match api_handler.import(disk_request, import_body, peer).await {
                Ok(ImportAnswer::Done(task)) => {
                    let body = text(StatusCode::OK, "text/plain", String::new());
                    last(with_task(body, &task))
                }
                Ok(ImportAnswer::Begun(task, end)) => {
                    last(with_task(Response::new(ResponseBody::of_end(end)), &task))
                }
                Err(error) => refused(&error),
            }
        }
    }
}

fn exported(export_body: ExportBody) -> Response<ResponseBody> {
    let ExportBody { bytes, content_type, file_name, task, pieces } = export_body;
    let mut response = Response::new(ResponseBody::of_stream(bytes, pieces));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    let disposition = format!("attachment; filename=\"{file_name}\"");
    if let Ok(disposition) = HeaderValue::try_from(disposition) {
        headers.insert(header::CONTENT_DISPOSITION, disposition);
    }
    with_task(response, &task)
}

fn with_task(mut response: Response<ResponseBody>, task: &str) -> Response<ResponseBody> {
    if let Ok(task) = HeaderValue::try_from(task) {
        response.headers_mut().insert(TASK_ID, task);
    }
    response
}

/// Answers with an error: its code and its parameters are the body.
pub(super) fn refused(error: &ApiError) -> Response<ResponseBody> {
    let status = status_of(&error.code);
    let mut response = last(text(status, "text/plain", format!("{error}\n")));
    if status == StatusCode::UNAUTHORIZED {
        let basic = HeaderValue::from_static("Basic realm=\"ringwayd\"");
        response.headers_mut().insert(header::WWW_AUTHENTICATE, basic);
    }
    response
}

/// Returns the HTTP status for an error code.
fn status_of(code: &str) -> StatusCode {
    match code {
        "SESSION_INVALID" | "SESSION_AUTHENTICATION_FAILED" => StatusCode::UNAUTHORIZED,
        "RBAC_PERMISSION_DENIED" | "SESSION_AUTHORIZATION_FAILED" => StatusCode::FORBIDDEN,
        "HANDLE_INVALID" | "UUID_INVALID" | "VDI_MISSING" => StatusCode::NOT_FOUND,
        "INVALID_VALUE" | "VALUE_NOT_SUPPORTED" | "IMPORT_ERROR" | "VDI_TOO_LARGE" => {
            StatusCode::BAD_REQUEST
        }
        "VDI_IN_USE"
        | "VDI_READONLY"
        | "OTHER_OPERATION_IN_PROGRESS"
        | "OPERATION_NOT_ALLOWED"
        | "RESTORE_INCOMPATIBLE_VERSION" => StatusCode::CONFLICT,
        "TOO_MANY_PENDING_TASKS" => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

/// Parses a request. `None` if a value is no word.
fn wanted(query: &str, headers: &HeaderMap) -> Option<DiskRequest> {
    let mut disk_request = DiskRequest::default();
    for pair in query.split('&') {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        match name {
            "session_id" => disk_request.session.session = word(value)?,
            "task_id" => disk_request.task = Some(word(value)?),
            "vdi" => disk_request.vdi = Some(word(value)?),
            "base" => disk_request.base = Some(word(value)?),
            "format" => disk_request.format = Some(word(value)?),
            "chunked" => disk_request.chunked = true,
            _ => {}
        }
    }
    disk_request.session = disk_request.session.with_headers(headers)?;
    Some(disk_request)
}

/// Returns name and password of HTTP's basic authentication (RFC 7617).
fn credentials(headers: &HeaderMap) -> Option<(String, String)> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, encoded) = value.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") || encoded.len() > CREDENTIALS_BYTES_MAX {
        return None;
    }
    let decoded = String::from_utf8(STANDARD.decode(encoded.trim()).ok()?).ok()?;
    let (user, password) = decoded.split_once(':')?;
    Some((user.to_owned(), password.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_is_asked_for_in_several_ways() {
        let of = |query: &str, pairs: &[(HeaderName, &'static str)]| {
            let pairs =
                pairs.iter().map(|(name, value)| (name.clone(), HeaderValue::from_static(value)));
            wanted(query, &pairs.collect())
        };
        let own = |text: &str| Some(text.to_owned());
        let found = of("session_id=OpaqueRef%3Aa&vdi=b-c&format=vhd&base=d&task_id=e&chunked", &[]);
        let expected = DiskRequest {
            session: SessionRequest { session: "OpaqueRef:a".to_owned(), credentials: None },
            task: own("e"),
            vdi: own("b-c"),
            base: own("d"),
            format: own("vhd"),
            chunked: true,
        };
        assert_eq!(found, Some(expected));
        let cookie = of("vdi=a", &[(header::COOKIE, "x=y; session_id=OpaqueRef:c")]);
        let cookie = cookie.unwrap().session;
        assert_eq!((cookie.session.as_str(), cookie.credentials), ("OpaqueRef:c", None));
        let basic = of("vdi=a", &[(header::AUTHORIZATION, "Basic cm9vdDphOmI=")]);
        let basic = basic.unwrap().session;
        assert_eq!(basic.credentials, Some(("root".to_owned(), "a:b".to_owned())));
        for odd in ["Basic !", "Basic cm9vdA==", "Bearer cm9vdDph", "Basic"] {
            let session = of("vdi=a", &[(header::AUTHORIZATION, odd)]).unwrap().session;
            assert_eq!(session.credentials, None);
        }
        for query in ["vdi=../etc", "format=a%00", "base=a b"] {
            assert_eq!(of(query, &[]), None, "{query}");
        }
    }

    #[test]
    fn a_path_may_end_with_a_slash() {
        for path in ["/export_raw_vdi", "/export_raw_vdi/"] {
            assert_eq!(Direction::of_path(path), Some(Direction::Export));
        }
        assert_eq!(Direction::of_path("/import_raw_vdi/"), Some(Direction::Import));
        assert_eq!(Direction::of_path("/export_raw_vdi//"), None);
    }
}
