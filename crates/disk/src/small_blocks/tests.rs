//! Tests of the order of requests, over storage that ends each operation on command.

use std::collections::HashSet;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use reactor::{Context, Handle, PollerId};

use super::*;
use crate::conformance::{Client, Sent};
use crate::{Completion, IoError, Request, RequestKind, SubmitOutcome};

const BLOCK: u64 = 4096;
const SIZE: u64 = 1 << 20;
/// Longer than any event of these tests takes.
const DEADLINE: Duration = Duration::from_secs(60);

const WRITE: RequestKind = RequestKind::Write { durable: false };
const ZERO: RequestKind = RequestKind::WriteZeroes { unmap: true, durable: false };
const READ: RequestKind = RequestKind::Read;

/// Storage in large blocks whose operations end on command. Operations have numbers from 0 on, in
/// the order of their submission.
#[derive(Debug, Default)]
struct Storage {
    state: Mutex<StorageState>,
    submitted: Condvar,
}

#[derive(Debug, Default)]
struct StorageState {
    bytes: Vec<u8>,
    operations: Vec<(RequestKind, u64, u64)>,
    pollers: Vec<(Handle, PollerId)>,
    ended: HashSet<usize>,
    fails: HashSet<usize>,
    stalled: HashSet<usize>,
}

impl Storage {
    fn new() -> Arc<Self> {
        let storage = Self::default();
        storage.state.lock().unwrap().bytes = vec![1; SIZE as usize];
        Arc::new(storage)
    }

    /// Waits until there are `count` operations, and returns them.
    fn wait(&self, count: usize) -> Vec<(RequestKind, u64, u64)> {
        let state = self.state.lock().unwrap();
        let (state, late) = self
            .submitted
            .wait_timeout_while(state, DEADLINE, |state| state.operations.len() < count)
            .unwrap();
        assert!(!late.timed_out(), "{:?}", state.operations);
        state.operations.clone()
    }

    fn count(&self) -> usize {
        self.state.lock().unwrap().operations.len()
    }

    /// Ends operation `number`.
    fn end(&self, number: usize) {
        assert!(self.state.lock().unwrap().ended.insert(number));
        self.wake(number);
    }

    /// Lets operation `number` wait for space.
    fn stall(&self, number: usize) {
        self.state.lock().unwrap().stalled.insert(number);
        self.wake(number);
    }

    fn wake(&self, number: usize) {
        let state = self.state.lock().unwrap();
        let (reactor, poller) = state.pollers[number].clone();
        reactor.send(move |context| context.wake(poller)).unwrap();
    }

    /// Fails operation `number` when it ends.
    fn fail(&self, number: usize) {
        self.state.lock().unwrap().fails.insert(number);
        self.end(number);
    }

    fn byte(&self, offset: u64) -> u8 {
        self.state.lock().unwrap().bytes[offset as usize]
    }
}

/// The storage as a disk.
#[derive(Debug)]
struct StorageDisk(Arc<Storage>);

impl Disk for StorageDisk {
    fn inner(&self) -> Option<Arc<dyn Disk>> {
        None
    }

    fn geometry(&self) -> Geometry {
        Geometry {
            size: SIZE,
            block_size: BLOCK as u32,
            read_only: false,
            discard: true,
            discard_granularity: 8192,
        }
    }

    fn open_channel(&self, context: &mut Context<'_>) -> Box<dyn Channel> {
        let poller = (context.handle(), context.poller().unwrap());
        Box::new(StorageChannel { storage: Arc::clone(&self.0), poller, pending: Vec::new() })
    }

    fn wait_fence(&self) -> Result<(), DiskError> {
        Ok(())
    }

    fn activate(&self) -> Result<(), DiskError> {
        Ok(())
    }

    fn deactivate(&self) -> Result<(), DiskError> {
        Ok(())
    }

    fn sync(&self) -> Result<(), DiskError> {
        Ok(())
    }

    fn resize(&self, _: Option<u64>) -> Result<Geometry, DiskError> {
        Ok(self.geometry())
    }

