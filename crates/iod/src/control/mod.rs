//! The control socket: one thread for each caller, one line for each call.
//!
//! A caller waits only for its own calls; calls that concern one disk exclude each other in the
//! [`Table`].

mod dispatch;
mod lines;

use std::collections::BTreeMap;
use std::io::{self, BufReader, IoSlice, Write};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use model::rpc::{MAX_LINE_BYTES, Response, code};
use rustix::io::retry_on_intr;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg, sockopt};
use rustix::process::geteuid;
use vhost_user::{Listener, SocketError, Stop};

use crate::table::Table;
use dispatch::{After, Caller, answer, refusal};
use lines::Line;

/// Callers at a time: each has a thread and a buffer, and the control plane needs a handful.
pub const MAX_CALLERS: usize = 64;
/// How long the end of the process waits for callers to take their last answers. The disks are
/// gone by then, and answers are short: a caller that takes longer does not read.
const ANSWER_GRACE: Duration = Duration::from_secs(2);

/// Serves callers until it is stopped.
#[derive(Debug)]
pub struct Server {
    table: Arc<Table>,
    callers: Mutex<Callers>,
    /// A caller's thread is about to end.
    left: Condvar,
    /// Wakes whoever waits for callers.
    wake: Mutex<Stop>,
    /// Told when a caller has asked for the end of the process.
    end: Stop,
}

#[derive(Debug, Default)]
struct Callers {
    next: u64,
    open: BTreeMap<u64, (Arc<UnixStream>, JoinHandle<()>)>,
    /// Ended, still to be joined.
    ended: Vec<JoinHandle<()>>,
    /// No caller is taken.
    shut: bool,
    /// Whoever takes callers knows of it.
    resting: bool,
    /// None ever will be.
    stopped: bool,
}

impl Server {
    /// A server for the disks of `table`. It gives `end` when a caller asks for a shutdown and
    /// has been answered.
    ///
    /// # Errors
    /// The process may open no more descriptors.
    pub fn new(table: Arc<Table>, end: Stop) -> io::Result<Arc<Self>> {
        let (callers, left, wake) = (Mutex::default(), Condvar::new(), Mutex::new(Stop::new()?));
        Ok(Arc::new(Self { table, callers, left, wake, end }))
    }

    fn callers(&self) -> MutexGuard<'_, Callers> {
        // Additions and removals of whole entries: a panic elsewhere leaves them whole.
        self.callers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes callers from `listener` until [`Self::stop`]; then lets those that are here finish
    /// their call, and waits for them. One that does not read its answers is cut off.
    ///
    /// # Errors
    /// The socket is broken.
    pub fn run(self: &Arc<Self>, listener: &Listener) -> Result<(), SocketError> {
        let outcome = self.take_callers(listener);
        self.let_go();
        outcome
    }

    /// Ends [`Self::run`]. Does not wait.
    pub fn stop(&self) {
        self.callers().stopped = true;
        self.wake().stop();
        self.left.notify_all();
    }

