//! Connection limits, and ends of connections.

use std::sync::Arc;

use tokio::io::AsyncWriteExt;

use super::{Echo, LONG, Room, ask, is_closed, json, port, read_answer, room, room_with, xml};
use crate::http::limits::ConnectionLimiter;
use crate::http::{ApiHandler, ApiListener, Server, tls_identity};

#[tokio::test]
async fn a_stop_lets_calls_end_and_cuts_off_who_waits() {
    let room = room();
    let (mut call, mut waits) = (room.connect().await, room.connect().await);
    let body = json("test.wait");
    let request = format!("POST /jsonrpc HTTP/1.1\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    call.write_all(request.as_bytes()).await.unwrap();
    room.echo.began.notified().await;
    let body = json("event.from");
    let request = format!("POST /jsonrpc HTTP/1.1\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    waits.write_all(request.as_bytes()).await.unwrap();
    room.echo.began.notified().await;
    let mut idle = room.connect().await;
    ask(&mut idle, "/", &xml("test.a")).await;

    let Room { dir, echo, server } = room;
    let stopping = tokio::spawn(server.stop());
    assert!(is_closed(&mut waits).await, "who waits is cut off");
    assert!(is_closed(&mut idle).await);
    assert!(!dir.path().join("socket").exists(), "nobody else comes");
    echo.go_on.notify_one();
    let (head, body) = read_answer(&mut call).await;
    assert!(head.starts_with("http/1.1 200") && body.contains("waited"), "{head} {body}");
    stopping.await.unwrap();
}

#[tokio::test]
async fn who_finds_no_place_waits_for_one() {
    let room = room_with(LONG, &ConnectionLimiter::new(1, 0, 1));
    let mut first = room.connect().await;
    ask(&mut first, "/", &xml("test.a")).await;
    let mut second = room.connect().await;
    let body = xml("test.b");
    let request = format!("POST / HTTP/1.1\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    second.write_all(request.as_bytes()).await.unwrap();
    let (_, body) = ask(&mut first, "/", &xml("test.c")).await;
    assert!(body.contains("test.c"), "the first is served");
    drop(first);
    let (_, body) = read_answer(&mut second).await;
    assert!(body.contains("test.b"), "{body}");
}

#[tokio::test]
async fn an_address_does_not_get_all_places() {
    let dir = tempfile::tempdir().unwrap();
    let tls = tls_identity(dir.path(), "host-1").unwrap().config;
    let api_listener = ApiListener::tcp("127.0.0.1:0,plain".parse().unwrap(), &tls).await.unwrap();
    let port = port(&api_listener);
    let api_handler: Arc<dyn ApiHandler> = Arc::new(Echo::default());
    let server = Server::patient(
        vec![api_listener],
        &api_handler,
        LONG,
        &ConnectionLimiter::new(8, 0, 2),
        Default::default(),
    );
    let from = async |address: &str| {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind(format!("{address}:0").parse().unwrap()).unwrap();
        socket.connect(([127, 0, 0, 1], port).into()).await.unwrap()
    };
    let mut held = [from("127.0.0.1").await, from("127.0.0.1").await];
    for stream in &mut held {
        ask(stream, "/", &xml("test.a")).await;
    }
    assert!(is_closed(&mut from("127.0.0.1").await).await);
    let (_, body) = ask(&mut from("127.0.0.2").await, "/", &xml("test.b")).await;
    assert!(body.contains("test.b"), "another address has its own");
    server.stop().await;
}
