use std::future::pending;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::Notify;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};
use toolstack::fut::Fut;
use xenapi::envelope::Call;
use xenapi::{ApiError, Value};

use super::places::Places;
use super::{Answers, Door, NoConsole, Peer, Server, Wanted, server_config};

/// Longer than any test takes.
const LONG: Duration = Duration::from_secs(120);

/// Answers with what it was asked.
#[derive(Debug, Default)]
struct Echo {
    began: Arc<Notify>,
    go_on: Arc<Notify>,
}

impl Answers for Echo {
    fn call(&self, call: Call, peer: Peer) -> Fut<'static, Result<Value, ApiError>> {
        let (began, go_on) = (Arc::clone(&self.began), Arc::clone(&self.go_on));
        Box::pin(async move {
            match call.method.as_str() {
                "test.panic" => panic!("on purpose"),
                "test.fail" => Err(ApiError::new("TEST", ["it fails"])),
                "test.peer" => Ok(Value::text(format!("{peer:?}"))),
                "test.wait" => {
                    began.notify_one();
                    go_on.notified().await;
                    Ok(Value::text("waited"))
                }
                "event.from" => {
                    began.notify_one();
                    pending().await
                }
                method => Ok(Value::text(format!("{method} of {}", call.params.len()))),
            }
        })
    }

    fn console(&self, wanted: Wanted) -> Fut<'static, Result<UnixStream, NoConsole>> {
        Box::pin(async move {
            match (wanted.session.as_str(), wanted.uuid.as_deref()) {
                ("root", Some("echo")) => {
                    let (near, far) = UnixStream::pair().unwrap();
                    tokio::spawn(async move {
                        let (mut reader, mut writer) = far.into_split();
                        tokio::io::copy(&mut reader, &mut writer).await
                    });
                    Ok(near)
                }
                ("root", _) => Err(NoConsole::Absent),
                _ => Err(NoConsole::Denied),
            }
        })
    }

    fn metrics(&self) -> String {
        "# EOF\n".to_owned()
    }
}

struct Room {
    dir: tempfile::TempDir,
    echo: Arc<Echo>,
    server: Server,
}

/// A server on a Unix socket.
fn room() -> Room {
    room_with(LONG, &Places::default())
}

fn room_with(head_deadline: Duration, places: &Places) -> Room {
    let dir = tempfile::tempdir().unwrap();
    let echo = Arc::new(Echo::default());
    let answers: Arc<dyn Answers> = echo.clone();
    let door = Door::unix(dir.path().join("socket")).unwrap();
    let server = Server::patient(vec![door], &answers, head_deadline, places);
    Room { dir, echo, server }
}

impl Room {
    fn socket(&self) -> PathBuf {
        self.dir.path().join("socket")
    }

    async fn connect(&self) -> UnixStream {
        connect(&self.socket()).await
    }
}

async fn connect(path: &Path) -> UnixStream {
    UnixStream::connect(path).await.unwrap()
}

/// A head and a body; the connection is read no further.
async fn read_answer(stream: &mut (impl AsyncRead + Unpin)) -> (String, String) {
    let mut all = Vec::new();
    let head = loop {
        if let Some(end) = all.windows(4).position(|four| four == b"\r\n\r\n") {
            break String::from_utf8(all[..end].to_vec()).unwrap().to_ascii_lowercase();
        }
        let mut byte = [0];
        assert_eq!(stream.read(&mut byte).await.unwrap(), 1, "{}", String::from_utf8_lossy(&all));
        all.extend(byte);
    };
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
    stream.read_exact(&mut body).await.unwrap();
    (head, String::from_utf8(body).unwrap())
}

async fn ask(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    path: &str,
    body: &str,
) -> (String, String) {
    let request =
        format!("POST {path} HTTP/1.1\r\nHost: h\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    stream.write_all(request.as_bytes()).await.unwrap();
    read_answer(stream).await
}

/// The server has nothing more to say.
async fn is_closed(stream: &mut (impl AsyncRead + Unpin)) -> bool {
    let mut rest = Vec::new();
    // A reset is an end as well.
    let _reset = stream.read_to_end(&mut rest).await;
    rest.is_empty()
}

fn json(method: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","method":"{method}","params":[1,2],"id":7}}"#)
}

fn xml(method: &str) -> String {
    format!("<methodCall><methodName>{method}</methodName><params/></methodCall>")
}

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
            // The server need not take all of it.
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
    for (request, status, told) in [
        ("GET /jsonrpc HTTP/1.1\r\nHost: h\r\n\r\n", "405", "Only POST"),
        ("POST /metrics HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n\r\nx", "405", "Only GET"),
        (
            "PUT /import_raw_vdi/ HTTP/1.1\r\nHost: h\r\nContent-Length: 9999999\r\n\r\n",
            "404",
            "nothing at",
        ),
        ("GET /export_raw_vdi HTTP/1.1\r\nHost: h\r\n\r\n", "404", "nothing at"),
    ] {
        let mut stream = room.connect().await;
        stream.write_all(request.as_bytes()).await.unwrap();
        let (head, body) = read_answer(&mut stream).await;
        assert!(head.starts_with(&format!("http/1.1 {status}")), "{request}: {head}");
        assert!(body.contains(told), "{body}");
        assert!(is_closed(&mut stream).await);
    }
    let mut stream = room.connect().await;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: h\r\n\r\n").await.unwrap();
    let (head, body) = read_answer(&mut stream).await;
    assert!(head.contains("content-type: application/openmetrics-text"), "{head}");
    assert_eq!(body, "# EOF\n");
}

