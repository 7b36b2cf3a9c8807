//! Subset of HTTP/1.1 that calls need.
//!
//! Source: RFC 9112.

use std::io::{self, BufRead, Read, Write};

use super::Address;
use super::stream::Link;
use crate::envelope::{self, Call, Encoding};
use crate::limits::Limits;

/// Longest response head in bytes.
pub const HEAD_BYTES_MAX: usize = 16 << 10;
/// Longest reported reason of a refusal, in bytes.
const REASON_BYTES_MAX: usize = 1 << 10;
/// Most bytes that are allocated for a body before it arrives, for any announced length.
const BODY_BYTES_AHEAD: usize = 1 << 20;
/// Value of the `User-Agent` header.
const USER_AGENT: &str = concat!("ringway/", env!("CARGO_PKG_VERSION"));

/// HTTP response.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) body: Vec<u8>,
    /// True if the connection stays open for the next call.
    pub(super) keep: bool,
}

/// Reason why there is no response.
#[derive(Debug)]
pub(super) enum HttpError {
    /// The connection failed.
    Io(io::Error),
    /// The status is this one instead of 200.
    Status(u16),
    /// The status is this one instead of 200, and the body names the reason.
    Refused(u16, String),
    /// The response is not valid HTTP, or exceeds a limit.
    Malformed(&'static str),
}

impl HttpError {
    /// Returns whether the server requires a valid session.
    pub(super) fn wants_session(&self) -> bool {
        matches!(self, Self::Status(401 | 403) | Self::Refused(401 | 403, _))
    }
}

impl From<io::Error> for HttpError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// Sends a call and reads its response.
pub(super) fn exchange(link: &mut Link, to: &Address, call: &Call) -> Result<Answer, HttpError> {
    let encoding = call.dialect.encoding();
    let path = match encoding {
        Encoding::Xml => "/",
        Encoding::Json => "/jsonrpc",
    };
    let body = envelope::call(call);
    let mut request = format!(
        "POST {path} HTTP/1.1\r\nHost: {}\r\nUser-Agent: {USER_AGENT}\r\nContent-Type: {}\r\n\
         Content-Length: {}\r\n\r\n",
        to.host(),
        encoding.content_type(),
        body.bytes()
    );
    request.push_str(&body.to_text());
    // A server that rejects a call early responds before it has read the whole request.
    let sent = link.writer().write_all(request.as_bytes()).and_then(|()| link.writer().flush());
    let head = match (read_head(&mut link.reader), sent) {
        (Err(_), Err(error)) => return Err(HttpError::Io(error)),
        (head, _) => head?,
    };
    if head.status != 200 {
        return Err(HttpError::Status(head.status));
    }
    let body = read_body(&mut link.reader, head.length, Limits::ANSWER.bytes)?;
    Ok(Answer { body, keep: head.keep })
}

/// Requests a connection to a target that is no call, and reads the response head.
pub(super) fn connect(
    link: &mut Link,
    to: &Address,
    target: &str,
    session: &str,
) -> Result<(), HttpError> {
    let request = format!(
        "CONNECT {target} HTTP/1.1\r\nHost: {}\r\nUser-Agent: {USER_AGENT}\r\n\
         Cookie: session_id={session}\r\n\r\n",
        to.host()
    );
    link.writer().write_all(request.as_bytes())?;
    link.writer().flush()?;
    accepted(link).map(drop)
}

/// Requests a resource, and reads the response head. Returns the length of the body in bytes, if it is
/// known.
pub(super) fn get(
    link: &mut Link,
    to: &Address,
    target: &str,
    session: &str,
) -> Result<Option<u64>, HttpError> {
    let request = format!(
        "GET {target} HTTP/1.1\r\nHost: {}\r\nUser-Agent: {USER_AGENT}\r\n\
         Cookie: session_id={session}\r\n\r\n",
        to.host()
    );
    link.writer().write_all(request.as_bytes())?;
    link.writer().flush()?;
    match accepted(link)?.length {
        Length::Bytes(bytes) => Ok(Some(bytes as u64)),
        Length::Open => Ok(None),
        Length::Chunked => Err(HttpError::Malformed("the length of a resource is unknown")),
    }
}

/// Sends the head of a request that brings a resource. Without a length, its body has chunks.
pub(super) fn put(
    link: &mut Link,
    to: &Address,
    target: &str,
    session: &str,
    length: Option<u64>,
) -> Result<(), HttpError> {
    let length = match length {
        Some(length) => format!("Content-Length: {length}"),
        None => "Transfer-Encoding: chunked".to_owned(),
    };
    let request = format!(
        "PUT {target} HTTP/1.1\r\nHost: {}\r\nUser-Agent: {USER_AGENT}\r\n\
         Cookie: session_id={session}\r\n{length}\r\n\r\n",
        to.host()
    );
    Ok(link.writer().write_all(request.as_bytes())?)
}

/// Reads the head of a response, whose status must be 200.
pub(super) fn accepted(link: &mut Link) -> Result<Head, HttpError> {
    let head = read_head(&mut link.reader)?;
    if head.status == 200 {
        return Ok(head);
    }
    Err(match reason(&mut link.reader, head.length) {
        Some(why) => HttpError::Refused(head.status, why),
        None => HttpError::Status(head.status),
    })
}

/// Returns the reason of a refusal, a single line.
fn reason(from: &mut impl BufRead, length: Length) -> Option<String> {
    let body = read_body(from, length, REASON_BYTES_MAX).ok()?;
    let text = String::from_utf8(body).ok()?;
    let plain = |text: &str| !text.is_empty() && !text.contains(char::is_control);
    Some(text.trim().to_owned()).filter(|text| plain(text))
}

/// Head of a response.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Head {
    status: u16,
    length: Length,
    keep: bool,
}