    fn stalled(&self) -> u64 {
        self.0.state.lock().unwrap().stalled.len() as u64
    }

    fn extents(&self, _: u64, _: u64, _: usize) -> Result<Vec<Extent>, IoError> {
        Err(IoError::Unsupported)
    }

    fn zeroes_fast(&self, _: bool) -> bool {
        false
    }
}

struct StorageChannel {
    storage: Arc<Storage>,
    poller: (Handle, PollerId),
    pending: Vec<(usize, Request)>,
}

impl Channel for StorageChannel {
    fn submit(&mut self, _: &mut Context<'_>, request: Request) -> SubmitOutcome {
        let Request { kind, offset, len, .. } = request;
        let geometry = StorageDisk(Arc::clone(&self.storage)).geometry();
        assert_eq!(geometry.check(kind, offset, len), Ok(()), "{request:?}");
        let mut state = self.storage.state.lock().unwrap();
        self.pending.push((state.operations.len(), request));
        state.operations.push((kind, offset, len));
        state.pollers.push(self.poller.clone());
        self.storage.submitted.notify_all();
        SubmitOutcome::Pending
    }

    fn reap(&mut self, _: &mut Context<'_>, out: &mut Vec<Completion>) {
        let mut state = self.storage.state.lock().unwrap();
        let ended = self.pending.extract_if(.., |(number, _)| state.ended.contains(number));
        for (number, request) in ended.collect::<Vec<_>>() {
            let range = request.offset as usize..(request.offset + request.len) as usize;
            let outcome = if state.fails.contains(&number) {
                Err(IoError::Short)
            } else {
                match request.kind {
                    RequestKind::Read => {
                        request.buffers.write(&state.bytes[range]);
                    }
                    RequestKind::Write { .. } => {
                        assert_eq!(
                            request.buffers.peek(&mut state.bytes[range.clone()]),
                            range.len()
                        );
                    }
                    RequestKind::WriteZeroes { .. } => state.bytes[range].fill(0),
                    RequestKind::Flush | RequestKind::Discard => {}
                }
                Ok(())
            };
            out.push(request.complete(outcome));
        }
    }

    fn waiting(&self) -> usize {
        let state = self.storage.state.lock().unwrap();
        self.pending.iter().filter(|(number, _)| state.stalled.contains(number)).count()
    }