#[tokio::test]
async fn a_head_has_bounds() {
    let room = room();
    let many = "A: b\r\n".repeat(100);
    let long = format!("A: {}\r\n", "b".repeat(300 << 10));
    for headers in [many, long] {
        let mut stream = room.connect().await;
        let request = format!("POST / HTTP/1.1\r\nHost: h\r\n{headers}\r\n");
        // It may be refused before it is sent.
        let _refused = stream.write_all(request.as_bytes()).await;
        let (head, _) = read_answer(&mut stream).await;
        assert!(head.starts_with("http/1.1 431"), "{head}");
    }
}

#[tokio::test]
async fn a_slow_head_and_an_idle_connection_end() {
    let room = room_with(Duration::from_millis(100), &Places::default());
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
    let room = room_with(LONG, &Places::new(1, 0, 1));
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
    let tls = server_config(dir.path(), "host-1").unwrap();
    let door = Door::tcp("127.0.0.1:0,plain".parse().unwrap(), &tls).await.unwrap();
    let port = port(&door);
    let answers: Arc<dyn Answers> = Arc::new(Echo::default());
    let server = Server::patient(vec![door], &answers, LONG, &Places::new(8, 0, 2));
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

#[tokio::test]
async fn a_console_carries_bytes_both_ways() {
    let room = room();
    for (query, status) in
        [("uuid=echo", "401"), ("uuid=other&session_id=root", "404"), ("session_id=root", "400")]
    {
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
    room.server.stop().await;
    assert!(is_closed(&mut stream).await);
}

#[tokio::test]
async fn a_browser_has_a_console_by_a_websocket() {
    const UPGRADE: &str = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                           Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
    let room = room();
    for (query, headers, status) in [
        ("uuid=echo&session_id=root", "", "426"),
        ("uuid=echo", UPGRADE, "401"),
        // Any page can make a browser send its cookies.
        ("uuid=echo", &format!("{UPGRADE}Cookie: session_id=root\r\n"), "401"),
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
    // Its mask changes nothing.
    stream.write_all(&[0x82, 0x82, 0, 0, 0, 0, b'h', b'i']).await.unwrap();
    let mut frame = [0; 4];
    stream.read_exact(&mut frame).await.unwrap();
    assert_eq!(frame, [0x82, 2, b'h', b'i']);
    room.server.stop().await;
    assert!(is_closed(&mut stream).await);
}

#[tokio::test]
async fn tls_and_plain_are_different_doors() {
    let dir = tempfile::tempdir().unwrap();
    let tls = server_config(dir.path(), "host-1").unwrap();
    let answers: Arc<dyn Answers> = Arc::new(Echo::default());
    let mut doors = Vec::new();
    for listen in ["127.0.0.1:0", "127.0.0.1:0,plain"] {
        doors.push(Door::tcp(listen.parse().unwrap(), &tls).await.unwrap());
    }
    let ports: Vec<u16> = doors.iter().map(port).collect();
    let server = Server::begin(doors, &answers);

    let mut roots = RootCertStore::empty();
    let pem = dir.path().join("certificate.pem");
    roots.add(CertificateDer::from_pem_file(&pem).unwrap()).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let connector = TlsConnector::from(Arc::new(config));
    for name in ["localhost", "127.0.0.1", "host-1"] {
        let tcp = TcpStream::connect(("127.0.0.1", ports[0])).await.unwrap();
        let name = ServerName::try_from(name).unwrap();
        let mut stream = connector.connect(name, tcp).await.unwrap();
        let (_, body) = ask(&mut stream, "/jsonrpc", &json("test.peer")).await;
        assert!(body.contains("Tcp(127.0.0.1:"), "{body}");
    }
    // Who speaks no TLS there is cut off, and holds up nobody.
    let mut silent = TcpStream::connect(("127.0.0.1", ports[0])).await.unwrap();
    let mut wrong = TcpStream::connect(("127.0.0.1", ports[0])).await.unwrap();
    wrong.write_all(b"POST / HTTP/1.1\r\n\r\n").await.unwrap();
    let mut rest = Vec::new();
    let _reset = wrong.read_to_end(&mut rest).await;
    assert!(!String::from_utf8_lossy(&rest).contains("HTTP"));
    let mut plain = TcpStream::connect(("127.0.0.1", ports[1])).await.unwrap();
    let (_, body) = ask(&mut plain, "/jsonrpc", &json("test.peer")).await;
    assert!(body.contains("Tcp(127.0.0.1:"), "{body}");
    server.stop().await;
    assert!(is_closed(&mut silent).await);
}

fn port(door: &Door) -> u16 {
    let text = door.to_string();
    let text = text.trim_end_matches(",plain");
    text.rsplit(':').next().unwrap().parse().unwrap()
}

#[tokio::test]
async fn an_address_that_is_taken_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let tls = server_config(dir.path(), "h").unwrap();
    let first = Door::tcp("127.0.0.1:0,plain".parse().unwrap(), &tls).await.unwrap();
    let taken = first.to_string();
    let error = Door::tcp(taken.parse().unwrap(), &tls).await.unwrap_err().to_string();
    assert!(error.contains(&taken) && error.contains("--listen"), "{error}");
}
