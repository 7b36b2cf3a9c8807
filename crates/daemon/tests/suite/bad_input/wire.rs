//! Bodies that are not calls.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use super::World;

/// Longer than the daemon discards an oversized body.
const PATIENCE: Duration = Duration::from_secs(60);
/// Most memory in bytes that the daemon may gain from all requests.
const GROWTH_MAX: u64 = 20 << 20;
/// Longest body, in bytes.
const BODY_BYTES_MAX: usize = 300 << 10;

/// Sends these bytes and returns the response until the connection ends.
fn answer(port: u16, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    // The connection may close before everything is sent.
    let _ = stream.write_all(bytes);
    let mut all = Vec::new();
    let mut piece = [0; 4096];
    loop {
        match stream.read(&mut piece) {
            Ok(0) => break,
            Ok(count) => all.extend_from_slice(&piece[..count]),
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => break,
            Err(error) => panic!("{error}: {}", String::from_utf8_lossy(&all)),
        }
    }
    String::from_utf8_lossy(&all).into_owned()
}

fn request(path: &str, body: &[u8]) -> Vec<u8> {
    let head = format!("POST {path} HTTP/1.1\r\nHost: h\r\nContent-Length: {}\r\n\r\n", body.len());
    [head.as_bytes(), body].concat()
}

/// Returns the resident memory of a process, in bytes.
fn resident(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().trim().parse::<u64>().unwrap() << 10
}

fn entities() -> String {
    let mut text = "<?xml version=\"1.0\"?><!DOCTYPE a [<!ENTITY e0 \"ha\">".to_owned();
    for number in 1..20 {
        let before = number - 1;
        text += &format!("<!ENTITY e{number} \"&e{before};&e{before};\">");
    }
    text + "]><methodCall><methodName>&e19;</methodName></methodCall>"
}

#[test]
fn what_is_no_call_gets_a_page_and_the_next_one_is_served() {
    let mut world = World::new();
    let url = world.daemon.url().unwrap();
    let port: u16 = url.rsplit_once(':').unwrap().1.parse().unwrap();
    let xml = |params: &str| {
        format!("<methodCall><methodName>VM.get_all</methodName>{params}</methodCall>").into_bytes()
    };
    let deep = |open: &str, close: &str| [open.repeat(1_000), close.repeat(1_000)].concat();
    let values = "<param><value/></param>".repeat(12_000);
    let call = r#"{"jsonrpc":"2.0","method":"VM.get_all","params":["#;
    let bodies: Vec<(&str, Vec<u8>)> = vec![
        ("/", Vec::new()),
        ("/", b"nonsense".to_vec()),
        ("/RPC2", b"<methodCall>".to_vec()),
        ("/xmlrpc", xml("<params><param><value>")),
        ("/", [&xml("")[..20], b"\xff\xfe"].concat()),
        ("/", entities().into_bytes()),
        ("/", xml(&deep("<value><array><data>", "</data></array></value>"))),
        ("/jsonrpc", Vec::new()),
        ("/jsonrpc", b"{".to_vec()),
        ("/jsonrpc", b"[]".to_vec()),
        ("/jsonrpc", b"null".to_vec()),
        ("/jsonrpc", b"{\"jsonrpc\":\"2.0\",\"method\":\"\xff\"}".to_vec()),
        ("/jsonrpc", format!("{call}{}", "[".repeat(100_000)).into_bytes()),
        ("/jsonrpc", format!("{call}{}]}}", deep("[", "]")).into_bytes()),
        ("/jsonrpc", format!("{call}{}0]}}", "0,".repeat(140_000)).into_bytes()),
        ("/jsonrpc", vec![b' '; BODY_BYTES_MAX + 1]),
        ("/", vec![b'<'; BODY_BYTES_MAX + 1]),
    ];
    let before = (world.dump(), resident(world.daemon.process.id()));
    for (path, body) in &bodies {
        let shown = String::from_utf8_lossy(&body[..body.len().min(60)]).into_owned();
        let response = answer(port, &request(path, body));
        assert!(response.starts_with("HTTP/1.1 500"), "{path} {shown}: {response}");
        assert!(response.contains("text/html"), "{path} {shown}: {response}");
        world.call("VM.get_all", &[]);
    }
    // A call with many values below the limit is valid.
    let many = request("/", &xml(&format!("<params>{values}</params>")));
    let many =
        String::from_utf8(many).unwrap().replacen("Host: h", "Host: h\r\nConnection: close", 1);
    let many = answer(port, many.as_bytes());
    assert!(many.starts_with("HTTP/1.1 200") && many.contains("SESSION_INVALID"), "{many}");
    let heads = [
        "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1125899906842624\r\nExpect: 100-continue\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: nonsense\r\n\r\n",
        "nonsense\r\n\r\n",
    ];
    for head in heads {
        let response = answer(port, head.as_bytes());
        assert!(!response.starts_with("HTTP/1.1 200"), "{head}: {response}");
    }
    // An endless chunked body is read only up to the longest valid body.
    let mut endless = b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
    for _ in 0..1_000 {
        endless.extend_from_slice(b"1000\r\n");
        endless.extend_from_slice(&[b'<'; 0x1000]);
        endless.extend_from_slice(b"\r\n");
    }
    let response = answer(port, &endless);
    assert!(response.is_empty() || response.starts_with("HTTP/1.1 500"), "{response}");
    assert!(world.dump() == before.0);
    let grown = resident(world.daemon.process.id()).saturating_sub(before.1);
    assert!(grown < GROWTH_MAX, "it has grown by {grown} bytes");
}
