//! Serial consoles.

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{is_closed, read_answer, room};

#[tokio::test]
async fn a_console_carries_bytes_both_ways() {
    let room = room();
    for (query, status) in [
        ("uuid=echo&session_id=other", "401"),
        ("uuid=other&session_id=root", "404"),
        ("session_id=root", "400"),
    ] {
        let mut stream = room.connect().await;
        let request = format!("CONNECT /console?{query} HTTP/1.1\r\nHost: h\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let (head, _) = read_answer(&mut stream).await;
        assert!(head.starts_with(&format!("http/1.1 {status}")), "{query}: {head}");
    }
    let mut stream = room.connect().await;
    let request = "CONNECT /console?uuid=echo HTTP/1.1\r\nCookie: session_id=root\r\n\r\nearly ";
    stream.write_all(request.as_bytes()).await.unwrap();
    let (head, _) = read_answer(&mut stream).await;
    assert!(head.starts_with("http/1.1 200"), "{head}");
    stream.write_all(b"late").await.unwrap();
    let mut echo = [0; 10];
    stream.read_exact(&mut echo).await.unwrap();
    assert_eq!(&echo, b"early late");
    // A connection over the Unix socket has a session, which ends when it becomes a console.
    let mut unnamed = room.connect().await;
    let request = "CONNECT /console?uuid=echo HTTP/1.1\r\nHost: h\r\n\r\nhello";
    unnamed.write_all(request.as_bytes()).await.unwrap();
    let (head, _) = read_answer(&mut unnamed).await;
    assert!(head.starts_with("http/1.1 200"), "{head}");
    room.echo.left.notified().await;
    let mut echo = [0; 5];
    unnamed.read_exact(&mut echo).await.unwrap();
    assert_eq!(&echo, b"hello");
    room.server.stop().await;
    assert!(is_closed(&mut stream).await && is_closed(&mut unnamed).await);
}

#[tokio::test]
async fn a_console_ends_with_its_session() {
    let room = room();
    let mut stream = room.connect().await;
    let request = "CONNECT /console?uuid=echo&session_id=root HTTP/1.1\r\nHost: h\r\n\r\nhi";
    stream.write_all(request.as_bytes()).await.unwrap();
    let (head, _) = read_answer(&mut stream).await;
    assert!(head.starts_with("http/1.1 200"), "{head}");
    let mut echo = [0; 2];
    stream.read_exact(&mut echo).await.unwrap();
    room.echo.session_ended.notify_one();
    assert!(is_closed(&mut stream).await);
}

#[tokio::test]
async fn a_browser_has_a_console_by_a_websocket() {
    const UPGRADE: &str = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                           Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
    let room = room();
    for (query, headers, status) in [
        ("uuid=echo&session_id=root", "", "426"),
        ("uuid=echo&session_id=other", UPGRADE, "401"),
        // Any web page can make a browser send its cookies.
        ("uuid=echo&session_id=other", &format!("{UPGRADE}Cookie: session_id=root\r\n"), "401"),
        ("uuid=other&session_id=root", UPGRADE, "404"),
    ] {
        let mut stream = room.connect().await;
        let request = format!("GET /console?{query} HTTP/1.1\r\nHost: h\r\n{headers}\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let (head, _) = read_answer(&mut stream).await;
        assert!(head.starts_with(&format!("http/1.1 {status}")), "{query}: {head}");
    }
    let mut stream = room.connect().await;
    let request = format!(
        "GET /console?uuid=echo&session_id=root HTTP/1.1\r\nHost: h\r\n\
         Sec-WebSocket-Protocol: binary\r\n{UPGRADE}\r\n"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let (head, _) = read_answer(&mut stream).await;
    for part in ["http/1.1 101", "s3pplmbitxaq9kygzzhzrbk+xoo=", "protocol: binary"] {
        assert!(head.contains(part), "{head}");
    }
    // The mask is zero, so the payload is unchanged.
    stream.write_all(&[0x82, 0x82, 0, 0, 0, 0, b'h', b'i']).await.unwrap();
    let mut frame = [0; 4];
    stream.read_exact(&mut frame).await.unwrap();
    assert_eq!(frame, [0x82, 2, b'h', b'i']);
    room.server.stop().await;
    assert!(is_closed(&mut stream).await);
}
