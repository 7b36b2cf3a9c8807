//! The control socket: one thread for each caller, one line for each call.
//!
//! A caller waits only for its own calls; calls that concern one disk exclude each other in the
//! [`DiskRegistry`].

mod dispatch;
pub(crate) mod lines;

use std::collections::BTreeMap;
use std::io::{self, BufReader, IoSlice, Write};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use model::rpc::{MAX_LINE_BYTES, Response, code};
use rustix::io::retry_on_intr;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg, sockopt};
use rustix::process::geteuid;
use vhost_user::{Listener, SocketError, StopSignal};

use crate::accept_gate::AcceptGate;
use crate::disk_registry::DiskRegistry;
use dispatch::{AfterReply, CallContext, answer};
pub(crate) use dispatch::{parse, refusal};
use lines::Line;

/// Callers at a time: each has a thread and a buffer, and the control plane needs a handful.
pub const MAX_CALLERS: usize = 64;
/// How long the end of the process waits for callers to take their last answers. The disks are
/// gone by then, and answers are short: a caller that takes longer does not read.
const ANSWER_GRACE: Duration = Duration::from_secs(2);
/// How long a process that another one serves in place of waits for answers that it still owes.
/// They take no time, but a scraper may have connected and not yet asked.
const PARTING_GRACE: Duration = Duration::from_secs(5);

/// Serves callers until it is stopped.
#[derive(Debug)]
pub struct ControlServer {
    disk_registry: Arc<DiskRegistry>,
    client_set: Mutex<ClientSet>,
    /// A caller's thread is about to end.
    left: Condvar,
    gate: AcceptGate,
    /// Of the metrics' socket, which another process takes over together with this one.
    scrapers: Arc<AcceptGate>,
    /// Told when a caller has asked for the end of the process.
    end: StopSignal,
}

#[derive(Debug, Default)]
struct ClientSet {
    next: u64,
    open: BTreeMap<u64, Open>,
    /// Ended, still to be joined.
    ended: Vec<JoinHandle<()>>,
    /// Another process serves: each gets one answer, if it has none yet, and no more.
    parting: bool,
}

#[derive(Debug)]
struct Open {
    stream: Arc<UnixStream>,
    thread: JoinHandle<()>,
    /// It has been answered.
    answered: bool,
}

impl ControlServer {
    /// A server for the disks of `table`. It gives `end` when a caller asks for a shutdown and
    /// has been answered. By `scrapers` the metrics of the same process are served.
    ///
    /// # Errors
    /// The process may open no more descriptors.
    pub(crate) fn new(
        disk_registry: Arc<DiskRegistry>,
        end: StopSignal,
        scrapers: Arc<AcceptGate>,
    ) -> io::Result<Arc<Self>> {
        let (client_set, left, gate) = (Mutex::default(), Condvar::new(), AcceptGate::new()?);
        Ok(Arc::new(Self { disk_registry, client_set, left, gate, scrapers, end }))
    }

