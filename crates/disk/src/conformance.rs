//! Test suite that every [`Disk`] passes, and a client for tests of single disks.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use memory::Buffers;
use reactor::{Context, PollOutcome, Poller, PollerId, Reactor};

use crate::{Channel, Completion, Disk, IoError, Request, RequestKind, SubmitOutcome};

/// Longer than any request of a test takes.
const DEADLINE: Duration = Duration::from_secs(60);

/// Reactor with one channel, used by blocking calls from a test.
pub struct Client {
    reactor: Reactor,
    id: PollerId,
}

/// Request that was sent.
pub struct Sent(Receiver<Answer>);

/// Request whose channel was abandoned.
pub struct Abandoned {
    sent: Sent,
    memory: Arc<memory::Mapping>,
    skew: usize,
    len: usize,
}

/// Outcome of a request, and the data it read.
pub type Answer = (Result<(), IoError>, Vec<u8>);

struct Pump {
    channel: Box<dyn Channel>,
    waiting: HashMap<u32, SyncSender<Answer>>,
    /// Requests that the channel returned.
    held: Vec<Request>,
    done: Vec<Completion>,
    /// Second buffer lists of reads on the same memory, since the channel may consume the first.
    windows: HashMap<u32, Buffers>,
    next: u32,
    /// Requests that ended within their submission.
    ended_at_once: usize,
}

impl Pump {
    fn submit(&mut self, context: &mut Context<'_>, request: Request) {
        match self.channel.submit(context, request) {
            SubmitOutcome::Done(completion) => {
                self.ended_at_once += 1;
                self.finish(completion);
            }
            SubmitOutcome::Pending => {}
            SubmitOutcome::Full(request) => self.held.push(request),
        }
    }

    fn finish(&mut self, completion: Completion) {
        let window = self.windows.remove(&completion.tag).unwrap_or_default();
        let mut data = vec![0; window.len()];
        window.peek(&mut data);
        if let Some(answer) = self.waiting.remove(&completion.tag) {
            answer.send((completion.outcome, data)).ok();
        }
    }
}

impl Poller for Pump {
    fn poll(&mut self, context: &mut Context<'_>) -> PollOutcome {
        let mut done = std::mem::take(&mut self.done);
        self.channel.reap(context, &mut done);
        let any = !done.is_empty();
        for completion in done.drain(..) {
            self.finish(completion);
        }
        self.done = done;
        if any {
            for request in std::mem::take(&mut self.held) {
                self.submit(context, request);
            }
        }
        if any { PollOutcome::Busy } else { PollOutcome::Idle }
    }

    fn on_runnable(&mut self) {}

    fn arm(&mut self) -> bool {
        false
    }
}

