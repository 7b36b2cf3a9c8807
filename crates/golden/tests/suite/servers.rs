//! Servers that count how often they serve each block.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use serde_json::{Value, json};

pub(crate) const BLOCK: usize = 64 << 10;

/// State that a test shares with its server.
#[derive(Debug, Default)]
pub(crate) struct Served {
    pub(crate) image: Mutex<Vec<u8>>,
    pub(crate) version: Mutex<String>,
    /// Number of times that each block was served.
    pub(crate) blocks: Mutex<BTreeMap<u64, u32>>,
    /// Number of requests for more than the first byte.
    pub(crate) requests: AtomicUsize,
    fault: Mutex<Option<Fault>>,
    fault_changed: Condvar,
    /// Number of replies that stall.
    stalled: AtomicUsize,
    /// Policy for connections beside the first. Without one, all are served.
    second: Mutex<Option<Second>>,
    connections: AtomicUsize,
    /// Number of connections that were not served, and of those that have ended.
    turned_away: AtomicUsize,
    given_up: AtomicUsize,
}

/// Policy of a server for connections beside the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Second {
    Refuse,
    /// Lets it wait, as `qemu-nbd` does.
    Wait,
}

/// Fault of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Connections are closed at once.
    Gone,
    /// Requests get no answer.
    Stall,
    /// The connection ends within the data.
    Short,
    /// Bytes that are not of the protocol.
    Noise,
    /// Status of a web server, or error of an NBD server. Status 500 is for data alone.
    Error(u32),
    /// A web server sends data from the byte before the range.
    OtherRange,
    /// A web server ignores ranges.
    All,
    /// The server says that the image has this size.
    Size(u64),
}

/// Server on loopback. Its threads end with the test's process.
pub(crate) struct Server {
    pub(crate) served: Arc<Served>,
    pub(crate) source: Value,
}

impl Served {
    fn count(&self, offset: u64, len: usize) {
        if len > 1 {
            *self.blocks.lock().unwrap().entry(offset / BLOCK as u64).or_default() += 1;
        }
    }

    /// Sets what the server does wrong from now on.
    pub(crate) fn set_fault(&self, fault: Option<Fault>) {
        *self.fault.lock().unwrap() = fault;
        self.fault_changed.notify_all();
    }

    /// Serves one connection at a time from now on.
    pub(crate) fn set_second(&self, second: Second) {
        *self.second.lock().unwrap() = Some(second);
    }

    /// Returns the number of connections.
    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// Returns the number of connections that were not served, and of those that have ended.
    pub(crate) fn turned_away(&self) -> (usize, usize) {
        (self.turned_away.load(Ordering::Relaxed), self.given_up.load(Ordering::Relaxed))
    }

    /// Serves a connection. The end of the client or of the server is no error of the test.
    fn serve(&self, mut stream: TcpStream, with: fn(TcpStream, &Self) -> std::io::Result<()>) {
        let before = self.connections.fetch_add(1, Ordering::Relaxed);
        let second = self.second.lock().unwrap().filter(|_| before > 0);
        _ = match second {
            None => with(stream, self),
            Some(second) => {
                self.turned_away.fetch_add(1, Ordering::Relaxed);
                // The client sends nothing before it is greeted: the read waits until it leaves.
                let end = if second == Second::Wait { stream.read(&mut [0]) } else { Ok(0) };
                self.given_up.fetch_add(1, Ordering::Relaxed);
                end.map(drop)
            }
        };
        self.connections.fetch_sub(1, Ordering::Relaxed);
    }

    /// Returns the number of replies that stall now.
    pub(crate) fn stalled(&self) -> usize {
        self.stalled.load(Ordering::Relaxed)
    }

    /// Returns the fault of the next reply. A server that is gone ends the connection, and one that
    /// stalls does so when it does not stall any more.
    fn fault(&self) -> std::io::Result<Option<Fault>> {
        let mut fault = self.fault.lock().unwrap();
        let stalls = *fault == Some(Fault::Stall);
        self.stalled.fetch_add(usize::from(stalls), Ordering::Relaxed);
        while *fault == Some(Fault::Stall) {
            fault = self.fault_changed.wait(fault).unwrap();
        }
        self.stalled.fetch_sub(usize::from(stalls), Ordering::Relaxed);
        match stalls || *fault == Some(Fault::Gone) {
            true => Err(ErrorKind::ConnectionAborted.into()),
            false => Ok(*fault),
        }
    }

    fn size(&self) -> u64 {
        match *self.fault.lock().unwrap() {
            Some(Fault::Size(size)) => size,
            _ => self.image.lock().unwrap().len() as u64,
        }
    }

    /// Returns the number of blocks that were served, and the most times that one was.
    pub(crate) fn totals(&self) -> (usize, u32) {
        let blocks = self.blocks.lock().unwrap();
        (blocks.len(), blocks.values().copied().max().unwrap_or(0))
    }
}

/// Returns an image without repetition.
pub(crate) fn image(blocks: usize) -> Vec<u8> {
    (0..blocks * BLOCK).map(|at| (at * 31 + at / BLOCK * 17 + at / 251) as u8).collect()
}

impl Server {
    pub(crate) fn nbd(image: Vec<u8>) -> Self {
        let (listener, served) = listen(image);
        let port = listener.local_addr().unwrap().port();
        serve(listener, &served, serve_nbd);
        Self { served, source: json!({"nbd": format!("nbd://127.0.0.1:{port}/gold")}) }
    }

