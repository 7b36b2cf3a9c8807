//! NBD client whose every message the test controls.
// Each test file uses only some of these items.
#![allow(clippy::unwrap_used, dead_code, unreachable_pub)]

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use disk::{Disk, MemoryDisk};
use nbd::{NbdServer, Options};
use reactor::Reactor;

pub const SOON: Duration = Duration::from_secs(30);
pub const SIZE: u64 = 64 << 20;

pub const READ: u16 = 0;
pub const WRITE: u16 = 1;
pub const DISC: u16 = 2;
pub const FLUSH: u16 = 3;
pub const TRIM: u16 = 4;
pub const CACHE: u16 = 5;
pub const ZEROES: u16 = 6;
pub const STATUS: u16 = 7;
pub const FUA: u16 = 1;

/// Server on one reactor.
pub struct Fixture {
    pub server: NbdServer,
    pub reactor: Reactor,
}

impl Fixture {
    pub fn new(disk: Arc<dyn Disk>, read_only: bool, connections: usize) -> Self {
        let (name, description) = ("d1".to_owned(), "a disk".to_owned());
        let options = Options { name, description, read_only, connections };
        let server = NbdServer::new(disk, options).unwrap();
        Self { server, reactor: Reactor::spawn("nbd").unwrap() }
    }

    pub fn memory() -> Self {
        Self::new(Arc::new(MemoryDisk::new(SIZE, 512, false).unwrap()), false, 16)
    }

    /// Connects without sending anything.
    pub fn socket(&self) -> UnixStream {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_read_timeout(Some(SOON)).unwrap();
        ours.set_write_timeout(Some(SOON)).unwrap();
        self.server.accept(OwnedFd::from(theirs), self.reactor.handle(), ()).unwrap();
        ours
    }

    /// Connects and completes the handshake.
    pub fn client(&self, structured: bool) -> Client {
        Client::greet(self.socket(), structured)
    }
}

/// Reply to a request.
#[derive(Debug, PartialEq, Eq)]
pub struct Reply {
    pub cookie: u64,
    pub error: u32,
    /// Data of a read, offset and length of a hole, or descriptors of a block status.
    pub data: Vec<u8>,
}

pub struct Client {
    pub stream: UnixStream,
    pub structured: bool,
    pub flags: u16,
    next: u64,
}

pub fn option(code: u32, data: &[u8]) -> Vec<u8> {
    let mut out = b"IHAVEOPT".to_vec();
    out.extend(code.to_be_bytes());
    out.extend((data.len() as u32).to_be_bytes());
    out.extend(data);
    out
}

pub fn request(flags: u16, code: u16, cookie: u64, offset: u64, len: u32) -> Vec<u8> {
    let mut out = 0x2560_9513u32.to_be_bytes().to_vec();
    out.extend(flags.to_be_bytes());
    out.extend(code.to_be_bytes());
    out.extend(cookie.to_be_bytes());
    out.extend(offset.to_be_bytes());
    out.extend(len.to_be_bytes());
    out
}

fn exactly<const N: usize>(stream: &mut UnixStream) -> [u8; N] {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes).unwrap();
    bytes
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}

impl Client {
    pub fn greet(mut stream: UnixStream, structured: bool) -> Self {
        let hello: [u8; 18] = exactly(&mut stream);
        assert_eq!(hello, *b"NBDMAGICIHAVEOPT\0\x03");
        stream.write_all(&3u32.to_be_bytes()).unwrap();
        let mut client = Self { stream, structured, flags: 0, next: 1 };
        if structured {
            assert_eq!(client.option(8, b"").len(), 1);
            let replies = client.option(10, b"\0\0\0\x02d1\0\0\0\x01\0\0\0\x0fbase:allocation");
            assert_eq!(replies.len(), 2);
        }
        let replies = client.option(7, b"\0\0\0\x02d1\0\0");
        assert_eq!(number(&replies[0].1[2..10]), SIZE);
        client.flags = number(&replies[0].1[10..12]) as u16;
        client
    }

