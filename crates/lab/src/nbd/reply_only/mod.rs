//! Reply-only server, which shows the limit of a client: it replies to every request without work.
//!
//! One thread of this process polls the socket all the time, so the client never has to wake it. It
//! receives all waiting requests with one system call. It replies with one more, from memory that
//! already holds the data. It negotiates structured replies, as every server in this experiment
//! does. The client reads these in more pieces than simple replies, which is the client's own cost.
//!
//! The server implements only a part of NBD: it requires a well-behaved client, checks no range
//! and stores nothing.

mod answer;

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, ensure};

use crate::in_process::InProcessServer;
use answer::{
    Answered, DATA_MAX, OUT_BYTES, REQUEST_BYTES, Reads, STRUCTURED_BYTES, answer, u32_at,
};

/// Bytes per receive.
const IN_BYTES: usize = 1 << 20;
/// Longest option of a handshake, in bytes.
const OPTION_MAX: usize = 4096;

/// Creates a listener in `dir`. The thread runs on `cpu` and exports `bytes` bytes. With `holes`,
/// reads return holes, as from a disk that stores nothing, if the client supports that.
///
/// # Errors
/// The socket or the thread cannot be created.
pub fn start(dir: &Path, cpu: usize, bytes: u64, holes: bool) -> Result<InProcessServer> {
    InProcessServer::start("reply-only", dir.join("reply-only.sock"), cpu, move |listener, stop| {
        // fio connects twice: first to query the size, then for the load.
        loop {
            let (stream, _) = listener.accept().context("nobody came")?;
            if stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            Session { stream, holes, kind: Reads::Simple }.serve(bytes, stop)?;
        }
    })
}

struct Session {
    stream: UnixStream,
    holes: bool,
    kind: Reads,
}

impl Session {
    /// Serves one client until it disconnects.
    fn serve(mut self, bytes: u64, stop: &AtomicBool) -> Result<()> {
        if !self.shake_hands(bytes)? {
            return Ok(());
        }
        self.stream.set_nonblocking(true)?;
        let mut input = vec![0; IN_BYTES + REQUEST_BYTES + DATA_MAX];
        let mut output = vec![0; OUT_BYTES + STRUCTURED_BYTES + DATA_MAX];
        let mut held = 0;
        while !stop.load(Ordering::Relaxed) {
            let room = input.get_mut(held..).context("no room")?;
            match self.stream.read(room) {
                Ok(0) => return Ok(()),
                Ok(count) => held += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    std::hint::spin_loop();
                    continue;
                }
                Err(error) => return Err(error).context("cannot receive"),
            }
            let mut used = 0;
            loop {
                let Answered { taken, given } = answer(&input[used..held], &mut output, self.kind)?;
                if taken == 0 {
                    break;
                }
                used += taken;
                if !self.send(&output[..given], stop)? {
                    return Ok(());
                }
            }
            input.copy_within(used..held, 0);
            held -= used;
        }
        Ok(())
    }

    /// Sends all bytes. Returns false if the client has disconnected or `stop` is set.
    fn send(&mut self, mut bytes: &[u8], stop: &AtomicBool) -> Result<bool> {
        while !bytes.is_empty() && !stop.load(Ordering::Relaxed) {
            match self.stream.write(bytes) {
                Ok(count) => bytes = bytes.get(count..).unwrap_or_default(),
                Err(error) if error.kind() == ErrorKind::WouldBlock => std::hint::spin_loop(),
                Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(false),
                Err(error) => return Err(error).context("cannot send"),
            }
        }
        Ok(bytes.is_empty())
    }

    /// Runs the newstyle handshake. Returns false if the client disconnected without choosing an
    /// export.
    fn shake_hands(&mut self, bytes: u64) -> Result<bool> {
        const STRUCTURED: u32 = 8;
        const GO: u32 = 7;
        const ABORT: u32 = 2;
        self.stream.write_all(b"NBDMAGICIHAVEOPT\x00\x03")?;
        self.stream.read_exact(&mut [0; 4])?;
        loop {
            let mut header = [0; 16];
            if self.stream.read_exact(&mut header).is_err() {
                return Ok(false);
            }
            let option = u32_at(&header, 8);
            let mut data = vec![0; u32_at(&header, 12) as usize];
            ensure!(data.len() <= OPTION_MAX, "an option of {} bytes", data.len());
            self.stream.read_exact(&mut data)?;
            match option {
                STRUCTURED => {
                    self.kind = if self.holes { Reads::Holes } else { Reads::Structured };
                    self.option_reply(option, 1, &[])?;
                }
                GO => {
                    // Size and flags: flush, FUA, several connections.
                    let flags = (1u16 | 1 << 2 | 1 << 3 | 1 << 8).to_be_bytes();
                    let info = [&[0, 0][..], &bytes.to_be_bytes(), &flags].concat();
                    self.option_reply(option, 3, &info)?;
                    self.option_reply(option, 1, &[])?;
                    return Ok(true);
                }
                ABORT => return Ok(false),
                _ => self.option_reply(option, 1 << 31 | 1, &[])?,
            }
        }
    }

    fn option_reply(&mut self, option: u32, kind: u32, data: &[u8]) -> Result<()> {
        let mut reply = 0x0003_e889_0455_65a9u64.to_be_bytes().to_vec();
        for word in [option, kind, data.len() as u32] {
            reply.extend(word.to_be_bytes());
        }
        reply.extend(data);
        self.stream.write_all(&reply).context("cannot send")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu;

    #[test]
    fn an_unused_server_ends_when_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let cpu = cpu::allowed().unwrap()[0];
        drop(start(dir.path(), cpu, 1 << 20, false).unwrap());
        start(&dir.path().join(""), cpu, 1 << 20, true).unwrap_err();
    }
}
