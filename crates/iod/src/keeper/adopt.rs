//! A worker whose keeper has died is kept again by a new one.
//!
//! Its control socket is asked for a link (`keeper.adopt`); it comes as a descriptor with the
//! answer. Then the worker has everything held that its last keeper held.

use std::io::{IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use model::rpc::{Adopted, Request, Response};
use rustix::io::retry_on_intr;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg, sockopt};
use rustix::process::{Pid, geteuid};

use super::worker::Worker;
use crate::link::Link;

/// Longest wait for the answer: nothing that the worker does for it takes time.
const ANSWER_DEADLINE: Duration = Duration::from_secs(5);
/// Longest answer.
const MAX_ANSWER_BYTES: usize = 64 << 10;

/// Asks the worker behind a control socket to be kept.
///
/// # Errors
/// It has a keeper, is no worker, or belongs to somebody else.
pub(super) fn take_over(control: &Path) -> anyhow::Result<(Worker, Adopted)> {
    let stream = UnixStream::connect(control).context("cannot connect to it")?;
    stream.set_read_timeout(Some(ANSWER_DEADLINE))?;
    stream.set_write_timeout(Some(ANSWER_DEADLINE))?;
    let theirs = sockopt::socket_peercred(&stream)?.uid;
    anyhow::ensure!(theirs == geteuid(), "it belongs to user {}", theirs.as_raw());
    let mut line = serde_json::to_vec(&Request::new(1, "keeper.adopt", Default::default()))?;
    line.push(b'\n');
    (&stream).write_all(&line)?;
    let (answer, fd) = receive(&stream).context("it gave no answer")?;
    let answer: Response = serde_json::from_slice(&answer).context("its answer is none of ours")?;
    let adopted: Adopted = serde_json::from_value(answer.outcome()?)?;
    let link = Link::new(fd.context("its answer came without a link")?);
    let pid = i32::try_from(adopted.pid).ok().and_then(Pid::from_raw);
    let worker = Worker::adopt(pid.context("it has no process id")?, link)?;
    // As long as the link is open, the number was not given to another process.
    anyhow::ensure!(!worker.is_closed()?, "it has just ended; try again");
    Ok((worker, adopted))
}

/// A line, and the first descriptor that came with it.
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
        anyhow::ensure!(got > 0, "it closed the connection");
        line.extend_from_slice(bytes.get(..got).unwrap_or_default());
        anyhow::ensure!(line.len() <= MAX_ANSWER_BYTES, "its answer has no end");
    }
    Ok((line, fd))
}