impl Client {
    /// Opens a channel on a reactor of its own.
    pub fn new(disk: &Arc<dyn Disk>) -> Self {
        let reactor = Reactor::spawn("conformance").expect("a reactor");
        let disk = disk.clone();
        let make = move |context: &mut Context<'_>| {
            let channel = disk.open_channel(context);
            Ok::<_, ()>(Pump {
                channel,
                waiting: HashMap::new(),
                held: Vec::new(),
                done: Vec::new(),
                windows: HashMap::new(),
                next: 0,
                ended_at_once: 0,
            })
        };
        let id = reactor.handle().call(|context| context.add_poller(None, make));
        let id = id.expect("a running reactor").expect("a channel");
        Self { reactor, id }
    }

    /// Sends a request whose buffers begin `skew` bytes after an aligned address.
    pub fn send(
        &self,
        kind: RequestKind,
        offset: u64,
        len: u64,
        data: Vec<u8>,
        skew: usize,
    ) -> Sent {
        let (answer, wait) = sync_channel(1);
        let id = self.id;
        let sent = self.reactor.handle().send(move |context| {
            context.with_poller(id, |pump: &mut Pump, context| {
                let tag = pump.next;
                pump.next += 1;
                let moves = matches!(kind, RequestKind::Read | RequestKind::Write { .. });
                let bytes = if moves { len as usize } else { 0 };
                let memory = memory::Mapping::memfd("test", (bytes + skew).max(1) as u64);
                let memory = Arc::new(memory.expect("memory for a test"));
                let list = || Buffers::from_mapping(&memory, skew, bytes).expect("inside");
                list().write(&data);
                pump.windows
                    .insert(tag, if kind == RequestKind::Read { list() } else { <_>::default() });
                pump.waiting.insert(tag, answer);
                let request = Request { kind, offset, len, buffers: list(), tag };
                pump.submit(context, request);
            });
        });
        sent.expect("a running reactor");
        Sent(wait)
    }

    /// Sends a request and abandons the channel before the kernel has seen the request. Returns the
    /// request and its memory.
    ///
    /// # Panics
    /// Panics if there is no memory.
    pub fn send_abandoned(
        &self,
        kind: RequestKind,
        offset: u64,
        data: &[u8],
        skew: usize,
    ) -> Abandoned {
        let memory = memory::Mapping::memfd("test", (data.len() + skew) as u64);
        let memory = Arc::new(memory.expect("memory for a test"));
        let list = Buffers::from_mapping(&memory, skew, data.len()).expect("inside");
        list.write(data);
        let (answer, wait) = sync_channel(1);
        let (id, len, mapping) = (self.id, data.len(), Arc::clone(&memory));
        let sent = self.reactor.handle().send(move |context| {
            context.with_poller(id, |pump: &mut Pump, context| {
                let tag = pump.next;
                pump.next += 1;
                pump.waiting.insert(tag, answer);
                let buffers = Buffers::from_mapping(&mapping, skew, len).expect("inside");
                pump.submit(context, Request { kind, offset, len: len as u64, buffers, tag });
                pump.channel.abandon();
            });
        });
        sent.expect("a running reactor");
        Abandoned { sent: Sent(wait), memory, skew, len }
    }

    /// Sends a request on the whole of the caller's memory.
    pub fn send_mapping(
        &self,
        kind: RequestKind,
        offset: u64,
        memory: Arc<memory::Mapping>,
    ) -> Sent {
        let (answer, wait) = sync_channel(1);
        let id = self.id;
        let sent = self.reactor.handle().send(move |context| {
            context.with_poller(id, |pump: &mut Pump, context| {
                let tag = pump.next;
                pump.next += 1;
                pump.waiting.insert(tag, answer);
                let buffers = Buffers::from_mapping(&memory, 0, memory.len()).expect("all of it");
                let len = memory.len() as u64;
                pump.submit(context, Request { kind, offset, len, buffers, tag });
            });
        });
        sent.expect("a running reactor");
        Sent(wait)
    }

    /// Waits for a turn of the reactor. After two turns the kernel has all requests sent before.
    pub fn barrier(&self) {
        self.reactor.handle().call(|_| ()).expect("a running reactor");
    }

    /// Sends a request and waits for its outcome.
    pub fn run(&self, kind: RequestKind, offset: u64, len: u64, data: Vec<u8>) -> Answer {
        self.send(kind, offset, len, data, 0).wait()
    }

    /// Returns the number of requests that ended within their submission.
    ///
    /// # Panics
    /// Panics if the reactor has ended.
    pub fn ended_at_once(&self) -> usize {
        let id = self.id;
        let count = self
            .reactor
            .handle()
            .call(move |context| context.with_poller(id, |pump: &mut Pump, _| pump.ended_at_once));
        count.expect("a running reactor").expect("a channel")
    }

    /// Reads `len` bytes.
    ///
    /// # Panics
    /// Panics if the read fails.
    pub fn read(&self, offset: u64, len: u64) -> Vec<u8> {
        let (outcome, data) = self.run(RequestKind::Read, offset, len, Vec::new());
        assert_eq!(outcome, Ok(()));
        data
    }

    /// Writes `data`.
    ///
    /// # Panics
    /// Panics if the write fails.
    pub fn write(&self, offset: u64, data: Vec<u8>) {
        let kind = RequestKind::Write { durable: false };
        assert_eq!(self.run(kind, offset, data.len() as u64, data).0, Ok(()));
    }

    /// Returns the number of requests that the channel reports as waiting for space.
    ///
    /// # Panics
    /// Panics if the reactor has ended.
    pub fn waiting(&self) -> usize {
        let id = self.id;
        let count = self.reactor.handle().call(move |context| {
            context.with_poller(id, |pump: &mut Pump, _| pump.channel.waiting())
        });
        count.expect("a running reactor").expect("a channel")
    }

    /// Reports to the channel that its queue is being drained.
    pub fn give_up(&self) {
        let id = self.id;
        let result = self.reactor.handle().call(move |context| {
            context.with_poller(id, |pump: &mut Pump, context| pump.channel.fail_stalled(context))
        });
        result.expect("a running reactor");
    }
}

impl Abandoned {
    /// Waits until the request completes. Returns its outcome, and the contents of its memory then.
    ///
    /// # Panics
    /// Panics if the request does not complete.
    pub fn wait(self) -> Answer {
        let (outcome, _) = self.sent.wait();
        let window = Buffers::from_mapping(&self.memory, self.skew, self.len).expect("inside");
        let mut data = vec![0; self.len];
        window.peek(&mut data);
        (outcome, data)
    }
}

impl Sent {
    /// Waits until the request completes.
    ///
    /// # Panics
    /// Panics if the request does not complete.
    pub fn wait(self) -> Answer {
        self.0.recv_timeout(DEADLINE).expect("the request ends")
    }

    /// Returns whether the request does not complete within `time`.
    pub fn still_waits(&self, time: Duration) -> bool {
        self.0.recv_timeout(time).is_err()
    }
}

