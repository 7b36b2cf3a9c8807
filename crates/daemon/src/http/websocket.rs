//! WebSocket for consoles in browsers (RFC 6455): messages carry bytes, without extensions.

#[cfg(test)]
mod tests;

use futures_util::{Sink, SinkExt, Stream, StreamExt};
use hyper::header::{self, HeaderMap};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::frame::CloseFrame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Error, Message};

/// Subprotocol for bytes.
pub(super) const BINARY: &str = "binary";
/// Longest accepted message, in bytes. Keyboard input is a few bytes.
const MESSAGE_BYTES_MAX: usize = 64 << 10;
/// Size of a read, in bytes.
const CHUNK_BYTES: usize = 16 << 10;

/// Returns the accept value for the key of a WebSocket request. `None` if the request is invalid.
pub(super) fn accept(headers: &HeaderMap) -> Option<String> {
    let key = headers.get(header::SEC_WEBSOCKET_KEY)?;
    let asked = has(headers, header::CONNECTION, "upgrade")
        && has(headers, header::UPGRADE, "websocket")
        && has(headers, header::SEC_WEBSOCKET_VERSION, "13");
    asked.then(|| derive_accept_key(key.as_bytes()))
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

/// Carries bytes between a WebSocket and a console until either side ends. The library answers
/// pings and close frames. A client that violates the protocol gets a close frame with the reason.
///
/// # Errors
///
/// Either connection broke.
pub(super) async fn carry(
    socket: impl AsyncRead + AsyncWrite + Unpin,
    line: &mut UnixStream,
) -> Result<(), Error> {
    let config = WebSocketConfig::default()
        .read_buffer_size(CHUNK_BYTES)
        .write_buffer_size(0)
        .max_message_size(Some(MESSAGE_BYTES_MAX))
        .max_frame_size(Some(MESSAGE_BYTES_MAX));
    let mut socket = WebSocketStream::from_raw_socket(socket, Role::Server, Some(config)).await;
    let last = {
        let (client, messages) = (&mut socket).split();
        let (from_line, to_line) = line.split();
        tokio::select! {
            ended = inward(messages, to_line) => ended?,
            ended = outward(from_line, client) => ended?,
        }
    };
    if let Some(last) = last {
        socket.send(last).await?;
    }
    Ok(socket.get_mut().shutdown().await?)
}

/// Carries messages of the client to the console. Returns the close frame for a client that
/// violated the protocol, `None` if the connection is closed.
async fn inward(
    mut messages: impl Stream<Item = Result<Message, Error>> + Unpin,
    mut line: impl AsyncWrite + Unpin,
) -> Result<Option<Message>, Error> {
    while let Some(message) = messages.next().await {
        match message {
            Ok(message @ (Message::Binary(_) | Message::Text(_))) => {
                line.write_all(&message.into_data()).await?;
            }
            // After a close frame, the next read sends the answer and ends the stream.
            Ok(_) => {}
            Err(Error::Protocol(error)) => return Ok(Some(close(CloseCode::Protocol, &error))),
            Err(Error::Capacity(error)) => return Ok(Some(close(CloseCode::Size, &error))),
            Err(Error::Utf8(error)) => return Ok(Some(close(CloseCode::Invalid, &error))),
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

fn close(code: CloseCode, error: &impl ToString) -> Message {
    Message::Close(Some(CloseFrame { code, reason: error.to_string().into() }))
}

/// Carries console output to the client until the console ends. Returns the close frame.
async fn outward(
    mut line: impl AsyncRead + Unpin,
    mut client: impl Sink<Message, Error = Error> + Unpin,
) -> Result<Option<Message>, Error> {
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        match line.read(&mut chunk).await? {
            0 => return Ok(Some(Message::Close(None))),
            count => {
                let bytes = chunk.get(..count).unwrap_or_default().to_vec();
                client.send(Message::binary(bytes)).await?;
            }
        }
    }
}
