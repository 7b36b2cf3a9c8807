//! One ring of a guest.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use net::header::HEADER_BYTES;
use nic::{ControlQueueState, FaultHandler, PortIncarnation, RunningQueue};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd};
use virtq::QueueStart;
use virtq::driver::{BUFFERS, Driver, INDIRECT, NEXT, WRITE};

use super::Lan;

/// Entries of the ring.
pub(crate) const RING: u16 = 128;
/// Most descriptors of a frame.
const PIECES: u16 = 4;
/// Most bytes of a buffer.
const SLOT: u64 = 0x2_0000;
const MEMORY: u64 = 32 << 20;
/// Position in a slot of the answer to a command, or of an indirect table.
const ANSWER: u64 = SLOT / 2;
const SOON: Duration = Duration::from_secs(20);

/// Received frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Got {
    pub(crate) header: [u8; HEADER_BYTES],
    pub(crate) frame: Vec<u8>,
    pub(crate) buffers: u16,
}

/// One ring, with its own memory.
pub(crate) struct Ring {
    pub(crate) driver: Driver,
    pub(crate) queue: Option<RunningQueue>,
    pub(crate) faults: Arc<Mutex<Vec<String>>>,
    /// Calls that were received.
    called: u64,
    index: u16,
    /// Chains that were offered.
    offered: u16,
    /// Heads of the chains that are not completed: they complete in this order.
    open: VecDeque<u16>,
    kick: Arc<OwnedFd>,
    call: Arc<OwnedFd>,
    err: Arc<OwnedFd>,
}