/// End of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Length {
    Bytes(usize),
    Chunked,
    /// End of the connection.
    Open,
}

fn read_head(from: &mut impl BufRead) -> Result<Head, HttpError> {
    let mut left = HEAD_BYTES_MAX;
    let mut text = line(from, &mut left)?;
    // `httparse` would skip an empty line.
    if !text.contains(' ') {
        return Err(HttpError::Malformed("no status"));
    }
    let mut lines = 1;
    // Each line is parsed when it arrives: a server that speaks no HTTP may send no second one.
    loop {
        text.push_str("\r\n");
        let mut headers = vec![httparse::EMPTY_HEADER; lines];
        let mut response = httparse::Response::new(&mut headers);
        if response.parse(text.as_bytes()).map_err(malformed)?.is_complete() {
            return head(&response);
        }
        text.push_str(&line(from, &mut left)?);
        lines += 1;
    }
}

fn malformed(error: httparse::Error) -> HttpError {
    HttpError::Malformed(match error {
        httparse::Error::Version => "no HTTP/1",
        httparse::Error::Status => "the status is no number",
        httparse::Error::HeaderName => "a header has no name",
        _ => "the head has an invalid character",
    })
}

fn head(response: &httparse::Response<'_, '_>) -> Result<Head, HttpError> {
    let status = response.code.ok_or(HttpError::Malformed("no status"))?;
    let mut head = Head { status, length: Length::Open, keep: response.version == Some(1) };
    for header in response.headers.iter() {
        // `line` has refused all that is not UTF-8.
        let value = String::from_utf8_lossy(header.value);
        apply(&mut head, &header.name.to_ascii_lowercase(), value.trim())?;
    }
    if head.length == Length::Open {
        head.keep = false;
    }
    Ok(head)
}

fn apply(head: &mut Head, name: &str, value: &str) -> Result<(), HttpError> {
    match name {
        "content-length" => {
            let bytes =
                value.parse().map_err(|_| HttpError::Malformed("the length is no number"))?;
            if head.length != Length::Open {
                return Err(HttpError::Malformed("two lengths"));
            }
            head.length = Length::Bytes(bytes);
        }
        "transfer-encoding" if value.eq_ignore_ascii_case("chunked") => {
            if head.length != Length::Open {
                return Err(HttpError::Malformed("two lengths"));
            }
            head.length = Length::Chunked;
        }
        "transfer-encoding" => return Err(HttpError::Malformed("an unknown transfer encoding")),
        "content-encoding" => return Err(HttpError::Malformed("a content encoding")),
        "connection" if value.eq_ignore_ascii_case("close") => head.keep = false,
        "connection" if value.eq_ignore_ascii_case("keep-alive") => head.keep = true,
        _ => {}
    }
    Ok(())
}

/// Reads a line without its line end. `left` is the number of bytes that may still come.
fn line(from: &mut impl BufRead, left: &mut usize) -> Result<String, HttpError> {
    let mut bytes = Vec::new();
    from.take(*left as u64).read_until(b'\n', &mut bytes)?;
    *left -= bytes.len();
    if bytes.pop() != Some(b'\n') {
        let cut = *left > 0;
        return Err(if cut {
            HttpError::Io(ended())
        } else {
            HttpError::Malformed("the head is too long")
        });
    }
    if bytes.last() == Some(&b'\r') {
        bytes.pop();
    }
    String::from_utf8(bytes).map_err(|_| HttpError::Malformed("the head is not UTF-8"))
}

fn read_body(from: &mut impl BufRead, length: Length, most: usize) -> Result<Vec<u8>, HttpError> {
    let too_long = HttpError::Malformed("the body is too long: ask for less at once");
    match length {
        Length::Bytes(bytes) if bytes > most => Err(too_long),
        Length::Bytes(bytes) => {
            let mut body = Vec::with_capacity(bytes.min(BODY_BYTES_AHEAD));
            append(from, bytes, &mut body)?;
            Ok(body)
        }
        Length::Chunked => chunks(from, most),
        Length::Open => {
            let mut body = Vec::new();
            from.take(most as u64 + 1).read_to_end(&mut body)?;
            if body.len() > most { Err(too_long) } else { Ok(body) }
        }
    }
}

fn append(from: &mut impl BufRead, bytes: usize, to: &mut Vec<u8>) -> Result<(), HttpError> {
    let received = from.take(bytes as u64).read_to_end(to)?;
    if received < bytes { Err(HttpError::Io(ended())) } else { Ok(()) }
}

fn chunks(from: &mut impl BufRead, most: usize) -> Result<Vec<u8>, HttpError> {
    let mut body = Vec::new();
    loop {
        let mut left = HEAD_BYTES_MAX;
        let size = line(from, &mut left)?;
        let digits = size.split(';').next().unwrap_or_default().trim();
        let bytes = usize::from_str_radix(digits, 16);
        let bytes = bytes.map_err(|_| HttpError::Malformed("the size of a chunk is no number"))?;
        if bytes > most - body.len() {
            return Err(HttpError::Malformed("the body is too long: ask for less at once"));
        }
        if bytes == 0 {
            // Trailer fields after the last chunk are ignored.
            while !line(from, &mut left)?.is_empty() {}
            return Ok(body);
        }
        append(from, bytes, &mut body)?;
        if !line(from, &mut left)?.is_empty() {
            return Err(HttpError::Malformed("a chunk is longer than its size"));
        }
    }
}

fn ended() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the connection ended before the answer")
}

#[cfg(test)]
mod tests;
