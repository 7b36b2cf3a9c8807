//! Servers that count how often they serve each block.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

pub(crate) const BLOCK: usize = 64 << 10;

/// State that a test shares with its server.
#[derive(Debug, Default)]
pub(crate) struct Served {
    pub(crate) image: Mutex<Vec<u8>>,
    pub(crate) version: Mutex<String>,
    /// Number of times that each block was served.
    pub(crate) blocks: Mutex<BTreeMap<u64, u32>>,
    /// Connections are closed at once.
    pub(crate) is_gone: Mutex<bool>,
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

    fn is_gone(&self) -> bool {
        *self.is_gone.lock().unwrap()
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
            std::thread::spawn(move || with(stream, &served));
        }
    });
}

fn serve_nbd(mut stream: TcpStream, served: &Served) -> std::io::Result<()> {
    if served.is_gone() {
        return Ok(());
    }
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
    let size = served.image.lock().unwrap().len() as u64;
    let mut info = 0u16.to_be_bytes().to_vec();
    info.extend(size.to_be_bytes());
    info.extend(3u16.to_be_bytes());
    stream.write_all(&[reply(3, &info), reply(1, b"")].concat())?;
    loop {
        let mut request = [0; 28];
        stream.read_exact(&mut request)?;
        if served.is_gone() {
            return Ok(());
        }
        let offset = u64::from_be_bytes(request[16..24].try_into().unwrap());
        let len = u32::from_be_bytes(request[24..].try_into().unwrap()) as usize;
        served.count(offset, len);
        let mut reply = 0x6744_6698u32.to_be_bytes().to_vec();
        reply.extend(0u32.to_be_bytes());
        reply.extend(&request[8..16]);
        reply.extend(&served.image.lock().unwrap()[offset as usize..offset as usize + len]);
        stream.write_all(&reply)?;
    }
}

fn serve_http(mut stream: TcpStream, served: &Served) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    loop {
        let mut range = String::new();
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line)? == 0 || served.is_gone() {
                return Ok(());
            }
            if let Some(found) = line.strip_prefix("Range: bytes=") {
                range = found.trim().into();
            }
            if line.trim().is_empty() {
                break;
            }
        }
        let (first, last) = range.split_once('-').unwrap();
        let (first, last): (usize, usize) = (first.parse().unwrap(), last.parse().unwrap());
        served.count(first as u64, last - first + 1);
        let image = served.image.lock().unwrap().clone();
        let head = format!(
            "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes {first}-{last}/{}\r\n\
             Content-Length: {}\r\nETag: {}\r\n\r\n",
            image.len(),
            last - first + 1,
            served.version.lock().unwrap()
        );
        stream.write_all(head.as_bytes())?;
        stream.write_all(&image[first..=last])?;
    }
}
