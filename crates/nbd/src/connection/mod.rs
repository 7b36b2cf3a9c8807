//! One client's connection: a poller that receives requests, submits them to the disk, and replies.
//!
//! ```text
//! Negotiating --GO, EXPORT_NAME--> Serving --DISC--> Leaving --all answered--> Closed
//!      |                             |                                           ^
//!      +-- deadline, bad request, hang_up, client disconnected ------------------+
//! ```
//! Module `input` receives from the socket, and `output` sends replies. This module handles the
//! requests between them.

mod input;
mod output;

use std::any::Any;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use disk::{Channel, Completion, Extent, IoError, Request, RequestKind, SubmitOutcome};
use memory::{Buffers, MemoryError};
use reactor::{
    CompletionPort, Context, File, Handle, IoOp, OpCompletion, PollOutcome, Poller, PollerId,
};
use rustix::net::sockopt::set_socket_send_buffer_size;
use rustix::net::{Shutdown, shutdown};

use crate::buffers::{BufferError, ConnectionBuffers, RequestBuffer};
use crate::busy_poll::BusyPoll;
use crate::command::{Command, Header, Limits, Refusal, refusal};
use crate::extents::{EXTENTS_MAX, ExtentQuery};
use crate::negotiation::{ExportInfo, Negotiation};
use crate::server::ConnectionPermit;
use crate::stats::Counts;
use crate::wire::error;
use input::Input;
use output::{Output, Reply};

/// Longest time from connect until the client has chosen an export.
pub const HANDSHAKE_DEADLINE: Duration = Duration::from_secs(10);

/// Most requests whose replies the kernel has not accepted yet.
const REQUESTS_MAX: usize = 256;

/// Requested size of the socket's send buffer in bytes. It holds the small replies of a busy
/// client's queue depth. The kernel adds the same amount for its own use.
const SEND_BUFFER_BYTES: usize = 256 << 10;

/// Tags of the connection's operations.
const RECEIVED: u64 = 0;
const SENT: u64 = 1;
const DEADLINE: u64 = 2;

#[derive(Debug)]
enum Phase {
    Negotiating(Negotiation),
    Serving,
    /// Accepts no more requests. Ends when all are answered.
    Leaving,
    /// Sends no more replies. Ends when the disk has completed all requests.
    Closed,
}

/// Request in progress.
#[derive(Debug)]
struct ActiveRequest {
    cookie: u64,
    command: Command,
    offset: u64,
    len: u32,
    /// Bytes in the buffer before the requested range, if a read starts inside a block.
    before: usize,
    request_buffer: Option<RequestBuffer>,
    /// True while the flush after a durable trim runs.
    flushing: bool,
}

/// Connection of one client.
pub(crate) struct Connection {
    socket: File,
    port: CompletionPort,
    channel: Box<dyn Channel>,
    reactor: Handle,
    id: PollerId,
    questions: Sender<ExtentQuery>,
    export_info: ExportInfo,
    limits: Limits,
    /// True if the whole disk reads as zeroes.
    nothing_stored: bool,
    phase: Phase,
    /// True once the client has chosen an export.
    served: bool,
    connection_buffers: ConnectionBuffers,
    input: Input,
    output: Output,
    busy_poll: BusyPoll,
    /// True if the reactor polls the socket. Otherwise a receive operation waits in the kernel.
    looking: bool,
    active: Vec<Option<ActiveRequest>>,
    free: Vec<u32>,
    /// Requests in flight at the disk.
    at_disk: usize,
    /// Request that the disk could not take yet because it lacked a resource.
    held: Option<Request>,
    /// Lists for reuse.
    lists: Vec<Buffers>,
    op_completion: Vec<OpCompletion>,
    completed: Vec<Completion>,
    counts: Counts,
    member: ConnectionPermit,
    _keep: Box<dyn Any + Send>,
}

