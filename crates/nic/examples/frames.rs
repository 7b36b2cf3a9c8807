//! Path of a frame alone: the cost of a frame including the move of its bytes.
//!
//! `frames KIND COUNT`, where KIND is:
//! - `known`: 60 bytes of UDP to a guest on the same reactor whose address is known
//! - `steered`: as `known`, to a guest with two queues
//! - `near`: 60 bytes of an unknown protocol, flooded
//! - `far`: as `near`, between two reactors
//! - `wide`: a flow that could be moved, to one of two queues on another reactor
//! - `whole`: 64 KiB to a guest that accepts it whole
//! - `cut`: as `whole`, to a guest that needs segments
//! - `locked`: as `known`, from a guest that is locked to its addresses
//! - `capped`: as `known`, from a guest with a rate limit that it does not reach
//! - `called`: as `known`, to a guest that wants a call for each batch
//! - `late`: as `known`, to a guest that has no buffers before frames wait for them, and kicks then
//!
//! A poller on the sender's reactor plays both drivers. The rings are set up once, and afterwards
//! the poller only moves their indices. The process ends by itself.
#![allow(clippy::print_stdout)] // Its only output is its measurements.
#![allow(clippy::unwrap_used)] // A tool of the repository: a panic is its report.

use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use memory::Buffers;
use net::Mac;
use net::features::{OfferedFeatures, feature};
use net::flow::{Bucket, Toeplitz};
use net::frame::Frame;
use net::port::{PortId, PortPolicy, Rate, RateLimiter};
use net::switch::{LearntStation, NetworkId, NetworkPolicy};
use nic::{Fabric, PortIncarnation, RunningQueue};
use reactor::{Context, PollOutcome, Poller, Reactor};
use rustix::event::{EventfdFlags, eventfd};
use virtq::QueueStart;
use virtq::driver::{BUFFERS, Driver};

const RING: u16 = 128;
const MEMORY: u64 = 8 << 20;
const LAN: NetworkId = NetworkId(0);
/// Address of the receiver.
const STATION: Mac = Mac([4; 6]);
/// Addresses of the sender.
const SENDER: (Mac, Ipv4Addr) = (Mac([2; 6]), Ipv4Addr::new(10, 0, 0, 1));
/// Distance of two frames in bytes.
const SLOT: u64 = 0x1_1000;

/// Frame that is sent, and its receiver.
struct Kind {
    reactors: usize,
    frame: Vec<u8>,
    /// Frames sent at once.
    depth: u16,
    /// Bytes of a receive buffer.
    buffer: u32,
    /// Buffers that a frame takes.
    takes: u16,
    /// Features that the receiver's driver has accepted.
    bits: u64,
    /// Queue pairs of the receiver. Frames go to the first.
    pairs: u16,
    /// Policy of the sender.
    policy: PortPolicy,
    receiver: Receiver,
}

/// Behaviour of the receiver's driver.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Receiver {
    /// Posts all its buffers, and polls for frames.
    Polls,
    /// Posts all its buffers, and wants a call for each batch.
    IsCalled,
    /// Posts buffers when frames wait for them, and kicks.
    IsLate,
}

