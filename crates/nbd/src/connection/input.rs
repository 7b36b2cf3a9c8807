//! Receives bytes and parses requests.

use memory::Buffers;
use reactor::{Context, IoOp, OpCompletion};
use rustix::io::Errno;

use super::output::Reply;
use super::{Connection, Phase, RECEIVED};
use crate::buffers::RECEIVE_BYTES;
use crate::command::{Header, Refusal, check};
use crate::negotiation::{OPTION_BYTES_MAX, Step};
use crate::wire::REQUEST_BYTES;

/// Unsent handshake replies at which the server stops reading options from the client.
const ANSWERS_MAX: usize = 8;

/// Received bytes that are not parsed yet.
#[derive(Debug, Default)]
pub(super) struct Input {
    /// The unparsed bytes are `start..end` of the receive area.
    start: usize,
    end: usize,
    receiving: Option<Target>,
    /// Write whose data is incomplete.
    data: Option<Data>,
    /// Rejected write: data bytes still to discard, cookie, and the reply to send afterwards.
    refused: Option<(u32, u64, Refusal)>,
    list: Buffers,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    /// The free part of the receive area.
    Buffer,
    /// Buffer of the write whose data is incomplete.
    Room,
}

#[derive(Clone, Copy, Debug)]
struct Data {
    tag: u32,
    got: usize,
    len: usize,
}

impl Input {
    pub(super) fn await_data(&mut self, tag: u32, len: usize) {
        self.data = Some(Data { tag, got: 0, len });
    }

    fn held(&self) -> usize {
        self.end - self.start
    }
}

impl Connection {
    /// Handles a completed receive.
    pub(super) fn received(&mut self, context: &mut Context<'_>, op_completion: OpCompletion) {
        let target = self.input.receiving.take();
        let outcome = op_completion.outcome();
        if let Some(mut list) = op_completion.buffers {
            list.clear();
            self.input.list = list;
        }
        match outcome {
            Ok(count) if count > 0 => self.got(target, count as usize),
            // The client has disconnected, or the receive failed.
            _ => self.close(context),
        }
    }

    fn got(&mut self, target: Option<Target>, count: usize) {
        match (target, &mut self.input.data) {
            (Some(Target::Room), Some(data)) => data.got += count,
            _ => self.input.end += count,
        }
    }

    /// Polls the socket without an operation on the ring.
    pub(super) fn poll_socket(&mut self, context: &mut Context<'_>) {
        if !self.looking || !self.may_receive() {
            return;
        }
        let Some((target, mut list)) = self.next_list() else { return };
        let outcome = self.socket.recv_nowait(&list);
        context.count_syscalls(1);
        list.clear();
        self.input.list = list;
        self.counts.polls += 1;
        match outcome {
            Ok(count) if count > 0 => {
                self.busy_poll.received(context.now());
                self.got(Some(target), count);
            }
            Err(Errno::AGAIN | Errno::INTR) => {}
            _ => self.close(context),
        }
    }

    /// Returns whether a receive may start: none is in flight and the phase allows it.
    pub(super) fn may_receive(&self) -> bool {
        let takes = matches!(self.phase, Phase::Negotiating(_) | Phase::Serving);
        takes && self.input.receiving.is_none()
    }

    /// Returns whether the reactor should poll for the client's next data.
    pub(super) fn expects(&mut self, context: &mut Context<'_>) -> bool {
        // While the disk works on a request, the next event is its completion.
        let free = self.at_disk == 0 && matches!(self.phase, Phase::Serving);
        free && !self.is_stalled() && self.busy_poll.should_poll(context.now())
    }

    /// Returns whether unparsed data already waits for a free slot.
    fn is_stalled(&self) -> bool {
        let held = self.input.held();
        let whole = matches!(self.phase, Phase::Serving) && held >= REQUEST_BYTES;
        self.input.data.is_none() && (whole || held >= RECEIVE_BYTES)
    }