    /// Returns the server of a kind, `nbd` or `http`.
    pub(crate) fn of(kind: &str, image: Vec<u8>) -> Self {
        if kind == "nbd" { Self::nbd(image) } else { Self::http(image) }
    }

    pub(crate) fn http(image: Vec<u8>) -> Self {
        let (listener, served) = listen(image);
        let port = listener.local_addr().unwrap().port();
        serve(listener, &served, serve_http);
        Self { served, source: json!({"http": format!("http://127.0.0.1:{port}/gold.raw")}) }
    }
}

fn listen(image: Vec<u8>) -> (TcpListener, Arc<Served>) {
    let served = Served { image: image.into(), ..Served::default() };
    *served.version.lock().unwrap() = "\"1\"".into();
    (TcpListener::bind("127.0.0.1:0").unwrap(), Arc::new(served))
}

fn serve(
    listener: TcpListener,
    served: &Arc<Served>,
    with: fn(TcpStream, &Served) -> std::io::Result<()>,
) {
    let served = Arc::clone(served);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let served = Arc::clone(&served);
            // A client that hangs up ends its thread.
            std::thread::spawn(move || served.serve(stream, with));
        }
    });
}

fn serve_nbd(mut stream: TcpStream, served: &Served) -> std::io::Result<()> {
    served.fault()?;
    stream.write_all(b"NBDMAGICIHAVEOPT\0\x03")?;
    let mut flags = [0; 4];
    stream.read_exact(&mut flags)?;
    let mut option = [0; 16];
    stream.read_exact(&mut option)?;
    let len = u32::from_be_bytes(option[12..].try_into().unwrap());
    let mut data = vec![0; len as usize];
    stream.read_exact(&mut data)?;
    let reply = |kind: u32, data: &[u8]| {
        let mut reply = 0x0003_e889_0455_65a9u64.to_be_bytes().to_vec();
        reply.extend(7u32.to_be_bytes());
        reply.extend(kind.to_be_bytes());
        reply.extend((data.len() as u32).to_be_bytes());
        reply.extend(data);
        reply
    };
    if !data.windows(4).any(|part| part == b"gold") {
        return stream.write_all(&reply(1 << 31 | 6, b"no such export"));
    }
    let mut info = 0u16.to_be_bytes().to_vec();
    info.extend(served.size().to_be_bytes());
    info.extend(3u16.to_be_bytes());
    stream.write_all(&[reply(3, &info), reply(1, b"")].concat())?;
    loop {
        let mut request = [0; 28];
        stream.read_exact(&mut request)?;
        served.requests.fetch_add(1, Ordering::Relaxed);
        let fault = served.fault()?;
        let error = if let Some(Fault::Error(error)) = fault { error } else { 0 };
        let magic: u32 = if fault == Some(Fault::Noise) { 7 } else { 0x6744_6698 };
        let mut reply = magic.to_be_bytes().to_vec();
        reply.extend(error.to_be_bytes());
        reply.extend(&request[8..16]);
        if error == 0 {
            let offset = u64::from_be_bytes(request[16..24].try_into().unwrap());
            let len = u32::from_be_bytes(request[24..].try_into().unwrap()) as usize;
            reply.extend(&served.image.lock().unwrap()[offset as usize..offset as usize + len]);
            if fault.is_none() {
                served.count(offset, len);
            }
        }
        if fault == Some(Fault::Short) {
            reply.truncate(1000);
            return stream.write_all(&reply);
        }
        stream.write_all(&reply)?;
    }
}

fn serve_http(mut stream: TcpStream, served: &Served) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    loop {
        let mut range = String::new();
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line)? == 0 {
                return Ok(());
            }
            if let Some(found) = line.strip_prefix("Range: bytes=") {
                range = found.trim().into();
            }
            if line.trim().is_empty() {
                break;
            }
        }
        let mut fault = served.fault()?;
        let (first, last) = range.split_once('-').unwrap();
        let (mut first, last): (usize, usize) = (first.parse().unwrap(), last.parse().unwrap());
        let is_probe = first == last;
        served.requests.fetch_add(usize::from(!is_probe), Ordering::Relaxed);
        if is_probe && matches!(fault, Some(Fault::Error(500) | Fault::OtherRange)) {
            fault = None;
        }
        let image = served.image.lock().unwrap().clone();
        let status = match fault {
            Some(Fault::Noise) => return stream.write_all(b"\x00\x01\x02 noise\r\n\r\n"),
            Some(Fault::Error(status)) => status,
            Some(Fault::All) => 200,
            _ => 206,
        };
        if fault == Some(Fault::OtherRange) {
            first -= 1;
        }
        if fault.is_none() {
            served.count(first as u64, last - first + 1);
        }
        let body = if status == 206 { &image[first..=last] } else { b"sorry".as_slice() };
        let head = format!(
            "HTTP/1.1 {status} Text\r\nContent-Range: bytes {first}-{last}/{}\r\n\
             Content-Length: {}\r\nETag: {}\r\n\r\n",
            served.size(),
            body.len(),
            served.version.lock().unwrap()
        );
        stream.write_all(head.as_bytes())?;
        if fault == Some(Fault::Short) {
            return stream.write_all(&body[..body.len() / 2]);
        }
        stream.write_all(body)?;
    }
}
