//! The link between a keeper and its worker: whole records with descriptors.
//!
//! A record is one JSON object in one message of a SEQPACKET pair, so neither side ever sees half
//! of one, and its descriptors cannot belong to another. Keeper and worker may be of neighbouring
//! versions after an upgrade: a record gets no new meaning, and new ones are sent only on behalf of
//! somebody who asks for something new. What is held is opaque to the keeper but
//! for its sockets, whose files it removes when all has ended.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg,
    sendmsg, socketpair,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use vhost_user::{Listener, Parts};

/// Longest record in bytes: a spec is a few kilobytes, and both fit a socket's default buffer.
pub(crate) const MAX_RECORD_BYTES: usize = 64 << 10;
/// Most descriptors of one record: two for a socket, one for memory, two for each export.
pub(crate) const MAX_DESCRIPTORS: usize = 64;

/// A record with its descriptors.
pub(crate) type Came<T> = (T, Result<Vec<OwnedFd>, Lacking>);

/// Descriptors of a record could not be had.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("this process can have no more descriptors; raise its limit of open files")]
pub(crate) struct Lacking;

/// One end of a link.
#[derive(Debug)]
pub(crate) struct Link {
    socket: OwnedFd,
}

/// What one key stands for, and whoever holds it.
#[derive(Debug, Default)]
pub(crate) struct Holding {
    /// Listening sockets; the keeper removes their files when all has ended.
    pub(crate) sockets: Vec<Parts>,
    /// The worker's own words.
    pub(crate) data: Value,
    /// What else it wants back.
    pub(crate) fds: Vec<OwnedFd>,
    /// How long its end may take, in milliseconds.
    pub(crate) stop_ms: u64,
}

/// A holding without its descriptors. They follow in this order: for each socket the socket and
/// its lock, then the others.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Written {
    key: String,
    sockets: Vec<SocketFile>,
    data: Value,
    #[serde(default)]
    stop_ms: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct SocketFile {
    path: PathBuf,
    /// Device and inode.
    identity: Option<(u64, u64)>,
}

/// What a worker says.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum FromWorker {
    /// Hold this from now on, in place of what the key stood for.
    Hold { seq: u64, what: Written },
    /// Hold this no longer.
    Forget { seq: u64, key: String },
    /// Calls or front-ends are taken.
    Ready,
    /// This end is an orderly one: start no other worker.
    Ending,
    /// Answer to a ping.
    Pong,
    /// Start another worker from this file, or from the one that is now where the keeper's was,
    /// and give it the descriptor that comes along: it takes over by that.
    Succeed { seq: u64, binary: Option<PathBuf> },
    /// The other worker is about to be told to go on: if this one ends, it is the worker.
    Yield { seq: u64 },
    /// The other worker takes over nothing: kill it.
    Abandon { seq: u64 },
}

/// What a keeper says.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum FromKeeper {
    /// The worker before had this held.
    Restore { what: Written },
    /// Who keeps it.
    Keeper(Words),
    /// Another worker serves all this now, and hands it over by the descriptor that comes along.
    TakeOver,
    /// Everything has been said: begin.
    Begin,
    /// A hold or a forget is done, or why it is not.
    Done { seq: u64, problem: Option<String> },
    /// Is anybody there?
    Ping,
    /// End in order.
    Stop,
}

/// What a worker knows of its keeper.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Words {
    /// Its process id.
    pub(crate) pid: u32,
    /// Workers that it has started in place of dead ones.
    pub(crate) restarts: u64,
    /// How the last of those ended.
    pub(crate) last_exit: Option<String>,
    /// Without it the worker has no purpose.
    pub(crate) die_together: bool,
}

impl Link {
    /// Both ends of a new link.
    ///
    /// # Errors
    /// The process may open no more descriptors.
    pub(crate) fn pair() -> io::Result<(Self, OwnedFd)> {
        let kind = SocketType::SEQPACKET;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
        Ok((Self { socket: ours }, theirs))
    }

    /// The end that somebody else has made.
    pub(crate) fn new(socket: OwnedFd) -> Self {
        Self { socket }
    }