    fn fail_stalled(&mut self, _: &mut Context<'_>) {}

    fn abandon(&mut self) {}
}

/// A disk in sectors over storage in blocks, and two channels.
fn disk() -> (Arc<Storage>, Arc<dyn Disk>, [Client; 2]) {
    let storage = Storage::new();
    let disk: Arc<dyn Disk> =
        Arc::new(SmallBlocks::new(Arc::new(StorageDisk(Arc::clone(&storage))), 512));
    let clients = [Client::new(&disk), Client::new(&disk)];
    (storage, disk, clients)
}

/// Sends a request for `len` bytes of `value`, and returns when the channel has it.
fn send(client: &Client, kind: RequestKind, offset: u64, len: u64, value: u8) -> Sent {
    let sent = client.send(kind, offset, len, vec![value; len as usize], 0);
    client.barrier();
    sent
}

#[test]
fn the_geometry_is_that_of_the_storage_with_smaller_blocks() {
    let (storage, disk, _) = disk();
    let geometry = disk.geometry();
    assert_eq!(geometry, Geometry { block_size: 512, ..StorageDisk(storage).geometry() });
    assert_eq!(disk.resize(None).unwrap(), geometry);
}

#[test]
fn a_write_waits_while_another_channel_merges_its_block() {
    let (storage, disk, [one, other]) = disk();
    let small = send(&one, WRITE, 512, 512, 2);
    let whole = send(&other, WRITE, 0, BLOCK, 3);
    let beside = send(&other, WRITE, BLOCK, BLOCK, 4);
    assert_eq!(storage.wait(2), [(READ, 0, BLOCK), (WRITE, BLOCK, BLOCK)]);
    storage.end(1);
    assert_eq!(beside.wait().0, Ok(()));
    storage.end(0);
    assert_eq!(storage.wait(3)[2], (WRITE, 0, BLOCK));
    other.barrier();
    assert_eq!((storage.count(), disk.small_writes()), (3, 0));
    storage.end(2);
    assert_eq!(small.wait().0, Ok(()));
    assert_eq!(storage.wait(4)[3], (WRITE, 0, BLOCK));
    assert_eq!([0, 512, 1023, 1024].map(|at| storage.byte(at)), [1, 2, 2, 1]);
    storage.end(3);
    assert_eq!(whole.wait().0, Ok(()));
    assert_eq!((storage.byte(512), storage.count(), disk.small_writes()), (3, 4, 1));
}

#[test]
fn requests_for_a_block_run_in_the_order_in_which_they_came() {
    let (storage, _, [one, other]) = disk();
    let kinds = [(WRITE, 0, 512), (ZERO, 0, 2 * BLOCK), (WRITE, 512, 512), (WRITE, BLOCK, BLOCK)];
    let clients = [&one, &other, &one, &other];
    let sent: Vec<_> = kinds
        .iter()
        .zip(clients)
        .map(|((kind, offset, len), client)| send(client, *kind, *offset, *len, 7))
        .collect();
    // Whole blocks do not exclude each other: the last request does not wait.
    assert_eq!(storage.wait(2), [(READ, 0, BLOCK), (WRITE, BLOCK, BLOCK)]);
    storage.end(1);
    storage.end(0);
    storage.wait(3);
    storage.end(2);
    assert_eq!(storage.wait(4)[3], (ZERO, 0, 2 * BLOCK), "the second request");
    one.barrier();
    assert_eq!(storage.count(), 4, "the third request waits for the second");
    storage.end(3);
    assert_eq!(storage.wait(5)[4], (READ, 0, BLOCK), "the third request");
    storage.end(4);
    storage.wait(6);
    storage.end(5);
    assert!(sent.into_iter().all(|one| one.wait().0 == Ok(())));
    assert_eq!([0, 512, 1024, BLOCK].map(|at| storage.byte(at)), [0, 7, 0, 0]);
}

#[test]
fn a_long_request_is_merged_at_its_ends_only() {
    let (storage, disk, [one, _]) = disk();
    let (offset, len) = (BLOCK + 512, 40 * BLOCK);
    let sent = send(&one, RequestKind::Write { durable: true }, offset, len, 9);
    let durable = RequestKind::Write { durable: true };
    let (middle, last) = (2 * BLOCK, 41 * BLOCK);
    let expected = [
        (READ, BLOCK, BLOCK),
        (durable, BLOCK, BLOCK),
        (durable, middle, 39 * BLOCK),
        (READ, last, BLOCK),
        (durable, last, BLOCK),
    ];
    for (number, operation) in expected.iter().enumerate() {
        assert_eq!(storage.wait(number + 1)[number], *operation);
        storage.end(number);
    }
    assert_eq!(sent.wait().0, Ok(()));
    let bytes = [offset - 1, offset, last - 1, offset + len - 1, offset + len];
    assert_eq!(bytes.map(|at| storage.byte(at)), [1, 9, 9, 9, 1]);
    assert_eq!(disk.small_writes(), 2);
    let read = send(&one, READ, offset, len, 0);
    for number in 5..8 {
        storage.wait(number + 1);
        storage.end(number);
    }
    assert_eq!(read.wait(), (Ok(()), vec![9; len as usize]));
}

#[test]
fn discards_are_rounded_inwards() {
    let (storage, _, [one, _]) = disk();
    assert_eq!(one.run(RequestKind::Discard, 512, BLOCK, vec![]).0, Ok(()));
    let sent = send(&one, RequestKind::Discard, 512, 3 * BLOCK, 0);
    assert_eq!(storage.wait(1), [(RequestKind::Discard, BLOCK, 2 * BLOCK)]);
    storage.end(0);
    assert_eq!(sent.wait().0, Ok(()));
}

#[test]
fn an_error_ends_the_request_and_frees_its_blocks() {
    let (storage, disk, [one, other]) = disk();
    let small = send(&one, WRITE, 0, 512, 2);
    let next = send(&other, WRITE, 512, 512, 3);
    storage.fail(0);
    assert_eq!(small.wait().0, Err(IoError::Short));
    storage.wait(2);
    storage.end(1);
    storage.wait(3);
    storage.fail(2);
    assert_eq!(next.wait().0, Err(IoError::Short));
    assert_eq!((storage.count(), disk.small_writes()), (3, 0));
}

#[test]
fn an_abandoned_merge_keeps_its_blocks_until_the_storage_ends_it() {
    let (storage, _, [one, other]) = disk();
    let abandoned = one.send_abandoned(WRITE, 0, &[2; 512], 0);
    storage.wait(1);
    let next = send(&other, WRITE, 512, 512, 3);
    assert_eq!(storage.count(), 1);
    storage.end(0);
    assert!(abandoned.wait().0.is_err());
    assert_eq!(storage.wait(2)[1], (READ, 0, BLOCK), "the next request, and no write before it");
    storage.end(1);
    storage.wait(3);
    storage.end(2);
    assert_eq!(next.wait().0, Ok(()));
    assert_eq!([0, 512].map(|at| storage.byte(at)), [1, 3]);
}

#[test]
fn an_abandoned_request_that_waits_for_blocks_ends_at_once() {
    let (storage, _, [one, other]) = disk();
    let first = send(&one, WRITE, 0, 512, 2);
    let waiting = other.send_abandoned(WRITE, 0, &[3; 512], 0);
    let next = send(&one, WRITE, 0, BLOCK, 4);
    assert!(waiting.wait().0.is_err());
    storage.end(0);
    storage.wait(2);
    storage.end(1);
    storage.wait(3);
    storage.end(2);
    assert_eq!((first.wait().0, next.wait().0), (Ok(()), Ok(())));
    assert_eq!((storage.byte(0), storage.count()), (4, 3));
}

#[test]
fn the_end_of_a_reactor_frees_the_blocks_of_its_requests() {
    let (storage, _, [one, other]) = disk();
    let _lost = send(&one, WRITE, 0, 512, 2);
    let next = send(&other, WRITE, 0, BLOCK, 3);
    assert_eq!(storage.count(), 1);
    drop(one);
    assert_eq!(storage.wait(2)[1], (WRITE, 0, BLOCK));
    storage.end(1);
    assert_eq!(next.wait().0, Ok(()));
}

#[test]
fn a_draining_request_behind_one_that_stalls_fails() {
    let (storage, _, [one, other]) = disk();
    let _first = send(&one, WRITE, 0, 512, 2);
    let behind = send(&other, WRITE, 512, 512, 3);
    other.give_up();
    assert_eq!((one.waiting(), other.waiting(), storage.count()), (0, 0, 1));
    storage.stall(0);
    assert_eq!(behind.wait().0, Err(IoError::Full));
    // A channel that does not drain goes on waiting, and says so.
    let _waits = send(&one, WRITE, 0, BLOCK, 4);
    assert_eq!((one.waiting(), storage.count()), (2, 1));
}

#[test]
fn many_merges_share_the_bounce_buffers() {
    let (storage, disk, [one, other]) = disk();
    // More than there are buffers, and all of one channel: some wait for those of the others.
    let sent: Vec<_> = (0..100).map(|i| one.send(WRITE, i * BLOCK, 512, vec![2; 512], 0)).collect();
    one.barrier();
    let begun = storage.count();
    assert!(begun < 100, "all {begun} have a buffer");
    let own = send(&other, WRITE, 100 * BLOCK, 512, 2);
    storage.wait(begun + 1);
    for number in 0..202 {
        storage.wait(number + 1);
        storage.end(number);
    }
    assert!(sent.into_iter().all(|one| one.wait().0 == Ok(())) && own.wait().0 == Ok(()));
    assert_eq!(disk.small_writes(), 101);
}