    /// Handles every complete message.
    pub(super) fn take(&mut self, context: &mut Context<'_>) {
        let goes_on = |this: &mut Self, context: &mut Context<'_>| match this.phase {
            Phase::Negotiating(_) => this.take_option(),
            Phase::Serving => this.take_request(context),
            Phase::Leaving | Phase::Closed => false,
        };
        while goes_on(self, context) {}
    }

    fn take_option(&mut self) -> bool {
        let Phase::Negotiating(negotiation) = &mut self.phase else { return false };
        if self.output.replies.len() >= ANSWERS_MAX {
            return false;
        }
        // One option fits with its header.
        let mut bytes = vec![0; self.input.held().min(OPTION_BYTES_MAX + 64)];
        if !self.connection_buffers.thread_mapping.read(self.input.start, &mut bytes) {
            return false;
        }
        let mut answer = Vec::new();
        let step = negotiation.step(&self.export_info, &bytes, &mut answer);
        let (structured, allocation) = (negotiation.structured, negotiation.allocation);
        if !answer.is_empty() {
            self.reply(Reply::Bytes(answer));
        }
        match step {
            Step::More => return false,
            Step::Next(used) => self.input.start += used,
            Step::Serve(used) => {
                self.input.start += used;
                self.limits.structured = structured;
                self.limits.allocation = allocation;
                self.served = true;
                self.member.mark_served();
                self.counts.clients += 1;
                self.phase = Phase::Serving;
            }
            Step::End => self.phase = Phase::Leaving,
        }
        true
    }

    fn take_request(&mut self, context: &mut Context<'_>) -> bool {
        if self.input.data.is_some() {
            return self.take_data(context);
        }
        if let Some((left, cookie, why)) = self.input.refused.take() {
            let skipped = self.input.held().min(left as usize);
            self.input.start += skipped;
            let left = left - skipped as u32;
            if left > 0 {
                self.input.refused = Some((left, cookie, why));
                return false;
            }
            self.refuse_cookie(cookie, why);
            return true;
        }
        let mut bytes = [0; REQUEST_BYTES];
        if self.is_full()
            || self.input.held() < REQUEST_BYTES
            || !self.connection_buffers.thread_mapping.read(self.input.start, &mut bytes)
        {
            return false;
        }
        let Some(header) = Header::parse(&bytes) else {
            tracing::info!(export = self.export_info.name, "client disconnected: invalid request");
            self.close(context);
            return false;
        };
        self.ask_speed(&header);
        match check(&header, &self.limits) {
            Ok(command) => {
                if !self.begin(context, &header, command) {
                    return false;
                }
            }
            Err(why) if header.payload() > 0 => {
                self.input.refused = Some((header.payload(), header.cookie, why));
            }
            Err(why) => self.refuse_cookie(header.cookie, why),
        }
        self.input.start += REQUEST_BYTES;
        true
    }

    /// Updates whether zeroing is fast, because this may change while the disk is in use.
    fn ask_speed(&mut self, header: &Header) {
        if header.flags & crate::wire::flag::FAST_ZERO != 0 {
            let disk = &self.member.shared.disk;
            self.limits.holes_fast = disk.zeroes_fast(true);
            self.limits.zeroes_fast = disk.zeroes_fast(false);
        }
    }

    /// Copies write data that arrived together with its header. Returns whether the write is
    /// complete.
    fn take_data(&mut self, context: &mut Context<'_>) -> bool {
        let Some(data) = &mut self.input.data else { return false };
        let count = (self.input.end - self.input.start).min(data.len - data.got);
        let active = self.active.get(data.tag as usize).and_then(Option::as_ref);
        if let Some(request_buffer) = active.and_then(|active| active.request_buffer.as_ref()) {
            let to = request_buffer.data + data.got;
            let fits = self.connection_buffers.thread_mapping.copy_to(
                self.input.start,
                &request_buffer.thread_mapping,
                to,
                count,
            );
            debug_assert!(fits, "the room was made for this data");
        }
        self.input.start += count;
        data.got += count;
        if data.got < data.len {
            return false;
        }
        let tag = data.tag;
        self.input.data = None;
        self.write(context, tag);
        true
    }

    /// Starts a receive, unless unparsed data already waits.
    pub(super) fn receive(&mut self, context: &mut Context<'_>) {
        if !self.may_receive() {
            return;
        }
        let Some((target, buffers)) = self.next_list() else { return };
        self.input.receiving = Some(target);
        let op = IoOp::Recv { socket: self.socket.clone(), buffers };
        context.submit(&self.port, op, RECEIVED);
    }

    /// Returns the destination of the next received bytes.
    fn next_list(&mut self) -> Option<(Target, Buffers)> {
        let list = std::mem::take(&mut self.input.list);
        match self.input.data {
            Some(data) => Some((Target::Room, self.rest_of(data, list)?)),
            None => Some((Target::Buffer, self.rest_of_buffer(list)?)),
        }
    }

    fn rest_of(&self, data: Data, list: Buffers) -> Option<Buffers> {
        let active = self.active.get(data.tag as usize)?.as_ref()?;
        active.request_buffer.as_ref()?.list(list, data.got, data.len - data.got)
    }

    fn rest_of_buffer(&mut self, mut list: Buffers) -> Option<Buffers> {
        if self.is_stalled() {
            return None;
        }
        let held = self.input.held();
        if self.input.start > 0 {
            let moved =
                self.connection_buffers.thread_mapping.move_within(self.input.start, 0, held);
            debug_assert!(moved, "what is held is inside");
            (self.input.start, self.input.end) = (0, held);
        }
        list.clear();
        list.append_mapping(&self.connection_buffers.thread_mapping, held, RECEIVE_BYTES - held)
            .then_some(list)
    }
}