fn pattern(seed: u64, len: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        })
        .collect()
}

/// Runs the whole suite on a writable disk of at least 4 MiB that stores written data.
///
/// # Panics
/// Panics if the disk breaks the contract.
pub fn run(disk: Arc<dyn Disk>) {
    disk.activate().expect("activates");
    disk.activate().expect("twice is once");
    let clients = [Client::new(&disk), Client::new(&disk)];
    both_see_what_one_wrote(&clients, &disk);
    skewed_buffers_work(&clients, &disk);
    zeroes_and_discards(&clients, &disk);
    extents(&clients[0], &disk);
    depth(&clients, &disk);
    model(&clients, &disk);
    drop(clients);
    disk.deactivate().expect("deactivates");
    assert_eq!(disk.stalled(), 0);
}

/// Runs the suite for a read-only disk that has `content`, of at least 4 MiB.
///
/// # Panics
/// Panics if the disk breaks the contract.
pub fn run_read_only(disk: Arc<dyn Disk>, content: &[u8]) {
    let geometry = disk.geometry();
    assert!(geometry.read_only && geometry.size == content.len() as u64);
    disk.activate().expect("activates");
    disk.activate().expect("twice is once");
    let block = u64::from(geometry.block_size);
    let clients = [Client::new(&disk), Client::new(&disk)];
    // Overlapping ranges of all sizes at once, from both reactors, at every kind of misalignment.
    let sent: Vec<_> = (0..200u64)
        .map(|turn| {
            let first = turn * 7919 % (geometry.size / block);
            let len = (1 + turn * 31 % 300).min(geometry.size / block - first) * block;
            let client = &clients[(turn % 2) as usize];
            let skew = [0, 1, 16, 511][(turn % 4) as usize];
            let offset = first * block;
            (offset, len, client.send(RequestKind::Read, offset, len, Vec::new(), skew))
        })
        .collect();
    for (offset, len, one) in sent {
        let (outcome, data) = one.wait();
        assert_eq!(outcome, Ok(()));
        assert!(data == content[offset as usize..(offset + len) as usize], "{len} at {offset}");
    }
    for kind in [
        RequestKind::Write { durable: false },
        RequestKind::WriteZeroes { unmap: true, durable: false },
        RequestKind::Discard,
    ] {
        let data =
            if matches!(kind, RequestKind::Write { .. }) { pattern(1, block) } else { vec![] };
        assert_eq!(clients[0].run(kind, 0, block, data).0, Err(IoError::ReadOnly), "{kind:?}");
    }
    assert_eq!(clients[1].run(RequestKind::Flush, 0, 0, Vec::new()).0, Ok(()));
    for (offset, len) in [(geometry.size, block), (geometry.size - block, 2 * block)] {
        assert_eq!(
            clients[0].run(RequestKind::Read, offset, len, Vec::new()).0,
            Err(IoError::Range)
        );
    }
    let all = disk.extents(0, geometry.size, usize::MAX).expect("inside of the disk");
    assert_eq!(all.iter().map(|extent| extent.len).sum::<u64>(), geometry.size);
    assert_eq!(disk.extents(geometry.size, 1, 1), Err(IoError::Range));
    assert!(clients[1].read(0, geometry.size) == content);
    drop(clients);
    disk.deactivate().expect("deactivates");
}

fn both_see_what_one_wrote(clients: &[Client; 2], disk: &Arc<dyn Disk>) {
    let block = u64::from(disk.geometry().block_size);
    let last = disk.geometry().size - block;
    for (turn, offset) in [0, block, 1 << 20, last].into_iter().enumerate() {
        let data = pattern(offset + 1, block);
        clients[turn % 2].write(offset, data.clone());
        assert_eq!(clients[1 - turn % 2].run(RequestKind::Flush, 0, 0, Vec::new()).0, Ok(()));
        assert_eq!(clients[1 - turn % 2].read(offset, block), data, "at {offset}");
    }
    let data = pattern(7, 1 << 20);
    let durable = RequestKind::Write { durable: true };
    assert_eq!(clients[0].run(durable, 1 << 20, 1 << 20, data.clone()).0, Ok(()));
    assert_eq!(clients[1].read(1 << 20, 1 << 20), data);
}

fn skewed_buffers_work(clients: &[Client; 2], disk: &Arc<dyn Disk>) {
    let block = u64::from(disk.geometry().block_size);
    // Longer than one bounce buffer, at every kind of misalignment.
    for (skew, len) in [(1, block), (16, 3 * block), (511, 1 << 20)] {
        let data = pattern(skew as u64, len);
        let write =
            clients[0].send(RequestKind::Write { durable: false }, block, len, data.clone(), skew);
        assert_eq!(write.wait().0, Ok(()));
        let read = clients[1].send(RequestKind::Read, block, len, Vec::new(), skew);
        assert_eq!(read.wait(), (Ok(()), data), "skew {skew}");
    }
}

