//! One client: a poller that receives, asks the disk, and answers.
//!
//! ```text
//! Negotiating --GO, EXPORT_NAME--> Serving --DISC--> Leaving --all answered--> Closed
//!      |                             |                                           ^
//!      +-- deadline, nonsense, told to end, the client has gone -----------------+
//! ```
//! `input` takes bytes from the socket, `output` gives replies to it; here is what lies between
//! them, the requests.

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
use crate::server::Membership;
use crate::stats::Counts;
use crate::wire::error;
use input::Input;
use output::{Output, Reply};

/// Longest that a client may take until it has chosen an export.
pub const HANDSHAKE_DEADLINE: Duration = Duration::from_secs(10);

/// Requests that were taken and whose replies have not been handed to the kernel.
const REQUESTS_MAX: usize = 256;

/// Bytes of replies that the kernel is asked to hold for a client that is busy: its depth of
/// small ones. It takes that much again for its own needs.
const SEND_BUFFER_BYTES: usize = 256 << 10;

/// What operations on the socket are called.
const RECEIVED: u64 = 0;
const SENT: u64 = 1;
const DEADLINE: u64 = 2;

#[derive(Debug)]
enum Phase {
    Negotiating(Negotiation),
    Serving,
    /// Takes no more; ends when everything is answered.
    Leaving,
    /// Answers nobody any more; ends when the disk has.
    Closed,
}

/// A request that has been taken.
#[derive(Debug)]
struct ActiveRequest {
    cookie: u64,
    command: Command,
    offset: u64,
    len: u32,
    /// Bytes of the room before what was asked for: a read that begins inside of a block.
    before: usize,
    request_buffer: Option<RequestBuffer>,
    /// A trim that is done, and made durable now.
    flushing: bool,
}

/// One client.
pub(crate) struct Connection {
    socket: File,
    port: CompletionPort,
    channel: Box<dyn Channel>,
    reactor: Handle,
    id: PollerId,
    questions: Sender<ExtentQuery>,
    export_info: ExportInfo,
    limits: Limits,
    /// Whatever is read is zero.
    nothing_stored: bool,
    phase: Phase,
    /// It got as far as choosing an export.
    served: bool,
    connection_buffers: ConnectionBuffers,
    input: Input,
    output: Output,
    busy_poll: BusyPoll,
    /// What comes next is looked for; otherwise the kernel tells when it is there.
    looking: bool,
    active: Vec<Option<ActiveRequest>>,
    free: Vec<u32>,
    /// Requests that the disk works on.
    at_disk: usize,
    /// Handed back by a disk that was out of something.
    held: Option<Request>,
    /// Lists to use again.
    lists: Vec<Buffers>,
    op_completion: Vec<OpCompletion>,
    completed: Vec<Completion>,
    counts: Counts,
    member: Membership,
    _keep: Box<dyn Any + Send>,
}

impl Connection {
    pub(crate) fn new(
        context: &mut Context<'_>,
        socket: OwnedFd,
        member: Membership,
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
        // What is in the way of a batch of replies is the client's turn to take them. The kernel
        // gives what its limit allows; with less it works too.
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

    /// Ends the connection; what the disk still does for it runs to its end.
    pub(crate) fn close(&mut self, context: &mut Context<'_>) {
        if matches!(self.phase, Phase::Closed) {
            return;
        }
        self.phase = Phase::Closed;
        // Ends the receive and the send that are under way.
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

    /// Takes a request whose command was found to be fine; false: there is no room for it yet.
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
            // Only a structured reply can say so.
            Command::Read if self.limits.structured && self.nothing_stored => {
                self.count(command, len);
                self.reply(Reply::Hole { cookie, offset, len });
            }
            Command::Read | Command::Write { .. } => return self.begin_data(context, active),
            Command::Cache => self.reply(Reply::Simple { cookie, error: 0 }),
            // It has written nothing that could be made durable.
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

    /// Finds room for data; a read is submitted, the data of a write is awaited.
    fn begin_data(&mut self, context: &mut Context<'_>, mut active: ActiveRequest) -> bool {
        let block = u64::from(self.limits.geometry.block_size);
        let (first, end) = (active.offset, active.offset + u64::from(active.len));
        // A part of a block is cut out of the whole one.
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

    /// All data of a write is there.
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

    /// What the storage has said about a range.
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
            // Nobody is there any more.
            (Phase::Closed, Reply::Data { request_buffer, .. }) => {
                self.connection_buffers.put(request_buffer)
            }
            (Phase::Closed, _) => {}
            (_, reply) => self.output.replies.push_back(reply),
        }
    }

    /// Takes what has ended on the socket.
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
                        "client cut off: no handshake in time"
                    );
                    self.close(context);
                }
            }
        }
        self.op_completion = op_completion;
    }

    /// Everything is answered, or nobody waits for an answer.
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
        self.look(context);
        self.take(context);
        self.send(context);
        let expects = self.expects(context);
        // What is expected may come by a receive that was begun while the disk was at work.
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
        // Whatever it waits for is an operation, or a letter.
        false
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // A receive that waits for the client must not keep the reactor from ending.
        let _ = shutdown(&self.socket, Shutdown::Both);
    }
}
