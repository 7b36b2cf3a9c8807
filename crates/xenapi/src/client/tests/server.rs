//! Server in the same process.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::{Arc, Mutex};

use rustls::pki_types::PrivateKeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use crate::envelope::{self, Call, Encoding};
use crate::{ApiError, Value};

/// Handler of calls.
pub(super) type Answers = dyn Fn(&Call) -> Result<Value, ApiError> + Send + Sync;

/// Calls that a server received, in order.
#[derive(Clone, Default)]
pub(super) struct Seen(Arc<Mutex<Vec<String>>>);

impl Seen {
    pub(super) fn note(&self, what: impl Into<String>) {
        self.0.lock().unwrap().push(what.into());
    }

    pub(super) fn all(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

/// Number of calls that one connection answers.
pub(super) const MANY: usize = 1_000;

/// Serves connections until the process ends. Closes each after `calls` calls.
pub(super) fn on_socket(path: &Path, calls: usize, answers: Arc<Answers>) {
    let listener = UnixListener::bind(path).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (stream, answers) = (stream.unwrap(), Arc::clone(&answers));
            std::thread::spawn(move || serve(stream, calls, &*answers));
        }
    });
}

/// Serves with TLS and returns the port.
pub(super) fn with_tls(name: &str, answers: Arc<Answers>) -> u16 {
    let made = rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let config = Arc::new(config);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let connection = ServerConnection::new(Arc::clone(&config)).unwrap();
            let (stream, answers) = (stream.unwrap(), Arc::clone(&answers));
            let stream = StreamOwned::new(connection, stream);
            std::thread::spawn(move || serve(stream, MANY, &*answers));
        }
    });
    port
}

/// Answers `calls` calls of a connection, then closes it.
fn serve(stream: impl Read + Write, calls: usize, answers: &Answers) {
    let mut stream = BufReader::new(stream);
    for _ in 0..calls {
        let Some((path, cookie, body)) = request(&mut stream) else { return };
        if path == "/named" && cookie != "session_id=OpaqueRef:s" {
            let _gone = stream.get_mut().write_all(b"HTTP/1.1 401 Unauthorized\r\n\r\nwho?\n");
            return;
        }
        if path == "/console" || path == "/named" {
            let _gone = stream.get_mut().write_all(b"HTTP/1.1 200 OK\r\n\r\nlogin: ");
            echo(stream);
            return;
        }
        if let Some(why) = path.strip_prefix("/console?") {
            let head = format!("HTTP/1.1 404 Not Found\r\nContent-Length: {}\r\n\r\n", why.len());
            let _gone = stream.get_mut().write_all((head + why).as_bytes());
            return;
        }
        let encoding = Encoding::of_path(&path).unwrap();
        let call = envelope::parse(encoding, &body).unwrap();
        let answer = envelope::answer(&call, &answers(&call)).to_text();
        let head = format!(
            "HTTP/1.1 200 OK\r\nContent-Type: {}\r\nContent-Length: {}\r\n\r\n",
            encoding.content_type(),
            answer.len()
        );
        let sent = stream.get_mut().write_all((head + &answer).as_bytes());
        if sent.and_then(|()| stream.get_mut().flush()).is_err() {
            return;
        }
    }
}

/// Reads a request: path, cookie and body.
fn request(stream: &mut impl BufRead) -> Option<(String, String, Vec<u8>)> {
    let (mut path, mut cookie, mut length) = (None, String::new(), 0);
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).ok().filter(|read| *read > 0)?;
        let line = line.trim_end();
        if line.is_empty() {
            break;
        }
        path.get_or_insert_with(|| line.split(' ').nth(1).unwrap().to_owned());
        if let Some(value) = line.strip_prefix("Content-Length: ") {
            length = value.parse().unwrap();
        }
        if let Some(value) = line.strip_prefix("Cookie: ") {
            value.clone_into(&mut cookie);
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).ok()?;
    Some((path?, cookie, body))
}

/// Sends all received bytes back in upper case.
fn echo(mut stream: BufReader<impl Read + Write>) {
    let mut line = String::new();
    while let Ok(1..) = stream.read_line(&mut line) {
        let _gone = stream.get_mut().write_all(line.to_uppercase().as_bytes());
        let _gone = stream.get_mut().flush();
        line.clear();
    }
}