impl Connection {
    pub(crate) fn new(
        context: &mut Context<'_>,
        socket: OwnedFd,
        member: ConnectionPermit,
        reactor: Handle,
        questions: Sender<ExtentQuery>,
        keep: Box<dyn Any + Send>,
    ) -> Result<Self, MemoryError> {
        let shared = &member.shared;
        let export_info = shared.offer();
        let mut geometry = shared.disk.geometry();
        (geometry.size, geometry.read_only) = (export_info.size, export_info.read_only);
        let (holes_fast, zeroes_fast) = (true, true);
        let limits =
            Limits { geometry, structured: false, allocation: false, holes_fast, zeroes_fast };
        // A batch of replies that does not fit must wait until the client reads. The kernel grants
        // what its limit allows. A smaller buffer works too.
        let _ = set_socket_send_buffer_size(&socket, SEND_BUFFER_BYTES);
        let port = context.open_port();
        let after = HANDSHAKE_DEADLINE;
        context.submit(&port, IoOp::Timer { after }, DEADLINE);
        let id = context.poller().expect("connections are made as pollers");
        Ok(Self {
            channel: shared.disk.open_channel(context),
            socket: File::new(Arc::new(socket)),
            port,
            reactor,
            id,
            questions,
            nothing_stored: shared.disk.reads_zeroes(),
            export_info,
            limits,
            phase: Phase::Negotiating(Negotiation::default()),
            served: false,
            connection_buffers: ConnectionBuffers::new()?,
            input: Input::default(),
            output: Output::greeting(),
            busy_poll: BusyPoll::default(),
            looking: false,
            active: Vec::new(),
            free: Vec::new(),
            at_disk: 0,
            held: None,
            lists: Vec::new(),
            op_completion: Vec::new(),
            completed: Vec::new(),
            counts: Counts::default(),
            member,
            _keep: keep,
        })
    }

    /// Closes the connection. Requests at the disk still run to their end.
    pub(crate) fn close(&mut self, context: &mut Context<'_>) {
        if matches!(self.phase, Phase::Closed) {
            return;
        }
        self.phase = Phase::Closed;
        // Ends the receive and the send in flight.
        let _ = shutdown(&self.socket, Shutdown::Both);
        self.output.replies.clear();
        self.held = None;
        self.channel.fail_stalled(context);
    }

    fn is_full(&self) -> bool {
        let requests = self.active.len() - self.free.len();
        self.held.is_some() || requests + self.output.replies.len() >= REQUESTS_MAX
    }

    fn insert(&mut self, active: ActiveRequest) -> u32 {
        match self.free.pop() {
            Some(tag) => {
                if let Some(place) = self.active.get_mut(tag as usize) {
                    *place = Some(active);
                }
                tag
            }
            None => {
                self.active.push(Some(active));
                (self.active.len() - 1) as u32
            }
        }
    }

    fn remove(&mut self, tag: u32) -> Option<ActiveRequest> {
        let active = self.active.get_mut(tag as usize)?.take()?;
        self.free.push(tag);
        Some(active)
    }

    /// Starts a request with a valid command. Returns false if no buffer is free yet.
    fn begin(&mut self, context: &mut Context<'_>, header: &Header, command: Command) -> bool {
        let Header { cookie, offset, len, .. } = *header;
        let mut active = ActiveRequest {
            cookie,
            command,
            offset,
            len,
            before: 0,
            request_buffer: None,
            flushing: false,
        };
        match command {
            // Only a structured reply can report a hole.
            Command::Read if self.limits.structured && self.nothing_stored => {
                self.count(command, len);
                self.reply(Reply::Hole { cookie, offset, len });
            }
            Command::Read | Command::Write { .. } => return self.begin_data(context, active),
            Command::Cache => self.reply(Reply::Simple { cookie, error: 0 }),
            // A read-only export has written nothing, so no data needs a flush.
            Command::Flush if self.limits.geometry.read_only => {
                self.reply(Reply::Simple { cookie, error: 0 });
            }
            Command::Flush => {
                active.len = 0;
                let tag = self.insert(active);
                self.submit(context, tag, RequestKind::Flush, 0, 0, Buffers::default());
            }
            Command::Trim { .. } => {
                let tag = self.insert(active);
                self.submit(
                    context,
                    tag,
                    RequestKind::Discard,
                    offset,
                    len.into(),
                    Buffers::default(),
                );
            }
            Command::WriteZeroes { unmap, durable } => {
                let (tag, kind) =
                    (self.insert(active), RequestKind::WriteZeroes { unmap, durable });
                self.submit(context, tag, kind, offset, len.into(), Buffers::default());
            }
            Command::BlockStatus { one } => {
                let (reactor, connection) = (self.reactor.clone(), self.id);
                let (tag, limit) = (self.insert(active), if one { 1 } else { EXTENTS_MAX });
                let len = len.into();
                let extent_query = ExtentQuery { offset, len, limit, reactor, connection, tag };
                if self.questions.send(extent_query).is_err() {
                    self.extents_found(tag, Err(IoError::Unsupported));
                }
            }
            Command::Disconnect => self.phase = Phase::Leaving,
        }
        true
    }

