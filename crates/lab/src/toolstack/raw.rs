//! Single raw call, which reads from the response header what client libraries hide.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

/// Deadline of a response.
const DEADLINE: Duration = Duration::from_secs(60);

/// Encoding of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Dialect {
    Json,
    Xml,
}

/// Facts about a response.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Answer {
    /// Duration of the call as reported by the server, in milliseconds.
    pub(super) server_ms: f64,
    /// Length of the body in bytes.
    pub(super) bytes: usize,
}

/// Calls a method whose only parameter is the session.
pub(super) fn call(
    socket: &Path,
    dialect: Dialect,
    (method, session): (&str, &str),
) -> Result<Answer> {
    let (path, kind, body) = match dialect {
        Dialect::Json => {
            let id = r#""jsonrpc":"2.0","id":1"#;
            let body = format!(r#"{{{id},"method":"{method}","params":["{session}"]}}"#);
            ("/jsonrpc", "application/json", body)
        }
        Dialect::Xml => {
            let params = format!("<param><value><string>{session}</string></value></param>");
            let call = format!("<methodName>{method}</methodName><params>{params}</params>");
            let body = format!("<?xml version=\"1.0\"?><methodCall>{call}</methodCall>");
            ("/RPC2", "text/xml", body)
        }
    };
    let mut stream = UnixStream::connect(socket).context("cannot connect to the daemon")?;
    stream.set_read_timeout(Some(DEADLINE))?;
    let length = body.len();
    write!(
        stream,
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\n\
         Content-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    )?;
    let mut text = Vec::new();
    stream.read_to_end(&mut text).context("the daemon does not answer")?;
    read(&text)
}

fn read(text: &[u8]) -> Result<Answer> {
    let end =
        text.windows(4).position(|four| four == b"\r\n\r\n").context("an answer has no head")?;
    let head = String::from_utf8_lossy(&text[..end]).to_ascii_lowercase();
    ensure!(head.starts_with("http/1.1 200"), "the daemon answers {head}");
    let timing = head.split("server-timing: call;dur=").nth(1);
    let timing = timing.and_then(|rest| rest.lines().next()?.trim().parse().ok());
    let server_ms = timing.context("an answer says nothing of the server's time")?;
    let body = &text[end + 4..];
    let ok = String::from_utf8_lossy(&body[..body.len().min(400)]).contains("OpaqueRef:");
    ensure!(ok, "the answer has no records");
    Ok(Answer { server_ms, bytes: body.len() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_servers_time_is_read_from_the_head() {
        let answer =
            b"HTTP/1.1 200 OK\r\nServer-Timing: call;dur=12.5\r\na: b\r\n\r\n{\"OpaqueRef:1\"}";
        assert_eq!(read(answer).unwrap(), Answer { server_ms: 12.5, bytes: 15 });
        for wrong in [
            &b"HTTP/1.1 500 x\r\nServer-Timing: call;dur=1\r\n\r\nOpaqueRef:"[..],
            b"HTTP/1.1 200 OK\r\n\r\nOpaqueRef:",
            b"HTTP/1.1 200 OK\r\nServer-Timing: call;dur=1\r\n\r\nan error",
            b"nothing",
        ] {
            read(wrong).unwrap_err();
        }
    }
}
