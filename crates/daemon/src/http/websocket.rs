//! A WebSocket for consoles in browsers: bytes in frames, no extensions.
//!
//! Source: RFC 6455. A client's frames are masked, ours are not; what is text for a browser are bytes
//! here.

#[cfg(test)]
mod tests;

use std::io;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hyper::header::{self, HeaderMap};
use ring::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, split};
use tokio::net::UnixStream;
use tokio::sync::mpsc;

/// What a key is hashed with (RFC 6455, 1.3).
const GUID: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
/// The protocol inside: bytes.
pub(super) const BINARY: &str = "binary";
/// Longest frame that is taken, in bytes: a keyboard sends a few.
const FRAME_BYTES_MAX: usize = 64 << 10;
/// What is read at once, in bytes.
const CHUNK_BYTES: usize = 16 << 10;
/// Longest payload of a frame that is about the connection, in bytes.
const CONTROL_BYTES_MAX: usize = 125;
/// Answers to pings that wait to be sent; more of them wait for the peer to read.
const REPLIES: usize = 4;
/// The last frame of a frame's message.
const FIN: u8 = 0x80;
/// The payload is masked.
const MASKED: u8 = 0x80;
/// What is in a frame of ours: bytes, an end, an answer to a ping.
const BYTES: u8 = 2;
const CLOSE: u8 = 8;
const PONG: u8 = 10;
/// Why a peer is left that keeps to no protocol.
const PROTOCOL_ERROR: u16 = 1002;

/// What answers the key of a request that asks for a WebSocket; nothing if it does not.
pub(super) fn accept(headers: &HeaderMap) -> Option<String> {
    let key = headers.get(header::SEC_WEBSOCKET_KEY)?.to_str().ok()?;
    let asked = has(headers, header::CONNECTION, "upgrade")
        && has(headers, header::UPGRADE, "websocket")
        && has(headers, header::SEC_WEBSOCKET_VERSION, "13");
    asked.then(|| answer_to(key))
}

/// A browser offers to speak bytes by this name, and wants it back.
pub(super) fn offers_binary(headers: &HeaderMap) -> bool {
    has(headers, header::SEC_WEBSOCKET_PROTOCOL, BINARY)
}

/// One of the words of a header.
fn has(headers: &HeaderMap, name: header::HeaderName, word: &str) -> bool {
    let values = headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
    let mut words = values.flat_map(|value| value.split(','));
    words.any(|one| one.trim().eq_ignore_ascii_case(word))
}

fn answer_to(key: &str) -> String {
    let text = format!("{}{GUID}", key.trim());
    STANDARD.encode(digest(&SHA1_FOR_LEGACY_USE_ONLY, text.as_bytes()))
}

/// What a client has sent.
#[derive(Debug, PartialEq, Eq)]
enum Frame {
    Bytes(Vec<u8>),
    Ping(Vec<u8>),
    /// An answer to a ping that nobody has sent.
    Pong,
    Close,
}

/// A frame that no client may send.
#[derive(Debug, PartialEq, Eq)]
struct Broken;

/// Takes the next frame off what has come; nothing if it is not whole.
fn take(came: &mut Vec<u8>) -> Result<Option<Frame>, Broken> {
    let [first, second, rest @ ..] = came.as_slice() else { return Ok(None) };
    let (kind, short) = (first & 0x0f, usize::from(second & !MASKED));
    let (length, rest) = match (short, rest) {
        (126, [high, low, rest @ ..]) => (usize::from(u16::from_be_bytes([*high, *low])), rest),
        // Eight bytes of length are for frames that are too long.
        (127, _) => return Err(Broken),
        (126, _) => return Ok(None),
        (short, rest) => (short, rest),
    };
    let control = kind & 0x08 != 0;
    let whole = first & FIN != 0 && length <= CONTROL_BYTES_MAX;
    if first & 0x70 != 0 || second & MASKED == 0 || length > FRAME_BYTES_MAX || control && !whole {
        return Err(Broken);
    }
    let Some((mask, rest)) = rest.split_first_chunk::<4>() else { return Ok(None) };
    let Some(payload) = rest.get(..length) else { return Ok(None) };
    let payload = payload.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask);
    let payload: Vec<u8> = payload.collect();
    let used = came.len() - (rest.len() - length);
    let frame = match kind {
        // A message in parts is the same to us as several.
        0..=2 => Frame::Bytes(payload),
        8 => Frame::Close,
        9 => Frame::Ping(payload),
        10 => Frame::Pong,
        _ => return Err(Broken),
    };
    came.drain(..used);
    Ok(Some(frame))
}

/// A frame of ours.
fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![FIN | kind];
    match u16::try_from(payload.len()) {
        Ok(length) if length < 126 => frame.push(length as u8),
        Ok(length) => {
            frame.push(126);
            frame.extend(length.to_be_bytes());
        }
        Err(_) => {
            frame.push(127);
            frame.extend((payload.len() as u64).to_be_bytes());
        }
    }
    frame.extend_from_slice(payload);
    frame
}

/// Carries bytes between a WebSocket and a line until either side ends.
pub(super) async fn carry(
    socket: impl AsyncRead + AsyncWrite,
    line: &mut UnixStream,
) -> io::Result<()> {
    let (from_client, mut to_client) = split(socket);
    let (from_line, to_line) = line.split();
    let (reply, replies) = mpsc::channel(REPLIES);
    let last = tokio::select! {
        ended = inward(from_client, to_line, reply) => ended?,
        ended = outward(from_line, &mut to_client, replies) => ended?,
    };
    to_client.write_all(&last).await?;
    to_client.shutdown().await
}

/// What a client sends goes to the line. Ends with the frame that answers the end.
async fn inward(
    mut client: impl AsyncRead + Unpin,
    mut line: impl AsyncWrite + Unpin,
    reply: mpsc::Sender<Vec<u8>>,
) -> io::Result<Vec<u8>> {
    let mut came = Vec::new();
    loop {
        match take(&mut came) {
            Ok(Some(Frame::Bytes(bytes))) => line.write_all(&bytes).await?,
            // Nobody takes replies when the other direction has ended: then this one has as well.
            Ok(Some(Frame::Ping(payload))) => drop(reply.send(frame(PONG, &payload)).await),
            Ok(Some(Frame::Pong)) => {}
            Ok(Some(Frame::Close)) => return Ok(frame(CLOSE, &[])),
            Err(Broken) => return Ok(frame(CLOSE, &PROTOCOL_ERROR.to_be_bytes())),
            Ok(None) => {
                let mut chunk = (&mut client).take(CHUNK_BYTES as u64);
                if chunk.read_buf(&mut came).await? == 0 {
                    return Ok(Vec::new());
                }
            }
        }
    }
}

/// What the line says goes to the client, and so do replies. Ends with the frame that says so.
async fn outward(
    mut line: impl AsyncRead + Unpin,
    client: &mut (impl AsyncWrite + Unpin),
    mut replies: mpsc::Receiver<Vec<u8>>,
) -> io::Result<Vec<u8>> {
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        let next = tokio::select! {
            count = line.read(&mut chunk) => match count? {
                0 => return Ok(frame(CLOSE, &[])),
                count => frame(BYTES, chunk.get(..count).unwrap_or_default()),
            },
            Some(reply) = replies.recv() => reply,
        };
        client.write_all(&next).await?;
        client.flush().await?;
    }
}
