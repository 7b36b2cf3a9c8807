//! A small NBD client.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use testkit::process::PROCESS_DEADLINE;

/// Connects a client up to the request phase.
pub fn client(socket: &Path) -> UnixStream {
    let mut stream = UnixStream::connect(socket).unwrap();
    greet(&mut stream);
    stream
}

/// Connects like a client that never waits within `connect`: it fails if the backlog is full.
pub fn connect_nonblocking(socket: &Path) -> rustix::io::Result<UnixStream> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let fd = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&fd, &SocketAddrUnix::new(socket)?)?;
    let stream = UnixStream::from(fd);
    rustix::io::ioctl_fionbio(&stream, false)?;
    Ok(stream)
}

/// Chooses the export on a new connection.
pub fn greet(stream: &mut UnixStream) {
    stream.set_read_timeout(Some(PROCESS_DEADLINE)).unwrap();
    let mut hello = [0; 18];
    stream.read_exact(&mut hello).unwrap();
    let choose = [&3u32.to_be_bytes()[..], b"IHAVEOPT\0\0\0\x01\0\0\0\0"].concat();
    stream.write_all(&choose).unwrap();
    stream.read_exact(&mut [0; 10]).unwrap();
}

pub fn request(code: u16, offset: u64, len: u32) -> Vec<u8> {
    let mut out = 0x2560_9513u32.to_be_bytes().to_vec();
    out.extend([0, 0]);
    out.extend(code.to_be_bytes());
    out.extend(7u64.to_be_bytes());
    out.extend(offset.to_be_bytes());
    out.extend(len.to_be_bytes());
    out
}

pub fn read(stream: &mut UnixStream, offset: u64) -> Vec<u8> {
    stream.write_all(&request(0, offset, 512)).unwrap();
    let mut reply = vec![0; 16 + 512];
    stream.read_exact(&mut reply).unwrap();
    assert_eq!(reply[..8], [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0]);
    reply.split_off(16)
}

pub fn is_closed(stream: &mut UnixStream) -> bool {
    match stream.read_to_end(&mut Vec::new()) {
        Ok(_) => true,
        Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
    }
}

/// Writes 512 bytes and waits for the reply.
pub fn write(stream: &mut UnixStream, offset: u64, byte: u8) {
    stream.write_all(&[request(1, offset, 512), vec![byte; 512]].concat()).unwrap();
    let mut reply = [0; 16];
    stream.read_exact(&mut reply).unwrap();
    assert_eq!(reply[..8], [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0]);
}