    /// Allocates the buffer, then submits a read or waits for the data of a write. Returns false if
    /// no buffer is free yet.
    fn begin_data(&mut self, context: &mut Context<'_>, mut active: ActiveRequest) -> bool {
        let block = u64::from(self.limits.geometry.block_size);
        let (first, end) = (active.offset, active.offset + u64::from(active.len));
        // A read of partial blocks reads whole blocks and sends the requested part.
        let (from, to) = (first - first % block, end.next_multiple_of(block));
        active.before = (first - from) as usize;
        let request_buffer = match self.connection_buffers.take((to - from) as usize) {
            Ok(request_buffer) => request_buffer,
            Err(BufferError::Yet) => return false,
            Err(BufferError::Memory) => {
                let why = Refusal { error: error::NOMEM, message: "out of memory" };
                self.refuse(&active, why);
                return true;
            }
        };
        if active.command != Command::Read {
            active.request_buffer = Some(request_buffer);
            let len = active.len as usize;
            let tag = self.insert(active);
            self.input.await_data(tag, len);
            return true;
        }
        let list = self.lists.pop().unwrap_or_default();
        let list = request_buffer.list(list, 0, (to - from) as usize).unwrap_or_default();
        active.request_buffer = Some(request_buffer);
        let tag = self.insert(active);
        self.submit(context, tag, RequestKind::Read, from, to - from, list);
        true
    }

    /// Submits a write whose data is complete.
    fn write(&mut self, context: &mut Context<'_>, tag: u32) {
        let list = self.lists.pop().unwrap_or_default();
        let Some(Some(active)) = self.active.get(tag as usize) else { return };
        let Some(request_buffer) = &active.request_buffer else { return };
        let Command::Write { durable } = active.command else { return };
        let (offset, len) = (active.offset, active.len);
        let list = request_buffer.list(list, 0, len as usize).unwrap_or_default();
        self.submit(context, tag, RequestKind::Write { durable }, offset, len.into(), list);
    }

    fn submit(
        &mut self,
        context: &mut Context<'_>,
        tag: u32,
        kind: RequestKind,
        offset: u64,
        len: u64,
        buffers: Buffers,
    ) {
        let request = Request { kind, offset, len, buffers, tag };
        match self.channel.submit(context, request) {
            SubmitOutcome::Done(completion) => self.complete(context, completion),
            SubmitOutcome::Pending => self.at_disk += 1,
            SubmitOutcome::Full(request) => self.held = Some(request),
        }
    }

    fn reap_disk(&mut self, context: &mut Context<'_>) {
        let mut completed = std::mem::take(&mut self.completed);
        self.channel.reap(context, &mut completed);
        for completion in completed.drain(..) {
            self.at_disk = self.at_disk.saturating_sub(1);
            self.complete(context, completion);
        }
        self.completed = completed;
        if let Some(Request { kind, offset, len, buffers, tag }) = self.held.take() {
            self.submit(context, tag, kind, offset, len, buffers);
        }
    }

    fn complete(&mut self, context: &mut Context<'_>, completion: Completion) {
        let Completion { tag, outcome, mut buffers } = completion;
        buffers.clear();
        if buffers.capacity() > 0 && self.lists.len() < REQUESTS_MAX {
            self.lists.push(buffers);
        }
        let Some(mut active) = self.remove(tag) else { return };
        if let Err(failure) = outcome {
            tracing::debug!(export = self.export_info.name, %failure, "request failed");
            self.refuse(&active, refusal(failure));
            self.give_back(active.request_buffer.take());
            return;
        }
        if active.command == (Command::Trim { durable: true }) && !active.flushing {
            active.flushing = true;
            let tag = self.insert(active);
            return self.submit(context, tag, RequestKind::Flush, 0, 0, Buffers::default());
        }
        let ActiveRequest { cookie, command, offset, len, before, request_buffer, .. } = active;
        self.count(command, len);
        match (command, request_buffer) {
            (Command::Read, Some(request_buffer)) => {
                self.reply(Reply::Data { cookie, offset, len, before, request_buffer });
            }
            (_, request_buffer) => {
                self.give_back(request_buffer);
                self.reply(Reply::Simple { cookie, error: 0 });
            }
        }
    }