    /// Sending waits at most this long for room.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub(crate) fn limit_waits(&self, time: Duration) -> io::Result<()> {
        Ok(set_socket_timeout(&self.socket, Timeout::Send, Some(time))?)
    }

    /// The other end is gone.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub(crate) fn is_closed(&self) -> io::Result<bool> {
        // The end is told unasked.
        let mut fds = [PollFd::from_borrowed_fd(self.socket.as_fd(), PollFlags::empty())];
        poll(&mut fds, Some(&Timespec::default()))?;
        Ok(fds.iter().any(|fd| fd.revents().contains(PollFlags::HUP)))
    }

    /// Sends a record.
    ///
    /// # Errors
    /// The record is too long; the other end is gone, or full where this one does not block.
    pub(crate) fn send(&self, record: &impl Serialize, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let bytes = serde_json::to_vec(record)?;
        if bytes.len() > MAX_RECORD_BYTES || fds.len() > MAX_DESCRIPTORS {
            return Err(io::Error::other("record is too long to be held"));
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(fds));
        }
        let iov = [IoSlice::new(&bytes)];
        loop {
            match sendmsg(&self.socket, &iov, &mut control, SendFlags::NOSIGNAL) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Receives the next record; `None`: the other end is gone.
    ///
    /// # Errors
    /// What came is no record, or not whole, or nothing has come where this end does not block.
    pub(crate) fn receive<T: DeserializeOwned>(&self) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
        match self.receive_words()? {
            Some((record, fds)) => Ok(Some((record, fds.map_err(io::Error::other)?))),
            None => Ok(None),
        }
    }

    /// The same where a record counts even if its descriptors could not be had.
    ///
    /// # Errors
    /// As [`Self::receive`], but for [`Lacking`].
    pub(crate) fn receive_words<T: DeserializeOwned>(&self) -> io::Result<Option<Came<T>>> {
        let mut bytes = vec![0; MAX_RECORD_BYTES];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = loop {
            let mut iov = [IoSliceMut::new(&mut bytes)];
            match recvmsg(&self.socket, &mut iov, &mut control, RecvFlags::CMSG_CLOEXEC) {
                Err(Errno::INTR) => {}
                Err(Errno::CONNRESET) => return Ok(None),
                other => break other?,
            }
        };
        let mut fds = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                fds.extend(rights);
            }
        }
        if received.bytes == 0 {
            return Ok(None);
        }
        if received.flags.contains(ReturnFlags::TRUNC) {
            return Err(io::Error::other("a record is too long"));
        }
        bytes.truncate(received.bytes);
        let whole = !received.flags.contains(ReturnFlags::CTRUNC);
        Ok(Some((serde_json::from_slice(&bytes)?, if whole { Ok(fds) } else { Err(Lacking) })))
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Holding {
    /// As a record, and the descriptors that go with it.
    pub(crate) fn written(&self, key: &str) -> (Written, Vec<BorrowedFd<'_>>) {
        let file =
            |parts: &Parts| SocketFile { path: parts.path.clone(), identity: parts.identity };
        let sockets = self.sockets.iter().map(file).collect();
        let of_sockets = self.sockets.iter().flat_map(|p| [p.socket.as_fd(), p.lock.as_fd()]);
        let fds = of_sockets.chain(self.fds.iter().map(AsFd::as_fd)).collect();
        let (key, data, stop_ms) = (key.into(), self.data.clone(), self.stop_ms);
        (Written { key, sockets, data, stop_ms }, fds)
    }

    /// The same again from a record.
    ///
    /// # Errors
    /// Descriptors are missing.
    pub(crate) fn read(mut written: Written, fds: Vec<OwnedFd>) -> io::Result<(String, Self)> {
        let mut fds = fds.into_iter();
        let missing = || io::Error::other("a record came without its descriptors");
        let mut sockets = Vec::new();
        for SocketFile { path, identity } in std::mem::take(&mut written.sockets) {
            let socket = fds.next().ok_or_else(missing)?;
            let lock = fds.next().ok_or_else(missing)?;
            sockets.push(Parts { path, identity, socket, lock });
        }
        let Written { key, data, stop_ms, .. } = written;
        Ok((key, Self { sockets, data, fds: fds.collect(), stop_ms }))
    }

    /// The same with descriptors of its own.
    ///
    /// # Errors
    /// The process may open no more descriptors.
    pub(crate) fn twin(&self) -> io::Result<Self> {
        let socket = |parts: &Parts| {
            let (path, identity) = (parts.path.clone(), parts.identity);
            let (socket, lock) = (parts.socket.try_clone()?, parts.lock.try_clone()?);
            Ok(Parts { path, identity, socket, lock })
        };
        let sockets = self.sockets.iter().map(socket).collect::<io::Result<_>>()?;
        let fds = self.fds.iter().map(OwnedFd::try_clone).collect::<io::Result<_>>()?;
        Ok(Self { sockets, data: self.data.clone(), fds, stop_ms: self.stop_ms })
    }

    /// Removes the sockets' files, as far as they are still ours.
    pub(crate) fn remove(self) {
        for parts in self.sockets {
            // Whatever is no listener has no file that we would have made.
            drop(Listener::adopt(parts));
        }
    }
}

/// Nobody is at the other end any more.
pub(crate) fn is_closed(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, NotConnected};
    matches!(error.kind(), BrokenPipe | ConnectionReset | NotConnected)
}

#[cfg(test)]
mod tests {
    use vhost_user::Access;

    use super::*;

    #[test]
    fn a_holding_arrives_whole_and_can_be_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let listener = Listener::bind(&path, &Access::default()).unwrap();
        let sockets = vec![listener.parts().unwrap()];
        listener.leave();
        let data = serde_json::json!({"a": [1, 2]});
        let fds = vec![std::fs::File::open("/dev/null").unwrap().into()];
        let holding = Holding { sockets, data: data.clone(), fds, stop_ms: 5 };

        let (one, two) = Link::pair().unwrap();
        let two = Link::new(two);
        let twin = holding.twin().unwrap();
        let (what, fds) = twin.written("d");
        one.send(&FromWorker::Hold { seq: 7, what }, &fds).unwrap();
        let (record, fds) = two.receive().unwrap().unwrap();
        let FromWorker::Hold { seq: 7, what } = record else { panic!("{record:?}") };
        drop((holding, twin));
        let (key, found) = Holding::read(what, fds).unwrap();
        assert_eq!((key.as_str(), &found.data, found.fds.len()), ("d", &data, 1));
        assert_eq!(found.stop_ms, 5);
        found.remove();
        assert_eq!(folder.path().read_dir().unwrap().count(), 0);
        drop(one);
        assert!(two.receive::<FromWorker>().unwrap().is_none());
    }

    #[test]
    fn what_is_no_holding_is_refused() {
        let file = SocketFile { path: "/s".into(), identity: None };
        let (key, sockets) = ("d".into(), vec![file]);
        let what = Written { key, sockets, data: Value::Null, stop_ms: 0 };
        assert!(Holding::read(what, Vec::new()).is_err());
        let (one, two) = Link::pair().unwrap();
        let long = "x".repeat(MAX_RECORD_BYTES);
        assert!(one.send(&long, &[]).is_err());
        rustix::io::write(&two, b"{}").unwrap();
        assert!(one.receive::<FromWorker>().is_err());
    }
}
