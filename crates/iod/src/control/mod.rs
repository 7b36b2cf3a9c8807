//! The control socket, with one thread for each caller and one line for each call.
//!
//! A caller waits only for its own calls. The [`DiskRegistry`] serializes calls that concern the
//! same disk.

mod dispatch;
mod incoming;
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
use crate::image_calls::ImageCalls;
use crate::storage_calls::StorageCalls;
use dispatch::{AfterReply, CallContext, answer};
pub(crate) use dispatch::{parse, refusal};
use incoming::Incoming;
use lines::Line;

/// Most callers at a time. Each has a thread and a buffer, and the control plane needs a handful.
pub const MAX_CALLERS: usize = 64;
/// Longest wait at the end of the process until callers have read their last reply. The disks are
/// detached by then, and replies are short. So a caller that takes longer does not read.
const ANSWER_GRACE: Duration = Duration::from_secs(2);
/// Longest wait for pending replies after another process took over. The replies take no time, but
/// a scraper may have connected without sending its request yet.
const PARTING_GRACE: Duration = Duration::from_secs(5);

/// Serves callers until it is stopped.
#[derive(Debug)]
pub struct ControlServer {
    disk_registry: Arc<DiskRegistry>,
    client_set: Mutex<ClientSet>,
    /// Notified when a caller's thread is about to end.
    left: Condvar,
    gate: AcceptGate,
    image_calls: ImageCalls,
    storage_calls: StorageCalls,
    /// Gate of the metrics socket, which another process takes over together with the control
    /// socket.
    scrapers: Arc<AcceptGate>,
    /// Signalled when a caller has requested the end of the process.
    end: StopSignal,
}

#[derive(Debug, Default)]
struct ClientSet {
    next: u64,
    open: BTreeMap<u64, Open>,
    /// Threads that ended and must be joined.
    ended: Vec<JoinHandle<()>>,
    /// True after another process took over. Each caller without a reply still gets one, and no
    /// more.
    parting: bool,
}

#[derive(Debug)]
struct Open {
    stream: Arc<UnixStream>,
    thread: JoinHandle<()>,
    /// True if the caller has received a reply.
    answered: bool,
}

impl ControlServer {
    /// Creates a server for the disks of `disk_registry`. It signals `end` after the reply to a
    /// shutdown call. `scrapers` is the gate of this process's metrics socket.
    ///
    /// # Errors
    /// The process cannot open more descriptors.
    pub(crate) fn new(
        disk_registry: Arc<DiskRegistry>,
        end: StopSignal,
        scrapers: Arc<AcceptGate>,
    ) -> io::Result<Arc<Self>> {
        let (client_set, left, gate) = (Mutex::default(), Condvar::new(), AcceptGate::new()?);
        let (image_calls, storage_calls) = (ImageCalls::default(), StorageCalls::default());
        Ok(Arc::new(Self {
            disk_registry,
            client_set,
            left,
            gate,
            image_calls,
            storage_calls,
            scrapers,
            end,
        }))
    }

    fn callers(&self) -> MutexGuard<'_, ClientSet> {
        // Entries are added and removed as a whole, so a panic elsewhere cannot leave them
        // inconsistent.
        self.client_set.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Accepts callers from `listener` until [`Self::stop`]. Then it waits until all callers have
    /// finished their calls. A caller that does not read its replies is disconnected.
    ///
    /// # Errors
    /// The socket failed.
    pub fn run(self: &Arc<Self>, listener: &Listener) -> Result<(), SocketError> {
        let outcome = self.take_callers(listener);
        self.let_go();
        outcome
    }

    /// Ends [`Self::run`]. Does not wait.
    pub fn stop(&self) {
        self.gate.stop();
    }

    /// Stops accepting callers and scrapers. New ones wait until another process accepts them, or
    /// until [`Self::open`] is called.
    ///
    /// # Errors
    /// The process cannot open more descriptors. [`Self::open`] undoes a partial pause.
    pub(crate) fn pause_accept(&self) -> io::Result<()> {
        self.gate.pause()?;
        self.scrapers.pause()
    }

    /// Accepts callers and scrapers again.
    pub(crate) fn open(&self) {
        self.gate.resume();
        self.scrapers.resume();
    }

    fn take_callers(self: &Arc<Self>, listener: &Listener) -> Result<(), SocketError> {
        while let Some(accept_permit) = self.gate.enter() {
            while let Some(stream) = listener.accept(accept_permit.wake())? {
                if let Err(error) = self.admit(stream) {
                    tracing::warn!("control connection rejected: {error}");
                }
            }
        }
        Ok(())
    }

    /// Ends service after another process took over; that process accepts new connections. When
    /// this returns, each earlier caller has its reply, or sent no request in time. Runs on a
    /// caller's thread.
    fn part(&self) {
        let until = Instant::now() + PARTING_GRACE;
        self.scrapers.stop();
        let mut client_set = self.callers();
        client_set.parting = true;
        for caller in client_set.open.values().filter(|caller| caller.answered) {
            // Lines that have arrived are still read. This fails only if the other side has closed.
            let _ = caller.stream.shutdown(Shutdown::Read);
        }
        let others = |client_set: &mut ClientSet| client_set.open.len() > 1;
        drop(self.left.wait_timeout_while(client_set, PARTING_GRACE, others));
        self.scrapers.served(until);
    }

    fn let_go(&self) {
        let shut = |client_set: &ClientSet, how| {
            for caller in client_set.open.values() {
                // This fails only if the other side has closed already.
                let _ = caller.stream.shutdown(how);
            }
        };
        let client_set = self.callers();
        // Accept no more lines. Replies are still sent.
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
        // The thread takes the lock when it ends, so its entry exists by then.
        let thread = std::thread::Builder::new().name("control".into()).spawn(move || {
            if let Err(error) = server.serve(key, &line) {
                tracing::debug!("control connection failed: {error}");
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

    /// Records that a caller has its reply. Returns true if another process serves this caller from
    /// here on.
    fn was_last_answer(&self, key: u64) -> bool {
        let mut client_set = self.callers();
        if let Some(caller) = client_set.open.get_mut(&key) {
            caller.answered = true;
        }
        client_set.parting
    }

    fn serve(&self, key: u64, stream: &UnixStream) -> io::Result<()> {
        let mut reader = BufReader::new(Incoming::new(stream));
        let peer = sockopt::socket_peercred(stream)?;
        let (is_us, stream_fd) = (peer.uid == geteuid(), stream.as_fd());
        let call_context = CallContext { is_us, stream: stream_fd, end: &self.end, server: self };
        loop {
            let line = match lines::read(&mut reader, MAX_LINE_BYTES)? {
                Line::Whole(line) => line,
                Line::End => return Ok(()),
                Line::TooLong => {
                    let message = format!("line is longer than {MAX_LINE_BYTES} bytes");
                    return send(stream, &refusal(code::INVALID_REQUEST, message));
                }
            };
            let fds = reader.get_mut().take_fds();
            if line.iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            let (response, after) = answer(&self.disk_registry, &call_context, &line, fds);
            if let AfterReply::HandedOver = after {
                // A caller that does not read must not keep this process alive, because it serves
                // nothing else.
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
                // Exit without destructors: sockets, locks and images belong to the other process
                // now.
                AfterReply::HandedOver => {
                    // This caller need not wait for the other callers.
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

/// Sends a reply with a descriptor, which travels with the first byte.
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

/// Sends a reply.
pub(crate) fn send(mut stream: &UnixStream, response: &Response) -> io::Result<()> {
    let mut line = serde_json::to_vec(response)?;
    line.push(b'\n');
    stream.write_all(&line)
}
