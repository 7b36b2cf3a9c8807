//! Sends replies to the socket.

use std::collections::VecDeque;

use memory::Buffers;
use reactor::{Context, IoOp, OpCompletion};

use super::{Connection, SENT};
use crate::buffers::{HEADER_BYTES, RECEIVE_BYTES, RequestBuffer};
use crate::negotiation::greeting;
use crate::reply::{self, HOLE_BYTES, SIMPLE_BYTES};

/// Most buffers in one send. The kernel accepts 1024.
const PIECES_MAX: usize = 512;
/// Size limit in bytes of one send, except for a single larger reply. The client can process the
/// first replies while the server prepares the next.
const SEND_BYTES: usize = 1 << 20;

/// Reply that is ready to send.
#[derive(Debug)]
pub(super) enum Reply {
    /// Simple reply without data.
    Simple { cookie: u64, error: u32 },
    /// Data that was read into a request buffer.
    Data { cookie: u64, offset: u64, len: u32, before: usize, request_buffer: RequestBuffer },
    /// Hole at the range that was read.
    Hole { cookie: u64, offset: u64, len: u32 },
    /// Any other reply, encoded.
    Bytes(Vec<u8>),
}

/// Replies to the client.
#[derive(Debug, Default)]
pub(super) struct Output {
    pub(super) replies: VecDeque<Reply>,
    sending: bool,
    /// Buffers whose data is in the current send.
    request_buffers: Vec<RequestBuffer>,
    list: Buffers,
}

impl Output {
    /// Creates the queue with the greeting, because the server sends first.
    pub(super) fn greeting() -> Self {
        Self { replies: VecDeque::from([Reply::Bytes(greeting())]), ..Self::default() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.replies.is_empty() && !self.sending
    }
}

impl Connection {
    /// Starts a send of the queued replies, unless one is in flight.
    pub(super) fn send(&mut self, context: &mut Context<'_>) {
        if self.output.sending || self.output.replies.is_empty() {
            return;
        }
        let mut list = std::mem::take(&mut self.output.list);
        list.clear();
        let mut headers = 0;
        while list.iovecs().len() < PIECES_MAX && list.len() < SEND_BYTES {
            let Some(reply) = self.output.replies.front() else { break };
            // A buffer with a separate mapping cannot share a list with others.
            let alone =
                matches!(reply, Reply::Data { request_buffer, .. } if request_buffer.is_own());
            if (alone && !list.is_empty()) || headers + size_in_headers(reply) > HEADER_BYTES {
                break;
            }
            let Some(reply) = self.output.replies.pop_front() else { break };
            self.append(&mut list, &mut headers, reply);
            if alone {
                break;
            }
        }
        self.output.sending = true;
        let op = IoOp::Send { socket: self.socket.clone(), buffers: list };
        context.submit(&self.port, op, SENT);
    }

    fn append(&mut self, list: &mut Buffers, headers: &mut usize, reply: Reply) {
        match reply {
            Reply::Simple { cookie, error } => {
                self.append_bytes(list, headers, &reply::simple(cookie, error));
            }
            Reply::Hole { cookie, offset, len } => {
                self.append_bytes(list, headers, &reply::hole(cookie, offset, len));
            }
            Reply::Bytes(bytes) => self.append_bytes(list, headers, &bytes),
            Reply::Data { cookie, offset, len, before, request_buffer } => {
                let (structured, simple);
                let header: &[u8] = if self.limits.structured {
                    structured = reply::data(cookie, offset, len);
                    &structured
                } else {
                    simple = reply::simple(cookie, 0);
                    &simple
                };
                let at = request_buffer.data + before - header.len();
                let fits = request_buffer.thread_mapping.write(at, header)
                    && list.append_mapping(
                        &request_buffer.thread_mapping,
                        at,
                        header.len() + len as usize,
                    );
                debug_assert!(fits, "the room was made for this reply");
                self.output.request_buffers.push(request_buffer);
            }
        }
    }

    fn append_bytes(&self, list: &mut Buffers, headers: &mut usize, bytes: &[u8]) {
        let (thread_mapping, at) =
            (&self.connection_buffers.thread_mapping, RECEIVE_BYTES + *headers);
        let fits =
            thread_mapping.write(at, bytes) && list.append_mapping(thread_mapping, at, bytes.len());
        debug_assert!(fits, "there is a place for headers");
        *headers += bytes.len();
    }

    /// Handles a completed send.
    pub(super) fn sent(&mut self, context: &mut Context<'_>, op_completion: OpCompletion) {
        let outcome = op_completion.outcome();
        let mut list = op_completion.buffers.unwrap_or_default();
        match outcome {
            Ok(count) if count > 0 && (count as usize) < list.len() => {
                list.advance(count as usize);
                let op = IoOp::Send { socket: self.socket.clone(), buffers: list };
                return context.submit(&self.port, op, SENT);
            }
            Ok(count) if count > 0 => {}
            // The client has disconnected, or the send failed.
            _ => self.close(context),
        }
        self.output.sending = false;
        // The list may hold the last reference to a separate mapping.
        list.clear();
        self.output.list = list;
        while let Some(request_buffer) = self.output.request_buffers.pop() {
            self.connection_buffers.put(request_buffer);
        }
    }
}

/// Returns the bytes that a reply needs in the header area.
fn size_in_headers(reply: &Reply) -> usize {
    match reply {
        Reply::Simple { .. } => SIMPLE_BYTES,
        Reply::Data { .. } => 0,
        Reply::Hole { .. } => HOLE_BYTES,
        Reply::Bytes(bytes) => bytes.len(),
    }
}