    /// Sends an option and returns its replies, up to the last one.
    pub fn option(&mut self, code: u32, data: &[u8]) -> Vec<(u32, Vec<u8>)> {
        self.stream.write_all(&option(code, data)).unwrap();
        let mut all = Vec::new();
        loop {
            let head: [u8; 20] = exactly(&mut self.stream);
            let kind = number(&head[12..16]) as u32;
            let mut data = vec![0; number(&head[16..]) as usize];
            self.stream.read_exact(&mut data).unwrap();
            all.push((kind, data));
            if kind == 1 || kind >= 1 << 31 {
                return all;
            }
        }
    }

    pub fn send(&mut self, flags: u16, code: u16, offset: u64, len: u32, data: &[u8]) -> u64 {
        let cookie = self.next;
        self.next += 1;
        let mut message = request(flags, code, cookie, offset, len);
        message.extend(data);
        self.stream.write_all(&message).unwrap();
        cookie
    }

    /// Receives the next reply. A successful simple reply must carry `data` bytes.
    pub fn receive(&mut self, data: usize) -> Reply {
        let magic: [u8; 4] = exactly(&mut self.stream);
        if magic == 0x6744_6698u32.to_be_bytes() {
            let rest: [u8; 12] = exactly(&mut self.stream);
            let (error, cookie) = (number(&rest[..4]) as u32, number(&rest[4..]));
            let mut bytes = vec![0; if error == 0 { data } else { 0 }];
            self.stream.read_exact(&mut bytes).unwrap();
            return Reply { cookie, error, data: bytes };
        }
        assert_eq!(magic, 0x668e_33efu32.to_be_bytes());
        let rest: [u8; 16] = exactly(&mut self.stream);
        assert_eq!(number(&rest[..2]), 1, "one chunk a reply");
        let (kind, cookie) = (number(&rest[2..4]), number(&rest[4..12]));
        let mut bytes = vec![0; number(&rest[12..]) as usize];
        self.stream.read_exact(&mut bytes).unwrap();
        match kind {
            1 => Reply { cookie, error: 0, data: bytes.split_off(8) },
            2 => Reply { cookie, error: 0, data: bytes },
            5 => Reply { cookie, error: 0, data: bytes.split_off(4) },
            0x8001 => {
                let text = String::from_utf8(bytes.split_off(6)).unwrap();
                assert!(!text.is_empty(), "an error says why");
                Reply { cookie, error: number(&bytes[..4]) as u32, data: Vec::new() }
            }
            other => panic!("chunk {other}"),
        }
    }

    /// Sends a request and waits for its reply. Returns error and data.
    pub fn run(
        &mut self,
        flags: u16,
        code: u16,
        offset: u64,
        len: u32,
        data: &[u8],
    ) -> (u32, Vec<u8>) {
        let cookie = self.send(flags, code, offset, len, data);
        let reply = self.receive(if code == READ { len as usize } else { 0 });
        assert_eq!(reply.cookie, cookie);
        (reply.error, reply.data)
    }

    pub fn read(&mut self, offset: u64, len: u32) -> Vec<u8> {
        let (error, data) = self.run(0, READ, offset, len, b"");
        assert_eq!(error, 0, "read of {len} at {offset}");
        data
    }

    pub fn write(&mut self, offset: u64, data: &[u8]) {
        assert_eq!(self.run(0, WRITE, offset, data.len() as u32, data).0, 0);
    }

    /// Returns whether the server has closed the connection.
    pub fn is_closed(&mut self) -> bool {
        is_closed(&mut self.stream)
    }
}

pub fn is_closed(stream: &mut UnixStream) -> bool {
    let mut rest = Vec::new();
    // Earlier data does not matter. A reset also counts as closed.
    match stream.read_to_end(&mut rest) {
        Ok(_) => true,
        Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
    }
}

pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2).wrapping_add(1);
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695);
        (state >> 33) as u8
    };
    (0..len).map(|_| next()).collect()
}
