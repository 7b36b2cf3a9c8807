//! Adoption of a worker whose keeper has died.
//!
//! The new keeper calls `keeper.adopt` on the worker's control socket. The reply carries a
//! descriptor of a link. Through it the worker preserves everything that its last keeper preserved.

use std::io::{IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use model::rpc::{Adopted, Request, Response};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg, sockopt};
use rustix::process::{Pid, geteuid};

use super::Keeper;
use super::store::Store;
use super::worker::Worker;
use crate::connect::dial;
use crate::keeper_link::Link;

/// Longest wait for the connection, and for the reply. The worker does nothing slow for it.
const ANSWER_DEADLINE: Duration = Duration::from_secs(5);
/// Longest time between the moment when a process closes its descriptors and its end.
const END_DEADLINE: Duration = Duration::from_secs(1);
/// Longest reply in bytes.
const MAX_ANSWER_BYTES: usize = 64 << 10;

/// Asks the worker behind a control socket to be adopted.
///
/// # Errors
/// It has a keeper, is not a worker, or belongs to another user.
pub(super) fn take_over(control: &Path) -> anyhow::Result<(Worker, Adopted)> {
    let stream = dial(control, ANSWER_DEADLINE).context("cannot connect to the process")?;
    let theirs = sockopt::socket_peercred(&stream)?.uid;
    anyhow::ensure!(theirs == geteuid(), "the process belongs to user {}", theirs.as_raw());
    let mut line = serde_json::to_vec(&Request::new(1, "keeper.adopt", Default::default()))?;
    line.push(b'\n');
    (&stream).write_all(&line)?;
    let (answer, fd) = receive(&stream).context("the process sent no reply")?;
    let answer: Response =
        serde_json::from_slice(&answer).context("the reply is not valid JSON-RPC")?;
    let adopted: Adopted = serde_json::from_value(answer.outcome()?)?;
    let link = Link::new(fd.context("the reply carries no link")?);
    let pid = i32::try_from(adopted.pid).ok().and_then(Pid::from_raw);
    let worker = Worker::adopt(pid.context("the reply has no valid process id")?, link)?;
    // The kernel has not reused the process ID as long as the link is open.
    anyhow::ensure!(!worker.is_closed()?, "the process has just ended; try again");
    Ok((worker, adopted))
}

impl Keeper {
    /// Abandons an adopted worker that is alive but stopped sending before it had sent everything.
    /// The keeper knows too little to replace it, and must not remove its sockets.
    pub(super) fn abandon_partial_adoption(&mut self) -> anyhow::Result<()> {
        let Some(worker) = self.worker.as_ref().filter(|worker| worker.is_partially_adopted())
        else {
            return Ok(());
        };
        let mut ended = [PollFd::from_borrowed_fd(worker.ended(), PollFlags::IN)];
        let patience = Timespec::try_from(END_DEADLINE)?;
        if retry_on_intr(|| poll(&mut ended, Some(&patience)))? > 0 {
            return Ok(());
        }
        let pid = worker.pid();
        self.store = Store::default();
        anyhow::bail!("process {pid} still runs, but did not send all that it serves; try again")
    }
}

/// Receives a line, and the first descriptor that came with it.
fn receive(stream: &UnixStream) -> anyhow::Result<(Vec<u8>, Option<OwnedFd>)> {
    let (mut line, mut fd) = (Vec::new(), None);
    while line.last() != Some(&b'\n') {
        let mut bytes = [0; 4096];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let got = retry_on_intr(|| {
            let mut iov = [IoSliceMut::new(&mut bytes)];
            recvmsg(stream, &mut iov, &mut control, RecvFlags::CMSG_CLOEXEC)
        })?
        .bytes;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(mut rights) = message {
                fd = fd.or(rights.next());
            }
        }
        anyhow::ensure!(got > 0, "the process closed the connection");
        line.extend_from_slice(bytes.get(..got).unwrap_or_default());
        anyhow::ensure!(
            line.len() <= MAX_ANSWER_BYTES,
            "the reply is longer than {MAX_ANSWER_BYTES} bytes"
        );
    }
    Ok((line, fd))
}

#[cfg(test)]
mod tests {
    use std::io::BufRead;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixListener;
    use std::process::{Child, Command};

    use serde_json::json;
    use vhost_user::{Access, Listener};

    use super::super::{KeeperConfig, LoopControl, ServiceManager};
    use super::*;
    use crate::keeper_link::{PreservedEntry, WorkerMessage};

    /// Returns a keeper that has adopted a child of this test, the child, and the child's end of
    /// the link.
    fn adopted(folder: &Path) -> (Keeper, Child, Link) {
        let (signals, writer) = rustix::pipe::pipe().unwrap();
        std::mem::forget(writer);
        let mut keeper = Keeper::new(KeeperConfig {
            program: "test",
            options: Vec::new(),
            ready: None,
            manager: ServiceManager::default(),
            signals,
            pause_max: Duration::ZERO,
            die_together: false,
        });
        let child = Command::new("sleep").arg("1000").spawn().unwrap();
        let (link, theirs) = Link::pair().unwrap();
        let control = folder.join("c");
        let listener = UnixListener::bind(&control).unwrap();
        let adopted = json!({"pid": child.id(), "restarts": 3, "last_exit": null});
        let worker = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            // The caller would be refused if the link closed before this request.
            std::io::BufReader::new(&stream).read_line(&mut String::new()).unwrap();
            let answer = json!({"jsonrpc": "2.0", "id": 1, "result": adopted});
            Link::new(stream.try_clone().unwrap().into()).send(&answer, &[theirs.as_fd()]).unwrap();
            stream.write_all(b"\n").unwrap();
        });
        keeper.take_over(&control).unwrap();
        worker.join().unwrap();
        (keeper, child, link)
    }

    /// Preserves a socket.
    fn hold(folder: &Path, link: &Link) {
        let listener = Listener::bind(&folder.join("s"), &Access::default()).unwrap();
        let preserved_entry = PreservedEntry {
            sockets: vec![listener.parts().unwrap()],
            ..PreservedEntry::default()
        };
        listener.close_keep_files();
        let (what, fds) = preserved_entry.written("disk/s");
        link.send(&WorkerMessage::Hold { seq: u64::MAX, what }, &fds).unwrap();
    }

    #[test]
    fn one_that_dies_at_once_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let (mut keeper, mut child, link) = adopted(folder.path());
        hold(folder.path(), &link);
        drop(link);
        child.kill().unwrap();
        child.wait().unwrap();
        while keeper.worker.is_some() {
            assert!(matches!(keeper.turn().unwrap(), LoopControl::Poll), "it does not end");
        }
        assert!(keeper.start_at.is_some(), "another one is started");
        assert!(keeper.store.get("disk/s").is_some());
        assert!(folder.path().join("s").exists());
    }

    #[test]
    fn one_that_lives_and_says_nothing_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let (keeper, mut child, link) = adopted(folder.path());
        hold(folder.path(), &link);
        drop(link);
        let error = keeper.run().unwrap_err();
        assert!(error.to_string().contains("did not send all that it serves"), "{error}");
        assert!(folder.path().join("s").exists(), "its sockets are still there");
        assert!(child.try_wait().unwrap().is_none());
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
