use tokio::io::{DuplexStream, duplex};
use tokio::task::JoinHandle;
use tokio_tungstenite::tungstenite::Bytes;

use super::*;

type Carried = JoinHandle<Result<(), Error>>;

/// Starts to carry bytes. Returns the connection of a client and the other end of the line.
fn carried() -> (DuplexStream, UnixStream, Carried) {
    let (client, socket) = duplex(1 << 10);
    let (mut near, line) = UnixStream::pair().unwrap();
    (client, line, tokio::spawn(async move { carry(socket, &mut near).await }))
}

async fn browser(connection: DuplexStream) -> WebSocketStream<DuplexStream> {
    WebSocketStream::from_raw_socket(connection, Role::Client, None).await
}

#[test]
fn a_key_is_answered_as_the_standard_does() {
    let mut headers = HeaderMap::new();
    let mut given = |name: header::HeaderName, value: &'static str| {
        headers.insert(name, header::HeaderValue::from_static(value));
        accept(&headers)
    };
    assert_eq!(given(header::SEC_WEBSOCKET_KEY, "dGhlIHNhbXBsZSBub25jZQ=="), None);
    assert_eq!(given(header::SEC_WEBSOCKET_VERSION, "13"), None);
    assert_eq!(given(header::UPGRADE, "WebSocket"), None);
    let answer = given(header::CONNECTION, "keep-alive, Upgrade");
    assert_eq!(answer.as_deref(), Some("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="));
    assert_eq!(given(header::SEC_WEBSOCKET_VERSION, "8"), None);
}

#[tokio::test]
async fn bytes_go_both_ways_until_the_client_closes() {
    let (connection, mut line, carried) = carried();
    let mut client = browser(connection).await;
    client.send(Message::binary(b"ls ".as_slice())).await.unwrap();
    client.send(Message::text("-l\n")).await.unwrap();
    client.send(Message::Ping(Bytes::from_static(b"!"))).await.unwrap();
    let mut input = [0; 6];
    line.read_exact(&mut input).await.unwrap();
    assert_eq!(&input, b"ls -l\n");
    let pong = client.next().await.unwrap().unwrap();
    assert_eq!(pong, Message::Pong(Bytes::from_static(b"!")));
    line.write_all(b"bin").await.unwrap();
    let output = client.next().await.unwrap().unwrap();
    assert_eq!(output, Message::binary(b"bin".as_slice()));
    client.close(None).await.unwrap();
    assert_eq!(client.next().await.unwrap().unwrap(), Message::Close(None));
    assert!(client.next().await.is_none());
    carried.await.unwrap().unwrap();
    assert_eq!(line.read(&mut input).await.unwrap(), 0, "the line is free for other clients");
}

#[tokio::test]
async fn the_client_is_closed_when_the_line_ends() {
    let (connection, mut line, carried) = carried();
    line.write_all(b"halted").await.unwrap();
    drop(line);
    let mut client = browser(connection).await;
    let output = client.next().await.unwrap().unwrap();
    assert_eq!(output, Message::binary(b"halted".as_slice()));
    assert_eq!(client.next().await.unwrap().unwrap(), Message::Close(None));
    carried.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_connection_that_ends_without_a_close_frees_the_line() {
    let (connection, mut line, carried) = carried();
    drop(connection);
    drop(carried.await.unwrap());
    assert_eq!(line.read(&mut [0]).await.unwrap(), 0);
}

/// Frames are raw, because the library does not send invalid ones. Masks are zero.
#[tokio::test]
async fn a_client_that_violates_the_protocol_is_told_why() {
    for (sent, code) in [
        (&[0x82, 1, b'x'][..], CloseCode::Protocol),
        (&[0xc2, 0x81, 0, 0, 0, 0, b'x'], CloseCode::Protocol),
        (&[0x83, 0x81, 0, 0, 0, 0, b'x'], CloseCode::Protocol),
        (&[0x09, 0x81, 0, 0, 0, 0, b'x'], CloseCode::Protocol),
        (&[0x82, 0xff, 0, 0, 0, 0, 0, 1, 0, 1, 0, 0, 0, 0], CloseCode::Size),
        (&[0x82, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], CloseCode::Size),
        (&[0x81, 0x81, 0, 0, 0, 0, 0xff], CloseCode::Invalid),
    ] {
        let (mut connection, mut line, carried) = carried();
        connection.write_all(sent).await.unwrap();
        let mut client = browser(connection).await;
        let closed = client.next().await.unwrap().unwrap();
        let Message::Close(Some(reason)) = closed else { panic!("{sent:?}: {closed:?}") };
        assert_eq!(reason.code, code, "{sent:?}: {reason:?}");
        assert!(!reason.reason.is_empty());
        carried.await.unwrap().unwrap();
        assert_eq!(line.read(&mut [0]).await.unwrap(), 0, "{sent:?}");
    }
}