    fn wake(&self) -> Stop {
        self.wake.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Takes no caller from here on: whoever comes waits for another process to take them, or for
    /// [`Self::open`].
    pub(crate) fn shut(&self) {
        let mut callers = self.callers();
        callers.shut = true;
        self.wake().stop();
        while !callers.resting && !callers.stopped {
            callers = self.left.wait(callers).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Takes callers again.
    pub(crate) fn open(&self) {
        self.callers().shut = false;
        self.left.notify_all();
    }

    fn take_callers(self: &Arc<Self>, listener: &Listener) -> Result<(), SocketError> {
        loop {
            while let Some(stream) = listener.accept(&self.wake())? {
                if let Err(error) = self.admit(stream) {
                    tracing::warn!("caller turned away: {error}");
                }
            }
            let mut callers = self.callers();
            callers.resting = true;
            self.left.notify_all();
            while callers.shut && !callers.stopped {
                callers = self.left.wait(callers).unwrap_or_else(PoisonError::into_inner);
            }
            callers.resting = false;
            if callers.stopped {
                return Ok(());
            }
            let fresh = Stop::new().map_err(|source| SocketError::Os {
                action: "take callers on",
                path: listener.path().into(),
                source,
            })?;
            *self.wake.lock().unwrap_or_else(PoisonError::into_inner) = fresh;
        }
    }

    fn let_go(&self) {
        let shut = |callers: &Callers, how| {
            for (stream, _) in callers.open.values() {
                // Fails only where the other side has closed already.
                let _ = stream.shutdown(how);
            }
        };
        let callers = self.callers();
        // No more lines; answers still go out.
        shut(&callers, Shutdown::Read);
        let here = |callers: &mut Callers| !callers.open.is_empty();
        let waited = self.left.wait_timeout_while(callers, ANSWER_GRACE, here);
        let (mut callers, _) = waited.unwrap_or_else(PoisonError::into_inner);
        shut(&callers, Shutdown::Both);
        let gone = std::mem::take(&mut *callers);
        drop(callers);
        let open = gone.open.into_values().map(|(_, thread)| thread);
        for thread in open.chain(gone.ended) {
            let _ = thread.join();
        }
    }

    fn admit(self: &Arc<Self>, stream: UnixStream) -> io::Result<()> {
        let mut callers = self.callers();
        for thread in callers.ended.drain(..) {
            let _ = thread.join();
        }
        if callers.open.len() >= MAX_CALLERS {
            drop(callers);
            let message = format!("{MAX_CALLERS} callers are connected; close one and try again");
            return send(&stream, &refusal(code::FAILED, message));
        }
        let (stream, key) = (Arc::new(stream), callers.next);
        callers.next += 1;
        let (server, line) = (Arc::clone(self), Arc::clone(&stream));
        // It takes the lock when it ends, so its entry is there by then.
        let thread = std::thread::Builder::new().name("control".into()).spawn(move || {
            if let Err(error) = server.serve(&line) {
                tracing::debug!("caller lost: {error}");
            }
            let mut callers = server.callers();
            if let Some((_, thread)) = callers.open.remove(&key) {
                callers.ended.push(thread);
            }
            server.left.notify_all();
        })?;
        callers.open.insert(key, (stream, thread));
        Ok(())
    }

    fn serve(&self, stream: &UnixStream) -> io::Result<()> {
        let mut reader = BufReader::new(stream);
        let peer = sockopt::socket_peercred(stream)?;
        let caller = Caller { is_us: peer.uid == geteuid(), end: &self.end, server: self };
        loop {
            let line = match lines::read(&mut reader, MAX_LINE_BYTES)? {
                Line::Whole(line) => line,
                Line::End => return Ok(()),
                Line::TooLong => {
                    let message = format!("line is longer than {MAX_LINE_BYTES} bytes");
                    return send(stream, &refusal(code::INVALID_REQUEST, message));
                }
            };
            if line.iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            let (response, after) = answer(&self.table, &caller, &line);
            if let After::HandedOver = after {
                // One that reads nothing must not keep this process, which serves nobody else.
                stream.set_write_timeout(Some(ANSWER_GRACE))?;
            }
            let sent = match &after {
                After::Give(fd) => send_with(stream, &response, fd.as_fd()),
                After::GoOn | After::ShutDown | After::HandedOver => send(stream, &response),
            };
            match after {
                After::GoOn | After::Give(_) => {}
                After::ShutDown => self.end.stop(),
                // Without a single destructor: sockets, locks and images are another's now.
                After::HandedOver => std::process::exit(0),
            }
            sent?;
        }
    }
}

/// Sends an answer with a descriptor: it goes with the first byte.
fn send_with(mut stream: &UnixStream, response: &Response, fd: BorrowedFd<'_>) -> io::Result<()> {
    let mut line = serde_json::to_vec(response)?;
    line.push(b'\n');
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = [fd];
    control.push(SendAncillaryMessage::ScmRights(&fds));
    let sent = retry_on_intr(|| {
        sendmsg(stream, &[IoSlice::new(&line)], &mut control, SendFlags::NOSIGNAL)
    })?;
    stream.write_all(line.get(sent..).unwrap_or_default())
}

fn send(mut stream: &UnixStream, response: &Response) -> io::Result<()> {
    let mut line = serde_json::to_vec(response)?;
    line.push(b'\n');
    stream.write_all(&line)
}
