//! HTTP responses.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::{mem, vec};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use hyper::{Response, StatusCode, header};
use tokio::sync::mpsc;
use xenapi::envelope::{self, BadBody, Piece};

/// Size of a chunk in bytes. Short pieces are gathered so that they do not cause thousands of
/// writes.
const CHUNK_BYTES: usize = 64 << 10;
/// Pieces of at least this size, in bytes, are sent without copying.
const ALONE_BYTES: usize = 16 << 10;

/// Length of a body that is not known before its end.
const UNKNOWN: u64 = u64::MAX;

/// Body of a response. Shared records are copied when they are sent, one chunk at a time.
#[derive(Debug)]
pub(super) struct ResponseBody {
    pieces: vec::IntoIter<Piece>,
    /// Content that is sent before the pieces.
    whole: Option<Bytes>,
    /// Piece that did not fit into the last chunk.
    next: Option<Piece>,
    /// Pieces that arrive while the response is sent, instead of the others.
    stream: Option<mpsc::Receiver<io::Result<Bytes>>>,
    bytes_left: u64,
}

impl ResponseBody {
    pub(super) fn of(body: envelope::Body) -> Self {
        let bytes_left = body.bytes() as u64;
        Self {
            pieces: body.into_pieces().into_iter(),
            whole: None,
            next: None,
            stream: None,
            bytes_left,
        }
    }

    fn of_text(text: String) -> Self {
        let bytes_left = text.len() as u64;
        let pieces = if text.is_empty() { Vec::new() } else { vec![Piece::Text(text)] };
        Self { pieces: pieces.into_iter(), whole: None, next: None, stream: None, bytes_left }
    }

    /// Creates a body that has no bytes, and ends when the stream does.
    pub(super) fn of_end(stream: mpsc::Receiver<io::Result<Bytes>>) -> Self {
        Self::of_stream(UNKNOWN, stream)
    }

    /// Creates a body of `bytes_left` that arrive later.
    pub(super) fn of_stream(bytes_left: u64, stream: mpsc::Receiver<io::Result<Bytes>>) -> Self {
        Self {
            pieces: Vec::new().into_iter(),
            whole: None,
            next: None,
            stream: Some(stream),
            bytes_left,
        }
    }

    /// Creates a body of shared bytes. They are not copied.
    pub(super) fn of_bytes(content: Bytes) -> Self {
        let bytes_left = content.len() as u64;
        let whole = Some(content).filter(|content| !content.is_empty());
        Self { pieces: Vec::new().into_iter(), whole, next: None, stream: None, bytes_left }
    }

    fn chunk(&mut self) -> Option<Bytes> {
        if let Some(whole) = self.whole.take() {
            return Some(whole);
        }
        let first = mem::take(&mut self.next).or_else(|| self.pieces.next())?;
        if first.as_ref().len() >= ALONE_BYTES {
            return Some(Bytes::from_owner(first));
        }
        let mut chunk = Vec::with_capacity(CHUNK_BYTES.min(self.bytes_left as usize));
        chunk.extend_from_slice(first.as_ref());
        for piece in self.pieces.by_ref() {
            let bytes = piece.as_ref();
            if bytes.len() >= ALONE_BYTES || chunk.len() + bytes.len() > CHUNK_BYTES {
                self.next = Some(piece);
                break;
            }
            chunk.extend_from_slice(bytes);
        }
        Some(chunk.into())
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let this = self.get_mut();
        if let Some(stream) = &mut this.stream {
            let piece = std::task::ready!(stream.poll_recv(context));
            if let Some(Ok(piece)) = &piece {
                this.bytes_left = this.bytes_left.saturating_sub(piece.len() as u64);
            }
            return Poll::Ready(piece.map(|piece| piece.map(Frame::data)));
        }
        let chunk = this.chunk();
        this.bytes_left -= chunk.as_ref().map_or(0, |chunk| chunk.len() as u64);
        Poll::Ready(chunk.map(|chunk| Ok(Frame::data(chunk))))
    }

    fn is_end_stream(&self) -> bool {
        self.bytes_left == 0
    }

    fn size_hint(&self) -> SizeHint {
        match self.bytes_left {
            UNKNOWN => SizeHint::default(),
            bytes_left => SizeHint::with_exact(bytes_left),
        }
    }
}

/// Builds a text response of this content type.
pub(super) fn text(status: StatusCode, kind: &'static str, text: String) -> Response<ResponseBody> {
    let mut response = Response::new(ResponseBody::of_text(text));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, header::HeaderValue::from_static(kind));
    response
}

/// Marks a response as the last of its connection.
pub(super) fn last(mut response: Response<ResponseBody>) -> Response<ResponseBody> {
    let close = header::HeaderValue::from_static("close");
    response.headers_mut().insert(header::CONNECTION, close);
    response
}

/// Builds the response to an invalid call. It is the last of its connection.
pub(super) fn bad(bad: &BadBody) -> Response<ResponseBody> {
    last(text(StatusCode::INTERNAL_SERVER_ERROR, "text/html", bad.page()))
}

#[cfg(test)]
mod tests {
    use xenapi::envelope::{Call, Dialect, Encoding};
    use xenapi::{Encoded, Value};

    use super::*;

    fn chunks(mut response_body: ResponseBody) -> Vec<Bytes> {
        let mut context = Context::from_waker(std::task::Waker::noop());
        let mut chunks = Vec::new();
        while let Poll::Ready(Some(frame)) = Pin::new(&mut response_body).poll_frame(&mut context) {
            chunks.push(frame.unwrap().into_data().unwrap());
            assert_eq!(response_body.size_hint().exact(), Some(response_body.bytes_left));
        }
        assert!(response_body.is_end_stream());
        chunks
    }

    fn answer(sizes: &[usize]) -> (String, ResponseBody) {
        let kept = |size: &usize| Value::Encoded(Encoded::new(Value::text("x".repeat(*size))));
        let call = Call { method: "T.t".into(), params: Vec::new(), dialect: Dialect::Xml };
        let outcome = Ok(Value::Set(sizes.iter().map(kept).collect()));
        let body = envelope::answer(&call, &outcome);
        assert_eq!(call.dialect.encoding(), Encoding::Xml);
        (body.to_text(), ResponseBody::of(body))
    }

    #[test]
    fn short_pieces_go_together() {
        let (text, response_body) = answer(&[10; 1000]);
        let chunks = chunks(response_body);
        assert_eq!(chunks.concat(), text.as_bytes());
        assert_eq!(chunks.len(), 1 + text.len() / CHUNK_BYTES);
    }

    #[test]
    fn a_long_piece_goes_alone() {
        let (text, response_body) = answer(&[10, ALONE_BYTES, 10]);
        let chunks = chunks(response_body);
        assert_eq!(chunks.concat(), text.as_bytes());
        assert_eq!(chunks.len(), 3);
    }

    #[test]
    fn nothing_is_no_frame() {
        assert!(chunks(ResponseBody::of_text(String::new())).is_empty());
    }
}
