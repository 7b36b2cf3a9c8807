//! Tests of the server with real sockets and a handler that echoes its calls.

mod calls;
mod console;
mod doors;
mod ends;
mod web;

use std::future::pending;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::Notify;
use toolstack::boxed_future::BoxFuture;
use xenapi::envelope::Call;
use xenapi::{ApiError, Value};

use super::limits::ConnectionLimiter;
use super::{ApiHandler, ApiListener, ConsoleError, ConsoleLine, ConsoleRequest, Peer, Server};
use super::{DiskRequest, ExportBody, ImportAnswer, ImportBody, RestoreRequest};
use crate::sessions::ConnectionSession;

/// Longer than any test.
const LONG: Duration = Duration::from_secs(120);

/// Handler that answers with its input.
#[derive(Debug, Default)]
struct Echo {
    began: Arc<Notify>,
    go_on: Arc<Notify>,
    left: Arc<Notify>,
    session_ended: Arc<Notify>,
}

impl ApiHandler for Echo {
    fn call(&self, call: Call, peer: Peer) -> BoxFuture<'static, Result<Value, ApiError>> {
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

    fn connection_closed(&self, _: &ConnectionSession) {
        self.left.notify_one();
    }

    fn console(
        &self,
        console_request: ConsoleRequest,
        peer: Peer,
    ) -> BoxFuture<'static, Result<ConsoleLine, ConsoleError>> {
        let session_ended = Arc::clone(&self.session_ended);
        Box::pin(async move {
            let session = match (console_request.session.as_str(), peer.connection_session) {
                ("", Some(_)) => "root",
                (named, _) => named,
            };
            match (session, console_request.uuid.as_deref()) {
                ("root", Some("echo")) => {
                    let (near, far) = UnixStream::pair().unwrap();
                    tokio::spawn(async move {
                        let (mut reader, mut writer) = far.into_split();
                        tokio::io::copy(&mut reader, &mut writer).await
                    });
                    let ended = async move { session_ended.notified().await };
                    Ok(ConsoleLine { stream: near, session_ended: Box::pin(ended) })
                }
                ("root", _) => Err(ConsoleError::Absent),
                _ => Err(ConsoleError::Denied),
            }
        })
    }

    fn export(
        &self,
        disk_request: DiskRequest,
        _: Peer,
    ) -> BoxFuture<'static, Result<ExportBody, ApiError>> {
        Box::pin(async move { Err(ApiError::new("HANDLE_INVALID", disk_request.vdi)) })
    }

    fn import(
        &self,
        _: DiskRequest,
        _: ImportBody,
        _: Peer,
    ) -> BoxFuture<'static, Result<ImportAnswer, ApiError>> {
        Box::pin(async move { Ok(ImportAnswer::Done("OpaqueRef:task".to_owned())) })
    }

    fn restore(
        &self,
        _: RestoreRequest,
        _: ImportBody,
        _: Peer,
    ) -> BoxFuture<'static, Result<(), ApiError>> {
        Box::pin(async move { Ok(()) })
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

/// Creates a server on a Unix socket.
fn room() -> Room {
    room_with(LONG, &ConnectionLimiter::default())
}

fn room_with(head_deadline: Duration, connection_limiter: &ConnectionLimiter) -> Room {
    let dir = tempfile::tempdir().unwrap();
    let echo = Arc::new(Echo::default());
    let api_handler: Arc<dyn ApiHandler> = echo.clone();
    let api_listener = ApiListener::unix(dir.path().join("socket")).unwrap();
    let server = Server::patient(
        vec![api_listener],
        &api_handler,
        head_deadline,
        connection_limiter,
        Default::default(),
    );
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

/// Reads the head and body of one response.
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

/// Returns whether the server has closed the connection without further data.
async fn is_closed(stream: &mut (impl AsyncRead + Unpin)) -> bool {
    let mut rest = Vec::new();
    // A reset also counts as closed.
    let _reset = stream.read_to_end(&mut rest).await;
    rest.is_empty()
}

fn json(method: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","method":"{method}","params":[1,2],"id":7}}"#)
}

fn xml(method: &str) -> String {
    format!("<methodCall><methodName>{method}</methodName><params/></methodCall>")
}

fn port(api_listener: &ApiListener) -> u16 {
    let text = api_listener.to_string();
    let text = text.trim_end_matches(",plain");
    text.rsplit(':').next().unwrap().parse().unwrap()
}