fn kind(name: &str) -> Kind {
    let bits = OFFER.bits();
    let bare = feature::VERSION_1 | feature::EVENT_IDX;
    let small = [vec![0; 12], [vec![0xff; 6], vec![2; 6], vec![0x12; 48]].concat()].concat();
    let near = Kind {
        reactors: 1,
        frame: small,
        depth: 32,
        buffer: 2048,
        takes: 1,
        bits,
        pairs: 1,
        policy: PortPolicy::open(LAN),
        receiver: Receiver::Polls,
    };
    let large = large();
    let pieces = (large.len() as u16 - 12 - 54).div_ceil(1448);
    let whole = (large.len() as u16).div_ceil(4096);
    match name {
        "near" => near,
        "far" => Kind { reactors: 2, ..near },
        "known" => Kind { frame: flow(STATION.0), ..near },
        "steered" => Kind { frame: flow(STATION.0), pairs: 2, ..near },
        "wide" => Kind { reactors: 2, frame: flow([0xff; 6]), pairs: 2, ..near },
        "whole" => Kind { frame: large, depth: 4, buffer: 4096, takes: whole, ..near },
        "cut" => Kind { frame: large, depth: 2, takes: pieces, bits: bare, ..near },
        "locked" => Kind { frame: flow(STATION.0), policy: locked(), ..near },
        "capped" => Kind { frame: flow(STATION.0), policy: capped(), ..near },
        "called" => Kind { frame: flow(STATION.0), receiver: Receiver::IsCalled, ..near },
        "late" => Kind { frame: flow(STATION.0), receiver: Receiver::IsLate, ..near },
        _ => panic!("no kind called {name}"),
    }
}

fn locked() -> PortPolicy {
    let (mac, address) = SENDER;
    PortPolicy::open(LAN).locked(mac, &[address], &[]).unwrap()
}

/// Never throttled: the limit exceeds the copy rate of any machine.
fn capped() -> PortPolicy {
    let rate_limiter = RateLimiter::new(Rate::bytes(1 << 40), reactor::clock_ns());
    PortPolicy { rate: Some(Arc::new(rate_limiter)), ..PortPolicy::open(LAN) }
}