fn zeroes_and_discards(clients: &[Client; 2], disk: &Arc<dyn Disk>) {
    let block = u64::from(disk.geometry().block_size);
    for (unmap, durable) in [(false, false), (true, false), (false, true), (true, true)] {
        let data = pattern(3, 8 * block);
        clients[0].write(0, data.clone());
        let kind = RequestKind::WriteZeroes { unmap, durable };
        assert_eq!(clients[1].run(kind, block, 6 * block, Vec::new()).0, Ok(()));
        let after = clients[0].read(0, 8 * block);
        let (b, end) = (block as usize, 7 * block as usize);
        assert_eq!(after[..b], data[..b], "before the range");
        assert!(after[b..end].iter().all(|byte| *byte == 0), "the range");
        assert_eq!(after[end..], data[end..], "behind the range");
    }
    assert_eq!(clients[0].run(RequestKind::Discard, 0, 4 * block, Vec::new()).0, Ok(()));
    clients[0].read(0, 4 * block);
}

/// Checks that extents follow each other over the whole disk, and that holes read as zeroes.
fn extents(client: &Client, disk: &Arc<dyn Disk>) {
    let geometry = disk.geometry();
    let punch = RequestKind::WriteZeroes { unmap: true, durable: true };
    assert_eq!(client.run(punch, 0, 1 << 20, Vec::new()).0, Ok(()));
    let mut at = 0;
    while at < geometry.size {
        let found = disk.extents(at, geometry.size - at, 2).expect("inside of the disk");
        assert!(matches!(found.len(), 1 | 2), "{found:?}");
        for extent in found {
            assert!(extent.len > 0 && extent.len % u64::from(geometry.block_size) == 0);
            if extent.hole {
                let data = client.read(at, extent.len.min(1 << 20));
                assert!(data.iter().all(|byte| *byte == 0), "the hole at {at}");
            }
            at += extent.len;
        }
    }
    assert_eq!(at, geometry.size);
    assert_eq!(disk.extents(geometry.size, 1, 1), Err(IoError::Range));
    assert_eq!(disk.extents(1, u64::MAX, 1), Err(IoError::Range));
}

fn depth(clients: &[Client; 2], disk: &Arc<dyn Disk>) {
    let block = u64::from(disk.geometry().block_size);
    let kind = RequestKind::Write { durable: false };
    let sent: Vec<_> = (0..200)
        .map(|i| {
            clients[i % 2].send(kind, i as u64 * block, block, pattern(i as u64, block), i % 3)
        })
        .collect();
    for one in sent {
        assert_eq!(one.wait().0, Ok(()));
    }
    for i in 0..200u64 {
        let client = &clients[((i + 1) % 2) as usize];
        assert_eq!(client.read(i * block, block), pattern(i, block), "block {i}");
    }
}

/// Runs random operations in the first MiB, alternately from both reactors, and compares with a
/// flat buffer.
fn model(clients: &[Client; 2], disk: &Arc<dyn Disk>) {
    const AREA: u64 = 1 << 20;
    let soak = std::env::var_os("RINGWAY_SOAK").is_some();
    let operations = if soak { 20_000 } else { 300 };
    let block = u64::from(disk.geometry().block_size);
    let blocks = AREA / block;
    let mut flat = clients[0].read(0, AREA);
    let mut state = 20_161u64;
    let mut random = |below: u64| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    for turn in 0..operations {
        let client = &clients[(turn % 2) as usize];
        let first = random(blocks);
        let len = (1 + random((blocks - first).min(64))) * block;
        let offset = first * block;
        let range = offset as usize..(offset + len) as usize;
        let skew = [0, 0, 1, 100][random(4) as usize];
        let durable = random(8) == 0;
        match random(4) {
            0 => {
                let data = pattern(turn, len);
                flat[range].copy_from_slice(&data);
                let kind = RequestKind::Write { durable };
                assert_eq!(client.send(kind, offset, len, data, skew).wait().0, Ok(()));
            }
            1 => {
                flat[range].fill(0);
                let kind = RequestKind::WriteZeroes { unmap: random(2) == 0, durable };
                assert_eq!(client.run(kind, offset, len, Vec::new()).0, Ok(()));
            }
            2 => assert_eq!(client.run(RequestKind::Flush, 0, 0, Vec::new()).0, Ok(())),
            _ => {
                let (outcome, data) =
                    client.send(RequestKind::Read, offset, len, Vec::new(), skew).wait();
                assert_eq!(outcome, Ok(()));
                assert!(data == flat[range], "operation {turn}: {len} bytes at {offset}");
            }
        }
    }
    assert!(clients[1].read(0, AREA) == flat, "after all operations");
}
