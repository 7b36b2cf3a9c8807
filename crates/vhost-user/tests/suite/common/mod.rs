//! A session in this process: a recording device on its own thread, and the test as front-end.
// Each test file uses only a part of this module.
#![allow(clippy::unwrap_used, clippy::panic, dead_code, unreachable_pub)]

use std::io::{IoSlice, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use vhost_user::{
    Backend, BackendChannel, BackendError, Session, SessionEnd, SessionError, SessionHandle,
    SessionState, StopCause,
};
use virtq::{QueueConfig, QueueStart};

/// Number of queues of the device.
pub const QUEUES: u16 = 4;
/// Entries that the device reports as served at each stop of a queue.
pub const SERVED: u16 = 7;
/// Offered features: VERSION_1, RING_EVENT_IDX, and a bit of the device's own.
pub const FEATURES: u64 = 1 << 32 | 1 << 29 | 1 << 9;
/// Feature bit that the device offers and then refuses.
pub const POISON: u64 = 1 << 5;
/// Bytes of configuration space.
pub const CONFIG_BYTES: u8 = 60;

/// A call that the device received.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    Features(u64),
    Config(u32, Vec<u8>),
    Start {
        index: u16,
        ring: QueueConfig,
        kick: bool,
        call: bool,
        err: bool,
        features: u64,
    },
    /// Follows the start of a queue whose requests are recorded.
    Recorded(u16),
    Stop(u16),
    Memory(usize),
    Call(u16, bool),
    Channel,
    Reset,
    Disconnected,
}

#[derive(Default)]
pub struct Shared {
    pub events: Vec<Event>,
    pub channel: Option<BackendChannel>,
    pub running: Vec<QueueStart>,
}

pub struct Recorder(pub Arc<Mutex<Shared>>);

impl Recorder {
    fn log(&self, event: Event) {
        self.0.lock().unwrap().events.push(event);
    }
}

impl Backend for Recorder {
    fn queue_count(&self) -> u16 {
        QUEUES
    }

    fn features(&self) -> u64 {
        FEATURES | POISON
    }

    fn withheld_features(&self) -> u64 {
        0
    }

    fn ack_features(&mut self, features: u64) -> Result<(), BackendError> {
        assert!(self.0.lock().unwrap().running.is_empty());
        if features & POISON != 0 {
            return Err("this bit is poison".into());
        }
        self.log(Event::Features(features));
        Ok(())
    }

    fn read_config(&self, offset: u32, out: &mut [u8]) {
        for (byte, at) in out.iter_mut().zip(u64::from(offset)..) {
            if at < u64::from(CONFIG_BYTES) {
                *byte = at as u8 + 1;
            }
        }
    }

    fn write_config(&mut self, offset: u32, bytes: &[u8]) -> Result<(), BackendError> {
        if offset != 32 {
            return Err("read-only field".into());
        }
        self.log(Event::Config(offset, bytes.into()));
        Ok(())
    }

    fn start_queue(&mut self, start: QueueStart) -> Result<(), BackendError> {
        if !start.ring.desc.is_multiple_of(16) {
            return Err("the descriptor table is misaligned".into());
        }
        let (kick, call, err) = (start.kick.is_some(), start.call.is_some(), start.err.is_some());
        let QueueStart { index, ring, features, .. } = start;
        let mut shared = self.0.lock().unwrap();
        assert!(index < QUEUES && shared.running.iter().all(|queue| queue.index != index));
        shared.events.push(Event::Start { index, ring, kick, call, err, features });
        if start.inflight.is_some() {
            shared.events.push(Event::Recorded(index));
        }
        shared.running.push(start);
        Ok(())
    }

    fn stop_queue(&mut self, index: u16, _: StopCause) -> u16 {
        let mut shared = self.0.lock().unwrap();
        let at = shared.running.iter().position(|queue| queue.index == index).unwrap();
        shared.events.push(Event::Stop(index));
        shared.running.remove(at).ring.next_avail.wrapping_add(SERVED)
    }

    fn set_memory(&mut self, table: &Arc<memory::Table>) -> Result<(), BackendError> {
        assert!(!self.0.lock().unwrap().running.is_empty());
        self.log(Event::Memory(table.regions().len()));
        let end = |r: &memory::Region| r.spec().guest_addr + r.spec().len;
        if table.regions().iter().any(|region| end(region) > 1 << 40) {
            return Err("beyond what this device reaches".into());
        }
        Ok(())
    }