    fn callers(&self) -> MutexGuard<'_, ClientSet> {
        // Additions and removals of whole entries: a panic elsewhere leaves them whole.
        self.client_set.lock().unwrap_or_else(PoisonError::into_inner)
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
        self.gate.stop();
    }

    /// Takes no caller and no scraper from here on: whoever comes waits for another process to take
    /// them, or for [`Self::resume`].
    ///
    /// # Errors
    /// The process may open no more descriptors; [`Self::resume`] undoes what was done.
    pub(crate) fn pause_accept(&self) -> io::Result<()> {
        self.gate.pause()?;
        self.scrapers.pause()
    }

    /// Takes callers and scrapers again.
    pub(crate) fn open(&self) {
        self.gate.resume();
        self.scrapers.resume();
    }

    fn take_callers(self: &Arc<Self>, listener: &Listener) -> Result<(), SocketError> {
        while let Some(accept_permit) = self.gate.enter() {
            while let Some(stream) = listener.accept(accept_permit.wake())? {
                if let Err(error) = self.admit(stream) {
                    tracing::warn!("caller turned away: {error}");
                }
            }
        }
        Ok(())
    }

    /// Another process serves, and whoever comes is its own. Those that came here before have an
    /// answer when this returns, or have not asked for one in time. Called by a caller's thread.
    fn part(&self) {
        let until = Instant::now() + PARTING_GRACE;
        self.scrapers.stop();
        let mut client_set = self.callers();
        client_set.parting = true;
        for caller in client_set.open.values().filter(|caller| caller.answered) {
            // Lines that have come are still read. Fails only where the other side has closed.
            let _ = caller.stream.shutdown(Shutdown::Read);
        }
        let others = |client_set: &mut ClientSet| client_set.open.len() > 1;
        drop(self.left.wait_timeout_while(client_set, PARTING_GRACE, others));
        self.scrapers.served(until);
    }

    fn let_go(&self) {
        let shut = |client_set: &ClientSet, how| {
            for caller in client_set.open.values() {
                // Fails only where the other side has closed already.
                let _ = caller.stream.shutdown(how);
            }
        };
        let client_set = self.callers();
        // No more lines; answers still go out.
        shut(&client_set, Shutdown::Read);
        let here = |client_set: &mut ClientSet| !client_set.open.is_empty();
        let waited = self.left.wait_timeout_while(client_set, ANSWER_GRACE, here);
        let (mut client_set, _) = waited.unwrap_or_else(PoisonError::into_inner);
        shut(&client_set, Shutdown::Both);
        let gone = std::mem::take(&mut *client_set);
        drop(client_set);
        let open = gone.open.into_values().map(|caller| caller.thread);
        for thread in open.chain(gone.ended) {
            let _ = thread.join();
        }
    }

    fn admit(self: &Arc<Self>, stream: UnixStream) -> io::Result<()> {
        let mut client_set = self.callers();
        for thread in client_set.ended.drain(..) {
            let _ = thread.join();
        }
        if client_set.open.len() >= MAX_CALLERS {
            drop(client_set);
            let message = format!("{MAX_CALLERS} callers are connected; close one and try again");
            return send(&stream, &refusal(code::FAILED, message));
        }
        let (stream, key) = (Arc::new(stream), client_set.next);
        client_set.next += 1;
        let (server, line) = (Arc::clone(self), Arc::clone(&stream));
        // It takes the lock when it ends, so its entry is there by then.
        let thread = std::thread::Builder::new().name("control".into()).spawn(move || {
            if let Err(error) = server.serve(key, &line) {
                tracing::debug!("caller lost: {error}");
            }
            let mut client_set = server.callers();
            if let Some(caller) = client_set.open.remove(&key) {
                client_set.ended.push(caller.thread);
            }
            server.left.notify_all();
        })?;
        client_set.open.insert(key, Open { stream, thread, answered: false });
        Ok(())
    }

    /// A caller has been answered; true: another process answers it from here on.
    fn was_last_answer(&self, key: u64) -> bool {
        let mut client_set = self.callers();
        if let Some(caller) = client_set.open.get_mut(&key) {
            caller.answered = true;
        }
        client_set.parting
    }

    fn serve(&self, key: u64, stream: &UnixStream) -> io::Result<()> {
        let mut reader = BufReader::new(stream);
        let peer = sockopt::socket_peercred(stream)?;
        let call_context =
            CallContext { is_us: peer.uid == geteuid(), end: &self.end, server: self };
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
            let (response, after) = answer(&self.disk_registry, &call_context, &line);
            if let AfterReply::HandedOver = after {
                // One that reads nothing must not keep this process, which serves nobody else.
                stream.set_write_timeout(Some(ANSWER_GRACE))?;
            }
            let sent = match &after {
                AfterReply::Give(fd) => send_with(stream, &response, fd.as_fd()),
                AfterReply::GoOn | AfterReply::ShutDown | AfterReply::HandedOver => {
                    send(stream, &response)
                }
            };
            match after {
                AfterReply::GoOn | AfterReply::Give(_) => {}
                AfterReply::ShutDown => self.end.stop(),
                // Without a single destructor: sockets, locks and images are another's now.
                AfterReply::HandedOver => {
                    // It need not wait for what is done for others.
                    let _ = stream.shutdown(Shutdown::Both);
                    self.part();
                    std::process::exit(0)
                }
            }
            sent?;
            if self.was_last_answer(key) {
                return Ok(());
            }
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

/// Sends an answer.
pub(crate) fn send(mut stream: &UnixStream, response: &Response) -> io::Result<()> {
    let mut line = serde_json::to_vec(response)?;
    line.push(b'\n');
    stream.write_all(&line)
}
