//! Valid and invalid requests.

use std::time::Duration;

use tokio::io::AsyncWriteExt;

use super::{ask, is_closed, json, read_answer, room, room_with, xml};
use crate::http::limits::ConnectionLimiter;

#[tokio::test]
async fn each_path_speaks_its_encoding() {
    let room = room();
    let mut stream = room.connect().await;
    let (head, body) = ask(&mut stream, "/jsonrpc", &json("test.a")).await;
    assert!(head.starts_with("http/1.1 200"), "{head}");
    assert!(head.contains("\r\ncontent-type: application/json\r\n"), "{head}");
    assert!(head.contains("\r\nserver-timing: call;dur="), "{head}");
    assert_eq!(body, r#"{"jsonrpc":"2.0","result":"test.a of 2","id":7}"#);
    for path in ["/", "/RPC2", "/xmlrpc"] {
        let (head, body) = ask(&mut stream, path, &xml("test.a")).await;
        assert!(head.contains("\r\ncontent-type: text/xml\r\n"), "{head}");
        assert!(body.contains("<value>test.a of 0</value>"), "{body}");
    }
    let (head, body) = ask(&mut stream, "/jsonrpc", &json("test.fail")).await;
    assert!(head.starts_with("http/1.1 200"), "an error of the API is an answer: {head}");
    assert!(body.contains(r#""message":"TEST""#), "{body}");
}

#[tokio::test]
async fn what_is_no_call_gets_a_page_and_ends() {
    let room = room();
    for (path, body) in [
        ("/jsonrpc", "{"),
        ("/jsonrpc", "[]"),
        ("/jsonrpc", ""),
        ("/", "<methodCall>"),
        ("/", "<?xml version=\"1.0\"?><!DOCTYPE a [<!ENTITY b \"c\">]><a>&b;</a>"),
        ("/RPC2", "nonsense"),
    ] {
        let mut stream = room.connect().await;
        let (head, page) = ask(&mut stream, path, body).await;
        assert!(head.starts_with("http/1.1 500"), "{body}: {head}");
        assert!(head.contains("\r\ncontent-type: text/html\r\n"), "{head}");
        assert!(page.starts_with("<html>"), "{page}");
        assert!(is_closed(&mut stream).await);
    }
    let mut stream = room.connect().await;
    let (head, _) = ask(&mut stream, "/jsonrpc", &json("test.a")).await;
    assert!(head.starts_with("http/1.1 200"), "the next one is served");
}

#[tokio::test]
async fn a_body_that_is_too_long_is_not_kept() {
    let room = room();
    let heads = [
        "Content-Length: 307201\r\n",
        "Content-Length: 1125899906842624\r\nExpect: 100-continue\r\n",
        "Transfer-Encoding: chunked\r\n",
    ];
    for head in heads {
        let (mut reader, mut writer) = room.connect().await.into_split();
        let request = format!("POST /jsonrpc HTTP/1.1\r\nHost: h\r\n{head}\r\n");
        writer.write_all(request.as_bytes()).await.unwrap();
        let expects = head.contains("Expect");
        let chunked = head.contains("chunked");
        let sending = async {
            let block = " ".repeat(4096);
            // The server need not read the whole body.
            for _ in 0..if expects { 0 } else { 76 } {
                let text = if chunked { format!("1000\r\n{block}\r\n") } else { block.clone() };
                if writer.write_all(text.as_bytes()).await.is_err() {
                    break;
                }
            }
        };
        let ((answer, page), ()) = tokio::join!(read_answer(&mut reader), sending);
        assert!(answer.starts_with("http/1.1 500"), "{head}: {answer}");
        assert!(page.contains("longer than 307200 bytes"), "{page}");
        drop(writer);
        assert!(is_closed(&mut reader).await);
    }
}

#[tokio::test]
async fn a_body_of_the_limit_is_read() {
    let room = room();
    let mut stream = room.connect().await;
    let call = json("test.a");
    let body = format!("{call}{}", " ".repeat((300 << 10) - call.len()));
    let (head, _) = ask(&mut stream, "/jsonrpc", &body).await;
    assert!(head.starts_with("http/1.1 200"), "{head}");
}

#[tokio::test]
async fn other_paths_and_methods_are_refused() {
    let room = room();
    for (request, status, expected) in [
        ("GET /jsonrpc HTTP/1.1\r\nHost: h\r\n\r\n", "405", "Only POST"),
        ("POST /metrics HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n\r\nx", "405", "Only GET"),
        (
            "PUT /absent/ HTTP/1.1\r\nHost: h\r\nContent-Length: 9999999\r\n\
             Expect: 100-continue\r\n\r\n",
            "404",
            "nothing at",
        ),
        ("GET /export HTTP/1.1\r\nHost: h\r\n\r\n", "404", "nothing at"),
        ("PUT /export_raw_vdi HTTP/1.1\r\nHost: h\r\n\r\n", "405", "Only GET"),
        ("GET /export_raw_vdi?vdi=a HTTP/1.1\r\nHost: h\r\n\r\n", "404", "HANDLE_INVALID, a"),
    ] {
        let mut stream = room.connect().await;
        stream.write_all(request.as_bytes()).await.unwrap();
        let (head, body) = read_answer(&mut stream).await;
        assert!(head.starts_with(&format!("http/1.1 {status}")), "{request}: {head}");
        assert!(body.contains(expected), "{body}");
        assert!(is_closed(&mut stream).await);
    }
    let mut stream = room.connect().await;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: h\r\n\r\n").await.unwrap();
    let (head, body) = read_answer(&mut stream).await;
    assert!(head.contains("content-type: application/openmetrics-text"), "{head}");
    assert_eq!(body, "# EOF\n");
}

/// A client that sends its body first reads why it is refused, instead of a reset.
#[tokio::test]
async fn a_body_of_a_refused_request_is_read() {
    let room = room();
    let body = "x".repeat(900 << 10);
    for (method, path, status) in
        [("PUT", "/absent", "404"), ("POST", "/absent/", "404"), ("PUT", "/jsonrpc", "405")]
    {
        let mut stream = room.connect().await;
        let length = body.len();
        let head =
            format!("{method} {path} HTTP/1.1\r\nHost: h\r\nContent-Length: {length}\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        stream.write_all(body.as_bytes()).await.unwrap();
        let (head, _) = read_answer(&mut stream).await;
        assert!(head.starts_with(&format!("http/1.1 {status}")), "{method} {path}: {head}");
        assert!(is_closed(&mut stream).await);
    }
}

#[tokio::test]
async fn a_head_has_bounds() {
    let room = room();
    let many = "A: b\r\n".repeat(100);
    let long = format!("A: {}\r\n", "b".repeat(300 << 10));
    for headers in [many, long] {
        let mut stream = room.connect().await;
        let request = format!("POST / HTTP/1.1\r\nHost: h\r\n{headers}\r\n");
        // The server may refuse the request before it is sent completely.
        let _refused = stream.write_all(request.as_bytes()).await;
        let (head, _) = read_answer(&mut stream).await;
        assert!(head.starts_with("http/1.1 431"), "{head}");
    }
}

#[tokio::test]
async fn a_slow_head_and_an_idle_connection_end() {
    let room = room_with(Duration::from_millis(100), &ConnectionLimiter::default());
    let mut slow = room.connect().await;
    slow.write_all(b"POST / HTTP/1.1\r\nHost:").await.unwrap();
    assert!(is_closed(&mut slow).await);
    let mut idle = room.connect().await;
    ask(&mut idle, "/", &xml("test.a")).await;
    assert!(is_closed(&mut idle).await);
}

#[tokio::test]
async fn a_mistake_in_a_call_ends_that_call_alone() {
    let room = room();
    let mut stream = room.connect().await;
    let (head, body) = ask(&mut stream, "/jsonrpc", &json("test.panic")).await;
    assert!(head.starts_with("http/1.1 200") && body.contains("INTERNAL_ERROR"), "{head} {body}");
    let (_, body) = ask(&mut stream, "/jsonrpc", &json("test.a")).await;
    assert!(body.contains("test.a of 2"), "the same connection goes on: {body}");
}

#[tokio::test]
async fn what_a_connection_has_ends_with_it() {
    let room = room();
    let mut stream = room.connect().await;
    let (_, body) = ask(&mut stream, "/jsonrpc", &json("test.peer")).await;
    assert!(body.contains("connection_session: Some("), "{body}");
    drop(stream);
    room.echo.left.notified().await;
}

/// The socket is forwarded to a TCP port, and a web page calls it.
#[tokio::test]
async fn a_page_in_a_browser_is_not_served_at_the_socket() {
    let room = room();
    let login = json("session.login_with_password");
    for (head, body) in [
        ("POST /jsonrpc HTTP/1.1\r\nOrigin: http://localhost:8080", login.as_str()),
        ("POST / HTTP/1.1\r\nContent-Type: text/plain\r\nOrigin: null", ""),
        ("CONNECT /console?uuid=echo HTTP/1.1\r\norigin: http://page", ""),
        ("GET /console?uuid=echo HTTP/1.1\r\nORIGIN: http://page", ""),
    ] {
        let mut stream = room.connect().await;
        let request = format!("{head}\r\nHost: h\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        stream.write_all(request.as_bytes()).await.unwrap();
        let (answer, why) = read_answer(&mut stream).await;
        assert!(answer.starts_with("http/1.1 403") && why.contains("browser"), "{head}: {answer}");
        assert!(is_closed(&mut stream).await, "{head}");
    }
}

#[tokio::test]
async fn a_caller_is_known_by_where_it_comes_from() {
    let room = room();
    let mut stream = room.connect().await;
    let body = json("test.peer");
    let request = format!(
        "POST /jsonrpc HTTP/1.1\r\nHost: h\r\nUser-Agent: {}\r\nContent-Length: {}\r\n\r\n{body}",
        "x".repeat(500),
        body.len()
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let (_, body) = read_answer(&mut stream).await;
    assert!(body.contains("Unix"), "{body}");
    assert!(body.contains(&"x".repeat(128)) && !body.contains(&"x".repeat(129)), "{body}");
}