impl Ring {
    pub(crate) fn new(index: u16, event_idx: bool) -> Self {
        let fd = || Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap());
        let driver = Driver::new(RING, MEMORY, event_idx);
        let (kick, call, err) = (fd(), fd(), fd());
        let (queue, faults, open) = (None, Arc::default(), VecDeque::new());
        Self { driver, queue, faults, called: 0, index, offered: 0, open, kick, call, err }
    }

    pub(crate) fn start(&mut self, lan: &Lan, reactor: usize, port_incarnation: PortIncarnation) {
        self.start_at(lan, reactor, port_incarnation, 0);
    }

    /// Starts the ring as front-ends do, which state that it continues at `next`.
    pub(crate) fn start_at(
        &mut self,
        lan: &Lan,
        reactor: usize,
        port_incarnation: PortIncarnation,
        next: u16,
    ) {
        let handle = lan.reactors[reactor].handle();
        let queue = RunningQueue::start(
            &lan.fabric,
            handle,
            port_incarnation,
            self.to_start(next),
            self.fault(),
        );
        self.queue = Some(queue.unwrap());
    }

    /// Starts the ring with a device that is never kicked.
    pub(crate) fn start_deaf(
        &mut self,
        lan: &Lan,
        reactor: usize,
        port_incarnation: PortIncarnation,
    ) {
        let (handle, mut start) = (lan.reactors[reactor].handle(), self.to_start(0));
        start.kick = None;
        let queue = RunningQueue::start(&lan.fabric, handle, port_incarnation, start, self.fault());
        self.queue = Some(queue.unwrap());
    }

    /// Starts the ring as the control queue.
    pub(crate) fn start_control(
        &mut self,
        lan: &Lan,
        reactor: usize,
        control_queue_state: &Arc<ControlQueueState>,
        next: u16,
    ) {
        let handle = lan.reactors[reactor].handle();
        let queue = RunningQueue::start_control(
            control_queue_state,
            handle,
            self.to_start(next),
            self.fault(),
        );
        self.queue = Some(queue.unwrap());
    }

    fn to_start(&self, next: u16) -> QueueStart {
        let mut ring = self.driver.config;
        ring.next_avail = next;
        QueueStart {
            index: self.index,
            ring,
            table: self.driver.table.clone(),
            kick: Some(self.kick.clone()),
            call: Some(self.call.clone()),
            err: Some(self.err.clone()),
            features: 0,
            inflight: None,
        }
    }

    fn fault(&self) -> FaultHandler {
        let log = self.faults.clone();
        Arc::new(move |why: &str| log.lock().unwrap().push(why.into()))
    }

    /// Stops the ring; returns the index at which a successor continues.
    pub(crate) fn stop(&mut self) -> u16 {
        self.queue.take().unwrap().stop().unwrap()
    }

    /// Offers buffers to receive into.
    pub(crate) fn post(&mut self, count: u16, bytes: u32) {
        let _wanted = self.post_and_kick(count, bytes);
    }

    /// Offers buffers to receive into. Returns whether the device wanted a kick and received it, as
    /// it does while frames wait.
    pub(crate) fn post_and_kick(&mut self, count: u16, bytes: u32) -> bool {
        for _ in 0..count {
            let slot = self.offered % RING;
            self.driver.put_chain(slot, &[(at(slot), bytes, true)]);
            self.show(slot);
        }
        let wanted = self.driver.publish();
        if wanted {
            self.kick();
        }
        wanted
    }

    /// Offers a buffer at any address to receive into.
    pub(crate) fn offer_at(&mut self, addr: u64, bytes: u32) {
        let slot = self.offered % RING;
        self.driver.put_chain(slot, &[(addr, bytes, true)]);
        self.show(slot);
    }

    /// Offers buffers of several pieces of one byte each.
    pub(crate) fn post_scattered(&mut self, count: u16, pieces: u16) {
        for _ in 0..count {
            let slot = self.offered % RING;
            let piece = |n: u16| {
                let flags = WRITE | if n + 1 < pieces { NEXT } else { 0 };
                Driver::descriptor(at(slot) + u64::from(n), 1, flags, n + 1)
            };
            let table: Vec<u8> = (0..pieces).flat_map(piece).collect();
            self.driver.write(at(slot) + ANSWER, &table);
            self.driver.put_desc(slot, at(slot) + ANSWER, table.len() as u32, INDIRECT, 0);
            self.show(slot);
        }
        self.publish();
    }

    /// Offers bytes to send, cut at these positions.
    pub(crate) fn put(&mut self, bytes: &[u8], cuts: &[usize]) {
        let slot = self.offered % (RING / PIECES);
        self.driver.write(at(slot), bytes);
        let ends = cuts.iter().copied().chain([bytes.len()]);
        let mut begin = 0;
        let mut pieces = Vec::new();
        for end in ends.filter(|end| *end <= bytes.len()) {
            if end > begin {
                pieces.push((at(slot) + begin as u64, (end - begin) as u32, false));
            }
            begin = end;
        }
        self.offer(&pieces);
    }

    /// Submits a command to a control queue with `room` bytes for its answer; returns the answer.
    pub(crate) fn ask(&mut self, command: &[u8], room: u32) -> Vec<u8> {
        self.offer_command(command, room);
        self.publish();
        let (head, written) = self.used();
        let slot = head as u16 / PIECES;
        self.driver.read(at(slot) + ANSWER, written as usize)
    }

    /// Offers a command as Linux does: class and command, data, room for an answer.
    pub(crate) fn offer_command(&mut self, command: &[u8], room: u32) {
        let slot = self.offered % (RING / PIECES);
        self.driver.write(at(slot), command);
        let head = command.len().min(2) as u32;
        let data = (at(slot) + 2, command.len() as u32 - head, false);
        let pieces = [(at(slot), head, false), data, (at(slot) + ANSWER, room, true)];
        let pieces: Vec<_> = pieces.into_iter().filter(|(_, bytes, _)| *bytes > 0).collect();
        self.offer(&pieces);
    }

    /// Offers any chain.
    pub(crate) fn offer(&mut self, pieces: &[(u64, u32, bool)]) {
        assert!(pieces.len() <= PIECES.into());
        let head = self.offered % (RING / PIECES) * PIECES;
        self.driver.put_chain(head, pieces);
        self.show(head);
    }

    fn show(&mut self, head: u16) {
        self.driver.offer(head);
        self.open.push_back(head);
        self.offered = self.offered.wrapping_add(1);
    }

    /// Publishes the offered chains to the device, and kicks if it wants that.
    pub(crate) fn publish(&mut self) {
        if self.driver.publish() {
            self.kick();
        }
    }

    pub(crate) fn kick(&self) {
        rustix::io::write(&self.kick, &1u64.to_ne_bytes()).unwrap();
    }

    /// Waits until `count` chains have been sent.
    pub(crate) fn left(&mut self, count: u16) {
        for _ in 0..count {
            assert_eq!(self.used().1, 0, "bytes written to what was sent");
        }
    }

    /// Waits for a frame.
    pub(crate) fn receive(&mut self) -> Got {
        let first = self.used();
        self.assemble(first)
    }

    /// Returns a frame if one is available.
    pub(crate) fn got(&mut self) -> Option<Got> {
        let first = self.completed()?;
        Some(self.assemble(first))
    }

    /// Assembles a frame, all of whose buffers are published at once.
    fn assemble(&mut self, first: (u32, u32)) -> Got {
        let read = |driver: &Driver, (head, written): (u32, u32)| {
            driver.read(at(head as u16), written as usize)
        };
        let mut bytes = read(&self.driver, first);
        let header: [u8; HEADER_BYTES] = bytes[..HEADER_BYTES].try_into().unwrap();
        let buffers = u16::from_le_bytes([header[10], header[11]]);
        for _ in 1..buffers {
            let next = self.completed().unwrap();
            bytes.extend(read(&self.driver, next));
        }
        Got { header, frame: bytes.split_off(HEADER_BYTES), buffers }
    }

    /// Returns the next completion if there is one, which is that of the oldest chain.
    fn completed(&mut self) -> Option<(u32, u32)> {
        let (head, written) = self.driver.used()?;
        assert_eq!(Some(head), self.open.pop_front().map(u32::from), "out of order");
        Some((head, written))
    }

    /// Waits for the next completion: head and written bytes.
    pub(crate) fn used(&mut self) -> (u32, u32) {
        let until = Instant::now() + SOON;
        loop {
            if let Some(found) = self.completed() {
                return found;
            }
            assert!(Instant::now() < until, "nothing is completed");
            if !self.driver.arm() {
                wait_for(&self.call);
                self.take_calls();
            }
        }
    }

    /// Returns the number of calls since the start.
    pub(crate) fn calls(&mut self) -> u64 {
        self.take_calls();
        self.called
    }

    fn take_calls(&mut self) {
        let mut count = [0; 8];
        if rustix::io::read(&self.call, &mut count).is_ok() {
            self.called += u64::from_ne_bytes(count);
        }
    }

    /// Waits until the device has reported a broken ring.
    pub(crate) fn wait_for_error(&self) {
        assert!(wait_for(&self.err), "no error was told");
    }

    /// Waits until the session was notified that it cannot continue.
    pub(crate) fn wait_for_fault(&self, lan: &Lan) {
        let until = Instant::now() + SOON;
        while self.faults.lock().unwrap().is_empty() {
            assert!(Instant::now() < until, "no fault was told");
            lan.settle();
        }
    }
}

/// Returns the position of a slot's buffer.
fn at(slot: u16) -> u64 {
    BUFFERS + SLOT * u64::from(slot)
}

/// Waits until the descriptor is readable.
fn wait_for(fd: &OwnedFd) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN)];
    let limit = Timespec { tv_sec: SOON.as_secs() as i64, tv_nsec: 0 };
    rustix::event::poll(&mut fds, Some(&limit)).unwrap() == 1
}
