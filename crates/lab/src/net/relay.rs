//! Relay between a front-end that accepts every offered feature and a backend that offers more than
//! it serves.
//!
//! User-Mode Linux accepts every feature that it knows. DPDK's vhost offers a control queue but
//! never answers on it, so such a guest would wait forever. Besides, the guest's packed rings are
//! incompatible with DPDK's. The relay forwards messages and descriptors and removes these features
//! from the offer. Frames bypass the relay, because both sides share memory and eventfds.

use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use testkit::Error;
use testkit::raw::Connection;
use testkit::raw::guest::wait_readable;
use testkit::raw::wire::{Message, Request, flags};

use crate::in_process::InProcessServer;

/// Removed features: all that need the control queue, and packed rings with their dependent
/// features.
const WITHHELD: u64 = 0x7f << 17 | 1 << 34 | 1 << 35;
/// Interval at which an idle relay checks whether it should stop.
const LOOK: Duration = Duration::from_millis(200);

/// Listens at `socket` for one front-end of the backend at `backend`. The thread runs on `cpu`.
pub(super) fn start(socket: PathBuf, backend: PathBuf, cpu: usize) -> Result<InProcessServer> {
    InProcessServer::start("relay", socket, cpu, move |listener, stop| {
        serve(listener, &backend, stop)
    })
}

fn serve(listener: &UnixListener, backend: &Path, stop: &AtomicBool) -> Result<()> {
    let (front, _) = listener.accept().context("nobody came")?;
    let mut front = Connection::from_stream(front)?;
    let mut back = Connection::connect(backend)?;
    while !stop.load(Ordering::Relaxed) {
        let passed = match wait_readable(&[front.as_fd(), back.as_fd()], LOOK)? {
            Some(0) => pass(&mut front, &mut back),
            Some(_) => pass(&mut back, &mut front),
            None => continue,
        };
        match passed {
            Err(Error::Closed { .. }) => return Ok(()),
            passed => passed?,
        }
    }
    Ok(())
}

/// Forwards one message.
fn pass(from: &mut Connection, to: &mut Connection) -> testkit::Result<()> {
    let message = from.recv("a message")?;
    let offer = message.request == Request::GET_FEATURES && message.flags & flags::REPLY != 0;
    let payload = match message.u64() {
        Ok(features) if offer => (features & !WITHHELD).to_ne_bytes().to_vec(),
        _ => message.payload,
    };
    let passed = Message::new(message.request).flags(message.flags).bytes(&payload);
    to.send(&message.fds.iter().fold(passed, |passed, fd| passed.fd(fd.as_fd())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_offer_is_changed_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let [socket, backend] = ["front", "back"].map(|name| dir.path().join(name));
        let listener = UnixListener::bind(&backend).unwrap();
        let cpu = crate::cpu::allowed().unwrap()[0];
        let relay = start(socket.clone(), backend, cpu).unwrap();
        let mut front = Connection::connect(&socket).unwrap();
        let mut back = Connection::from_stream(listener.accept().unwrap().0).unwrap();
        let ask = |request| Message::new(request);
        let answer = |request| ask(request).flags(flags::VERSION | flags::REPLY).u64(u64::MAX);
        for (request, bits) in
            [(Request::GET_FEATURES, !WITHHELD), (Request::GET_PROTOCOL_FEATURES, u64::MAX)]
        {
            front.send(&ask(request)).unwrap();
            assert_eq!(back.recv("it").unwrap().request, request);
            back.send(&answer(request)).unwrap();
            assert_eq!(front.recv("it").unwrap().u64().unwrap(), bits);
        }
        let file = tempfile::tempfile().unwrap();
        front.send(&ask(Request::SET_VRING_KICK).u64(1).fd(file.as_fd())).unwrap();
        let got = back.recv("it").unwrap();
        assert_eq!((got.u64().unwrap(), got.fds.len()), (1, 1));
        drop(front);
        relay.finish().unwrap();
    }
}