    fn count(&mut self, command: Command, len: u32) {
        match command {
            Command::Read => {
                self.counts.reads += 1;
                self.counts.read_bytes += u64::from(len);
            }
            Command::Write { .. } => {
                self.counts.writes += 1;
                self.counts.written_bytes += u64::from(len);
            }
            _ => self.counts.others += 1,
        }
    }

    fn give_back(&mut self, request_buffer: Option<RequestBuffer>) {
        if let Some(request_buffer) = request_buffer {
            self.connection_buffers.put(request_buffer);
        }
    }

    /// Replies to a block-status request with the result of its query.
    pub(crate) fn extents_found(&mut self, tag: u32, found: Result<Vec<Extent>, IoError>) {
        let Some(active) = self.remove(tag) else { return };
        match found {
            Ok(extents) => {
                self.count(active.command, 0);
                self.reply(Reply::Bytes(crate::reply::block_status(active.cookie, &extents)));
            }
            Err(failure) => self.refuse(&active, refusal(failure)),
        }
    }

    fn refuse(&mut self, active: &ActiveRequest, why: Refusal) {
        self.refuse_cookie(active.cookie, why);
    }

    fn refuse_cookie(&mut self, cookie: u64, why: Refusal) {
        self.counts.errors += 1;
        self.reply(if self.limits.structured {
            Reply::Bytes(crate::reply::error(cookie, why))
        } else {
            Reply::Simple { cookie, error: why.error }
        });
    }

    fn reply(&mut self, reply: Reply) {
        match (&self.phase, reply) {
            // The client has disconnected.
            (Phase::Closed, Reply::Data { request_buffer, .. }) => {
                self.connection_buffers.put(request_buffer)
            }
            (Phase::Closed, _) => {}
            (_, reply) => self.output.replies.push_back(reply),
        }
    }

    /// Handles completed operations of the socket.
    fn reap_socket(&mut self, context: &mut Context<'_>) {
        let mut op_completion = std::mem::take(&mut self.op_completion);
        context.reap(&self.port, &mut op_completion);
        for one in op_completion.drain(..) {
            match one.tag {
                RECEIVED => {
                    self.busy_poll.received(context.now());
                    self.received(context, one);
                }
                SENT => self.sent(context, one),
                _ if self.served => {}
                _ => {
                    tracing::info!(
                        export = self.export_info.name,
                        "client disconnected: no handshake in time"
                    );
                    self.close(context);
                }
            }
        }
        self.op_completion = op_completion;
    }

    /// Returns whether the connection can end: it is closed, and the disk holds no request that may
    /// write.
    fn is_over(&mut self, context: &mut Context<'_>) -> bool {
        if matches!(self.phase, Phase::Leaving)
            && self.active.len() == self.free.len()
            && self.output.is_empty()
        {
            self.close(context);
        }
        let reads_only = self.limits.geometry.read_only;
        matches!(self.phase, Phase::Closed) && (self.at_disk == 0 || reads_only)
    }
}

impl Poller for Connection {
    fn poll(&mut self, context: &mut Context<'_>) -> PollOutcome {
        self.reap_socket(context);
        self.reap_disk(context);
        self.poll_socket(context);
        self.take(context);
        self.send(context);
        let expects = self.expects(context);
        // A receive that started while the disk was busy may still be in flight. It then delivers
        // the next data, so no polling is needed.
        self.looking = expects && self.may_receive();
        if !self.looking {
            self.receive(context);
        }
        if self.counts != Counts::default() {
            self.member.shared.counts.add(&std::mem::take(&mut self.counts));
        }
        if self.is_over(context) {
            return PollOutcome::Gone;
        }
        if expects { PollOutcome::Busy } else { PollOutcome::Idle }
    }

    fn on_runnable(&mut self) {}

    fn arm(&mut self) -> bool {
        // Every wakeup is a completed operation or a message to the reactor.
        false
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // A receive in flight must not prevent the reactor from ending.
        let _ = shutdown(&self.socket, Shutdown::Both);
    }
}
