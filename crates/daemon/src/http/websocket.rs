//! WebSocket for consoles in browsers: bytes in frames, without extensions.
//!
//! Source: RFC 6455. Frames of clients are masked, those of the server are not. Text frames are
//! treated as bytes.

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

/// Constant that is hashed with the key of a handshake (RFC 6455, 1.3).
const GUID: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
/// Subprotocol for bytes.
pub(super) const BINARY: &str = "binary";
/// Longest accepted frame, in bytes. Keyboard input is a few bytes.
const FRAME_BYTES_MAX: usize = 64 << 10;
/// Size of a read, in bytes.
const CHUNK_BYTES: usize = 16 << 10;
/// Longest payload of a control frame, in bytes.
const CONTROL_BYTES_MAX: usize = 125;
/// Most pings that wait for their answer. Further pings wait until the peer reads.
const REPLIES: usize = 4;
/// Bit of the last frame of a message.
const FIN: u8 = 0x80;
/// Bit of a masked payload.
const MASKED: u8 = 0x80;
/// Opcodes of sent frames: binary data, close, pong.
const BYTES: u8 = 2;
const CLOSE: u8 = 8;
const PONG: u8 = 10;
/// Status code for a peer that violates the protocol.
const PROTOCOL_ERROR: u16 = 1002;

/// Returns the accept value for the key of a WebSocket request. `None` if the request is invalid.
pub(super) fn accept(headers: &HeaderMap) -> Option<String> {
    let key = headers.get(header::SEC_WEBSOCKET_KEY)?.to_str().ok()?;
    let asked = has(headers, header::CONNECTION, "upgrade")
        && has(headers, header::UPGRADE, "websocket")
        && has(headers, header::SEC_WEBSOCKET_VERSION, "13");
    asked.then(|| answer_to(key))
}

/// Returns whether the client offers the binary subprotocol. Browsers expect it in the response.
pub(super) fn offers_binary(headers: &HeaderMap) -> bool {
    has(headers, header::SEC_WEBSOCKET_PROTOCOL, BINARY)
}

/// Returns whether a header contains this word.
fn has(headers: &HeaderMap, name: header::HeaderName, word: &str) -> bool {
    let values = headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
    let mut words = values.flat_map(|value| value.split(','));
    words.any(|one| one.trim().eq_ignore_ascii_case(word))
}

fn answer_to(key: &str) -> String {
    let text = format!("{}{GUID}", key.trim());
    STANDARD.encode(digest(&SHA1_FOR_LEGACY_USE_ONLY, text.as_bytes()))
}

/// Frame of a client.
#[derive(Debug, PartialEq, Eq)]
enum Frame {
    Bytes(Vec<u8>),
    Ping(Vec<u8>),
    /// Pong without a ping.
    Pong,
    Close,
}

/// Error for an invalid frame.
#[derive(Debug, PartialEq, Eq)]
struct Broken;

/// Takes the next frame out of the received bytes. `None` if it is not complete.
fn take(came: &mut Vec<u8>) -> Result<Option<Frame>, Broken> {
    let [first, second, rest @ ..] = came.as_slice() else { return Ok(None) };
    let (kind, short) = (first & 0x0f, usize::from(second & !MASKED));
    let (length, rest) = match (short, rest) {
        (126, [high, low, rest @ ..]) => (usize::from(u16::from_be_bytes([*high, *low])), rest),
        // Eight length bytes mean a frame that is too long.
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
        // A fragmented message is treated like several messages.
        0..=2 => Frame::Bytes(payload),
        8 => Frame::Close,
        9 => Frame::Ping(payload),
        10 => Frame::Pong,
        _ => return Err(Broken),
    };
    came.drain(..used);
    Ok(Some(frame))
}

/// Builds a frame of the server.
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

/// Carries bytes between a WebSocket and a console until either side ends.
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

/// Carries frames of the client to the console. Returns the answer to the close frame.
async fn inward(
    mut client: impl AsyncRead + Unpin,
    mut line: impl AsyncWrite + Unpin,
    reply: mpsc::Sender<Vec<u8>>,
) -> io::Result<Vec<u8>> {
    let mut came = Vec::new();
    loop {
        match take(&mut came) {
            Ok(Some(Frame::Bytes(bytes))) => line.write_all(&bytes).await?,
            // The send fails only if the other direction has ended. Then this one ends as well.
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

/// Carries console output and pongs to the client. Returns the close frame.
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