    fn set_call(&mut self, index: u16, call: Option<Arc<OwnedFd>>) -> Result<(), BackendError> {
        assert!(self.0.lock().unwrap().running.iter().any(|queue| queue.index == index));
        self.log(Event::Call(index, call.is_some()));
        Ok(())
    }

    fn set_channel(&mut self, channel: BackendChannel) {
        self.log(Event::Channel);
        self.0.lock().unwrap().channel = Some(channel);
    }

    fn reset(&mut self) {
        assert!(self.0.lock().unwrap().running.is_empty());
        self.log(Event::Reset);
    }

    fn disconnected(&mut self) {
        assert!(self.0.lock().unwrap().running.is_empty());
        self.0.lock().unwrap().channel = None;
        self.log(Event::Disconnected);
    }
}

/// Front-end's side of a session.
pub struct Peer {
    pub socket: UnixStream,
    pub handle: SessionHandle,
    shared: Arc<Mutex<Shared>>,
    thread: JoinHandle<Result<SessionEnd, SessionError>>,
}

/// Flags of a request that requests an acknowledgement.
pub const ACK: u32 = 9;
/// Flags of a plain request.
pub const PLAIN: u32 = 1;

impl Peer {
    pub fn new() -> Self {
        let (socket, theirs) = UnixStream::pair().unwrap();
        let backend = Recorder(Arc::default());
        Self::served(socket, Session::new(theirs).unwrap(), backend)
    }

    /// Creates the front-end of a restored session, perhaps on another device.
    pub fn restored(socket: UnixStream, state: SessionState) -> Self {
        let backend = Recorder(Arc::default());
        let session = Session::restore(state, &backend).unwrap();
        Self::served(socket, session, backend)
    }

    /// Freezes the session and returns its socket, its state and the calls that the device
    /// received.
    pub fn freeze(self) -> (UnixStream, SessionState, Vec<Event>) {
        self.handle.freeze();
        let end = self.thread.join().expect("a session never panics");
        let Ok(SessionEnd::Frozen(state)) = end else { panic!("{end:?}") };
        (self.socket, *state, std::mem::take(&mut self.shared.lock().unwrap().events))
    }

    fn served(socket: UnixStream, session: Session, mut backend: Recorder) -> Self {
        let shared = Arc::clone(&backend.0);
        let handle = session.handle();
        let thread = std::thread::spawn(move || session.run(&mut backend));
        Self { socket, handle, shared, thread }
    }

    /// Creates a session with acknowledgements and the given virtio features.
    pub fn negotiated(features: u64) -> Self {
        let peer = Self::new();
        peer.send(3, 1, &[], &[]);
        peer.done(16, &words(&[vhost_user::features::OFFERED]), &[]);
        peer.done(2, &words(&[features]), &[]);
        peer.take();
        peer
    }

