//! Image on a web server, read by ranges (RFC 9110, section 14).

use std::io::{self, Read as _, Write as _};

use model::spec::HttpAddress;

use super::stream::DeadlineStream;
use super::{Connection, Version, changed};
use crate::SourceError;

/// Longest head of a reply in bytes.
const HEAD_MAX: usize = 16 << 10;
/// Most fields of a head.
const FIELDS_MAX: usize = 64;

pub(super) struct HttpSource {
    address: HttpAddress,
    /// Connection that the server keeps. `None` if it has closed the last one.
    stream: Option<DeadlineStream>,
    version: Version,
}

/// Parsed head of a reply, and the bytes behind it that were received with it.
struct Head {
    status: u16,
    /// First byte, last byte and size of the image.
    range: Option<(u64, u64, u64)>,
    length: Option<u64>,
    stamp: String,
    keeps: bool,
    rest: Vec<u8>,
}

impl HttpSource {
    pub(super) fn connect(address: &HttpAddress) -> Result<Self, SourceError> {
        let version = Version { size: 0, stamp: String::new() };
        let mut source = Self { address: address.clone(), stream: None, version };
        let mut first = [0];
        let head = source.request(0, &mut first)?;
        let size = head.range.map(|(.., size)| size).unwrap_or(0);
        source.version = Version { size, stamp: head.stamp };
        Ok(source)
    }

    /// Fetches a range, on the connection that is there or on a new one.
    fn request(&mut self, offset: u64, out: &mut [u8]) -> Result<Head, Failure> {
        let HttpAddress { server, path } = &self.address;
        let mut stream = match self.stream.take() {
            Some(stream) => stream,
            None => DeadlineStream::tcp(server).map_err(Failure::Io)?,
        };
        stream.begin();
        let last = offset + out.len() as u64 - 1;
        let request = format!(
            "GET {path} HTTP/1.1\r\nHost: {server}\r\nRange: bytes={offset}-{last}\r\n\
             Accept-Encoding: identity\r\nUser-Agent: ringway\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).map_err(Failure::Io)?;
        let head = read_head(&mut stream)?;
        self.check(&head, offset, last)?;
        let Some(rest) = out.get_mut(..head.rest.len()) else {
            return Err(Failure::Answer("it sends more than the range".into()));
        };
        rest.copy_from_slice(&head.rest);
        let missing = out.get_mut(head.rest.len()..).unwrap_or_default();
        stream.read_exact(missing).map_err(Failure::Io)?;
        if head.keeps {
            self.stream = Some(stream);
        }
        Ok(head)
    }

    /// Checks that a reply has the range, of the same image.
    fn check(&self, head: &Head, offset: u64, last: u64) -> Result<(), Failure> {
        match head.status {
            206 => {}
            200 => {
                let problem = "the server ignores ranges; use one that answers with status 206";
                return Err(Failure::Answer(problem.into()));
            }
            416 if self.version.size > 0 => {
                return Err(Failure::Changed("it is shorter than before".into()));
            }
            // The server, or one behind it, is busy or gone for now.
            status @ (408 | 429 | 502 | 503 | 504) => return Err(Failure::Gone(status)),
            // The image was there.
            status @ (401 | 403 | 404 | 410) if self.version.size > 0 => {
                return Err(Failure::Gone(status));
            }
            status => return Err(Failure::Answer(format!("the server answers status {status}"))),
        }
        let Some((from, to, size)) = head.range else {
            return Err(Failure::Answer("a reply does not tell its range".into()));
        };
        if self.version.size > 0 && (size, &head.stamp) != (self.version.size, &self.version.stamp)
        {
            return Err(Failure::Changed(format!(
                "it has {size} bytes and the version {:?} now",
                head.stamp
            )));
        }
        let length = last - offset + 1;
        if (from, to) != (offset, last) || head.length.is_some_and(|found| found != length) {
            return Err(Failure::Answer("a reply has another range".into()));
        }
        Ok(())
    }
}

/// Failure of one attempt.
enum Failure {
    Io(io::Error),
    /// Status of a server that does not have the image for now.
    Gone(u16),
    Answer(String),
    Changed(String),
}

impl From<Failure> for SourceError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Io(error) => Self::Unreachable(format!("{error}; check the server")),
            Failure::Gone(status) => {
                Self::Unreachable(format!("the server answers status {status}; check the server"))
            }
            Failure::Answer(problem) => Self::Failed(problem),
            Failure::Changed(what) => changed(what),
        }
    }
}

fn read_head(stream: &mut DeadlineStream) -> Result<Head, Failure> {
    let mut received = Vec::new();
    loop {
        let mut part = [0; 4096];
        let count = stream.read(&mut part).map_err(Failure::Io)?;
        if count == 0 {
            return Err(Failure::Io(io::ErrorKind::UnexpectedEof.into()));
        }
        received.extend_from_slice(part.get(..count).unwrap_or_default());
        if let Some(head) = parse_head(&received)? {
            return Ok(head);
        }
        if received.len() > HEAD_MAX {
            return Err(Failure::Answer("the head of a reply is too long".into()));
        }
    }
}

/// Parses the head of a reply. `None` if it is not complete.
fn parse_head(received: &[u8]) -> Result<Option<Head>, Failure> {
    let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
    let mut reply = httparse::Response::new(&mut fields);
    let parsed = reply.parse(received);
    let parsed =
        parsed.map_err(|error| Failure::Answer(format!("a reply is not HTTP: {error}")))?;
    let httparse::Status::Complete(bytes) = parsed else { return Ok(None) };
    let field = |name: &str| {
        let found = reply.headers.iter().find(|field| field.name.eq_ignore_ascii_case(name))?;
        std::str::from_utf8(found.value).ok().map(str::trim)
    };
    let is_closed = field("connection").is_some_and(|value| value.eq_ignore_ascii_case("close"));
    if field("transfer-encoding").is_some() {
        return Err(Failure::Answer("a reply has a transfer coding; send plain ranges".into()));
    }
    // A strong tag says more than a time.
    let stamp = field("etag").or_else(|| field("last-modified")).unwrap_or_default().to_owned();
    Ok(Some(Head {
        status: reply.code.unwrap_or(0),
        range: field("content-range").and_then(parse_range),
        length: field("content-length").and_then(|value| value.parse().ok()),
        stamp,
        keeps: reply.version == Some(1) && !is_closed,
        rest: received.get(bytes..).unwrap_or_default().to_vec(),
    }))
}

/// Parses `bytes FIRST-LAST/SIZE`.
fn parse_range(text: &str) -> Option<(u64, u64, u64)> {
    let (range, size) = text.strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = range.split_once('-')?;
    Some((first.parse().ok()?, last.parse().ok()?, size.parse().ok()?))
}

impl Connection for HttpSource {
    fn version(&self) -> &Version {
        &self.version
    }

    fn read_at(&mut self, offset: u64, out: &mut [u8]) -> Result<(), SourceError> {
        if out.is_empty() {
            return Ok(());
        }
        self.request(offset, out).map(drop).map_err(SourceError::from)
    }
}