/// Returns a header and 60 bytes of UDP over IPv4, to `dst`, of a flow for the first of two queues.
fn flow(dst: [u8; 6]) -> Vec<u8> {
    let frame = |port: u16| {
        let mut out = [dst.to_vec(), vec![2; 6], vec![8, 0, 0x45, 0, 0, 46]].concat();
        out.extend([0, 1, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        out.extend(port.to_be_bytes());
        out.extend([0x14, 0x51, 0, 26, 0, 0]);
        out.extend([7; 18]);
        out
    };
    let hash = Toeplitz::default();
    let is_first = |frame: &Vec<u8>| {
        let parsed = Frame::parse(frame, frame.len()).unwrap();
        Bucket::of(hash.of(&parsed).unwrap()).index().is_multiple_of(2)
    };
    let frame = (1000..).map(frame).find(is_first).unwrap();
    [vec![0; 12], frame].concat()
}

/// Returns a header and 64 KiB of TCP over IPv4, to the broadcast address.
fn large() -> Vec<u8> {
    let data = 65_000u16;
    let mut out = vec![1, 1, 54, 0, 0xa8, 5, 34, 0, 16, 0, 0, 0];
    out.extend([vec![0xff; 6], vec![2; 6], vec![8, 0, 0x45, 0]].concat());
    out.extend((40 + data).to_be_bytes());
    out.extend([0, 1, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    out.extend([0x80, 0, 0x14, 0x51, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x10, 0, 0, 0, 0, 0, 0]);
    out.extend(vec![7; data.into()]);
    out
}

const OFFER: OfferedFeatures =
    OfferedFeatures { offloads: true, mergeable: true, pairs: 1, control: false, mtu: true };

/// Indices of a ring.
struct Indices {
    avail: Buffers,
    used: Buffers,
    /// Used entry for which the driver wants a call.
    event: Buffers,
}

impl Indices {
    fn of(driver: &Driver) -> impl FnOnce() -> Self + Send + use<> {
        let (mapping, config) = (driver.mapping().clone(), driver.config);
        move || {
            let index = |at: u64| Buffers::from_mapping(&mapping, at as usize, 2).unwrap();
            let event = config.avail + 4 + 2 * u64::from(config.size);
            Self {
                avail: index(config.avail + 2),
                used: index(config.used + 2),
                event: index(event),
            }
        }
    }

    fn used(&self) -> u16 {
        let mut used = [0; 2];
        self.used.peek(&mut used);
        u16::from_le_bytes(used)
    }

    fn offer(&self, index: u16) {
        self.avail.write(&index.to_le_bytes());
    }

    fn call_at(&self, index: u16) {
        self.event.write(&index.to_le_bytes());
    }
}

/// Eventfds of the receive ring.
struct Signals {
    kick: Option<Arc<OwnedFd>>,
    call: Option<Arc<OwnedFd>>,
}

impl Signals {
    fn of(receiver: Receiver) -> Self {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let when = |wanted: bool| wanted.then(|| Arc::new(eventfd(0, flags).unwrap()));
        Self {
            kick: when(receiver == Receiver::IsLate),
            call: when(receiver == Receiver::IsCalled),
        }
    }

    fn kick(&self) {
        if let Some(kick) = &self.kick {
            rustix::io::write(kick, &1u64.to_ne_bytes()).unwrap();
        }
    }

    /// Returns whether the receiver was called; true as well if it needs no call.
    fn was_called(&self) -> bool {
        self.call.as_ref().is_none_or(|call| rustix::io::read(call, &mut [0; 8]).is_ok())
    }
}

/// Sends some frames at a time, and the next ones when all have arrived.
struct Guests {
    tx: Indices,
    rx: Indices,
    signals: Arc<Signals>,
    kind: Kind,
    sent: u16,
    due: u16,
    /// Number of posted buffers.
    posted: u16,
    left: u64,
    total: u64,
    began: Instant,
    fabric: Arc<Fabric>,
}

impl Guests {
    fn post(&mut self, index: u16) {
        self.posted = index;
        self.rx.offer(index);
    }

    /// Prints the cost of a frame, and ends the process.
    fn end(&self) -> ! {
        let (frames, took) = (self.fabric.counts(PortId(2)).got_frames, self.began.elapsed());
        assert!(frames >= self.total, "{frames} of {}", self.total);
        let waited = self.fabric.queues(PortId(2)).iter().map(|queue| queue.waited).sum::<u64>();
        let is_late = self.kind.receiver == Receiver::IsLate;
        assert_eq!(waited, if is_late { frames } else { 0 }, "frames that waited");
        assert!(self.signals.was_called(), "no call");
        println!("{:.1} ns a frame", took.as_nanos() as f64 / self.total as f64);
        // Exit at once: a reactor that sleeps under valgrind 3.19 blocks all threads.
        std::process::exit(0);
    }
}

impl Poller for Guests {
    fn poll(&mut self, _: &mut Context<'_>) -> PollOutcome {
        let got = self.rx.used();
        if self.tx.used() != self.sent {
            return PollOutcome::Busy;
        }
        let is_late = self.kind.receiver == Receiver::IsLate;
        if is_late && self.posted != self.due {
            self.post(self.due);
            self.signals.kick();
        }
        if got != self.due {
            return PollOutcome::Busy;
        }
        if self.left == 0 {
            self.end();
        }
        let depth = self.kind.depth;
        self.left = self.left.saturating_sub(depth.into());
        if !is_late {
            self.post(got.wrapping_add(RING));
        }
        if self.kind.receiver == Receiver::IsCalled {
            self.rx.call_at(got);
        }
        self.due = self.due.wrapping_add(depth * self.kind.takes);
        self.sent = self.sent.wrapping_add(depth);
        self.tx.offer(self.sent);
        PollOutcome::Busy
    }

    fn on_runnable(&mut self) {}

    fn arm(&mut self) -> bool {
        true
    }
}

/// Poller that keeps its reactor awake.
struct Awake;

impl Poller for Awake {
    fn poll(&mut self, _: &mut Context<'_>) -> PollOutcome {
        PollOutcome::Busy
    }

    fn on_runnable(&mut self) {}

    fn arm(&mut self) -> bool {
        true
    }
}

/// Sets up the rings once: frames in the first `depth` slots, repeated around the ring.
fn drivers(kind: &Kind) -> [Driver; 2] {
    let [mut tx, mut rx] = [0, 0].map(|_| Driver::new(RING, MEMORY, true));
    for slot in 0..kind.depth {
        let at = BUFFERS + SLOT * u64::from(slot);
        tx.write(at, &kind.frame);
        tx.put_chain(slot, &[(at, kind.frame.len() as u32, false)]);
    }
    (0..RING).for_each(|at| tx.offer(at % kind.depth));
    for slot in 0..RING {
        let at = BUFFERS + u64::from(kind.buffer) * u64::from(slot);
        rx.put_chain(slot, &[(at, kind.buffer, true)]);
        rx.offer(slot);
    }
    [tx, rx]
}

fn start(
    fabric: &Arc<Fabric>,
    reactor: &Reactor,
    port_incarnation: PortIncarnation,
    index: u16,
    (driver, signals): (&Driver, &Signals),
) {
    let start = QueueStart {
        index,
        ring: driver.config,
        table: driver.table.clone(),
        kick: signals.kick.clone(),
        call: signals.call.clone(),
        err: None,
        features: 0,
        inflight: None,
    };
    let fault: nic::FaultHandler = Arc::new(|_: &str| {});
    let queue =
        RunningQueue::start(fabric, reactor.handle(), port_incarnation, start, fault).unwrap();
    // The queue is served until the process ends.
    std::mem::forget(queue);
}

/// Runs the example and ends the process.
pub(crate) fn run(args: &[String]) -> ! {
    let [name, count] = args else { panic!("usage: frames KIND COUNT") };
    let (kind, total) = (kind(name), count.parse().unwrap());
    let awake = |context: &mut Context<'_>| {
        context.add_poller(None, |_| Ok::<_, ()>(Awake)).unwrap();
    };
    let reactors: Vec<_> =
        (0..kind.reactors).map(|_| Reactor::spawn_with("frames", awake).unwrap()).collect();
    let fabric = Fabric::new(reactors.iter().map(Reactor::handle)).unwrap();
    fabric.set_network(LAN, NetworkPolicy::default()).unwrap();
    let ports = [(1, OFFER.bits(), &kind.policy), (2, kind.bits, &PortPolicy::open(LAN))];
    let [sender, receiver] = ports.map(|(port, bits, policy)| {
        fabric.set_port(PortId(port), policy).unwrap();
        PortIncarnation::driver(PortId(port), OFFER.accept(bits).unwrap())
    });
    let seen_ns = reactor::clock_ns();
    let station = LearntStation { network: LAN, port: PortId(2), vlan: 0, mac: STATION, seen_ns };
    fabric.recall(&Arc::from([station])).unwrap();
    let [tx, rx] = drivers(&kind);
    let (first, last) = (reactors.first().unwrap(), reactors.last().unwrap());
    let signals = Arc::new(Signals::of(kind.receiver));
    let silent = Signals::of(Receiver::Polls);
    start(&fabric, last, receiver, 0, (&rx, &signals));
    for pair in 1..kind.pairs {
        start(&fabric, last, receiver, 2 * pair, (&Driver::new(RING, MEMORY, true), &silent));
    }
    start(&fabric, first, sender, 1, (&tx, &silent));
    let (tx, rx) = (Indices::of(&tx), Indices::of(&rx));
    let begin = move |context: &mut Context<'_>| {
        let (began, left, tx, rx) = (Instant::now(), total, tx(), rx());
        let (sent, due, posted) = (0, 0, 0);
        let guests =
            Guests { tx, rx, signals, kind, sent, due, posted, left, total, began, fabric };
        context.add_poller(None, |_| Ok::<_, ()>(guests)).unwrap();
    };
    first.handle().send(begin).unwrap();
    loop {
        std::thread::park();
    }
}

fn main() {
    run(&std::env::args().skip(1).collect::<Vec<_>>());
}