    pub fn send(&self, code: u32, flags: u32, payload: &[u8], fds: &[BorrowedFd<'_>]) {
        let mut bytes = [code, flags, payload.len() as u32].map(u32::to_ne_bytes).concat();
        bytes.extend_from_slice(payload);
        self.send_raw(&bytes, fds);
    }

    pub fn send_raw(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
        let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(260))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(fds)));
        }
        let iov = [IoSlice::new(bytes)];
        let sent = sendmsg(&self.socket, &iov, &mut control, SendFlags::NOSIGNAL).unwrap();
        assert_eq!(sent, bytes.len());
    }

    /// Receives the next reply: request code and payload.
    pub fn receive(&self) -> (u32, Vec<u8>) {
        let mut head = [[0; 4]; 3];
        (&self.socket).read_exact(head.as_flattened_mut()).unwrap();
        let [code, flags, size] = head.map(u32::from_ne_bytes);
        assert_eq!(flags, 5, "a reply of version 1");
        let mut payload = vec![0; size as usize];
        (&self.socket).read_exact(&mut payload).unwrap();
        (code, payload)
    }

    /// Receives the next reply like [`Self::receive`], with its descriptors.
    pub fn receive_with_fds(&self) -> (u32, Vec<u8>, Vec<OwnedFd>) {
        let mut head = [0; 12];
        let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut iov = [IoSliceMut::new(&mut head)];
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::WAITALL;
        let received = recvmsg(&self.socket, &mut iov, &mut control, flags).unwrap();
        assert_eq!(received.bytes, 12);
        let fds = control.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(rights) => Some(rights),
            _ => None,
        });
        let fds = fds.flatten().collect();
        let word = |at: usize| u32::from_ne_bytes(head[at..at + 4].try_into().unwrap());
        let mut payload = vec![0; word(8) as usize];
        (&self.socket).read_exact(&mut payload).unwrap();
        (word(0), payload, fds)
    }

    /// Sends a request and returns its reply.
    pub fn ask(&self, code: u32, payload: &[u8]) -> Vec<u8> {
        self.send(code, PLAIN, payload, &[]);
        let (answered, payload) = self.receive();
        assert_eq!(answered, code);
        payload
    }

    pub fn ask_u64(&self, code: u32) -> u64 {
        u64::from_ne_bytes(self.ask(code, &[]).try_into().unwrap())
    }

    /// Sends a request with NEED_REPLY and returns whether it was carried out.
    pub fn acknowledged(&self, code: u32, payload: &[u8], fds: &[BorrowedFd<'_>]) -> bool {
        self.send(code, ACK, payload, fds);
        let (answered, payload) = self.receive();
        assert_eq!(answered, code);
        u64::from_ne_bytes(payload.try_into().unwrap()) == 0
    }

    pub fn done(&self, code: u32, payload: &[u8], fds: &[BorrowedFd<'_>]) {
        assert!(self.acknowledged(code, payload, fds), "request {code} was refused");
    }

    pub fn refused(&self, code: u32, payload: &[u8], fds: &[BorrowedFd<'_>]) {
        assert!(!self.acknowledged(code, payload, fds), "request {code} was carried out");
    }

    /// Takes the calls that the device has received since the last time.
    pub fn take(&self) -> Vec<Event> {
        std::mem::take(&mut self.shared.lock().unwrap().events)
    }

    pub fn channel(&self) -> BackendChannel {
        self.shared.lock().unwrap().channel.clone().unwrap()
    }

    /// Waits for the session to end. Returns its result and the last calls that the device
    /// received.
    pub fn ended(self) -> (Result<SessionEnd, SessionError>, Vec<Event>) {
        drop(self.socket);
        let end = self.thread.join().expect("a session never panics");
        (end, std::mem::take(&mut self.shared.lock().unwrap().events))
    }

    /// Waits until the session closes the connection.
    pub fn hung_up(&self) {
        let mut rest = Vec::new();
        // The session may close with unread bytes from the test.
        let _ = (&self.socket).read_to_end(&mut rest);
    }

    /// Sends all settings of a ring: memory, size, base, addresses, and a kick.
    pub fn configure(&self, index: u32, memory: &OwnedFd, kick: &OwnedFd) {
        self.done(5, &table(&[MEMORY]), &[memory.as_fd()]);
        self.configure_ring(index, kick);
    }

    pub fn configure_ring(&self, index: u32, kick: &OwnedFd) {
        self.done(8, &state(index, 256), &[]);
        self.done(10, &state(index, 5), &[]);
        self.done(9, &ring_addr(index, 0x7000_1000), &[]);
        self.done(12, &words(&[index.into()]), &[kick.as_fd()]);
    }
}

/// Guest address, length, user address, file offset.
pub type RegionWords = [u64; 4];

/// 64 KiB at guest address 1 MiB and user address 0x7000_0000.
pub const MEMORY: RegionWords = [0x10_0000, 0x1_0000, 0x7000_0000, 0];

pub fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

pub fn state(index: u32, num: u32) -> Vec<u8> {
    [index, num].map(u32::to_ne_bytes).concat()
}

pub fn table(regions: &[RegionWords]) -> Vec<u8> {
    [words(&[regions.len() as u64]), words(regions.as_flattened())].concat()
}

pub fn single(region: RegionWords) -> Vec<u8> {
    [words(&[0]), words(&region)].concat()
}

/// Encodes the addresses of a ring whose parts are a page apart, from user address `desc`.
pub fn ring_addr(index: u32, desc: u64) -> Vec<u8> {
    words(&[index.into(), desc, desc.wrapping_add(0x2000), desc.wrapping_add(0x1000), 0])
}

/// Returns the ring of [`Peer::configure_ring`] as the device receives it.
pub fn ring(next_avail: u16) -> QueueConfig {
    QueueConfig {
        size: 256,
        desc: 0x10_1000,
        avail: 0x10_2000,
        used: 0x10_3000,
        next_avail,
        event_idx: true,
    }
}

pub fn started(index: u16, next_avail: u16) -> Event {
    let features = FEATURES;
    let ring = ring(next_avail);
    Event::Start { index, ring, kick: true, call: false, err: false, features }
}

pub fn memfd(len: u64) -> OwnedFd {
    let fd = rustix::fs::memfd_create("guest", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&fd, len).unwrap();
    fd
}

pub fn event() -> OwnedFd {
    rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap()
}

pub fn pipe() -> (OwnedFd, OwnedFd) {
    rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap()
}
