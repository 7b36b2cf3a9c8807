//! Proof that a frame to or from the host takes no heap memory and no lock. It runs under callgrind
//! ([`testkit::callgrind`]) and counts the calls that would do so. `crates/nic/tests/steady.rs`
//! covers the other paths of frames. A socket stands in for the device.

use std::net::UdpSocket;
use std::time::{Duration, Instant};

use net::Mac;
use net::features::OfferedFeatures;
use net::header::Offloads;
use net::port::{PortId, PortPolicy};
use net::switch::{LearntStation, NetworkId, NetworkPolicy};
use nic::{Fabric, HostQueue, RunningQueue};
use reactor::Reactor;
use testkit::callgrind::{self, allocates_or_locks};
use virtq::QueueStart;
use virtq::driver::{BUFFERS, Driver};

use crate::served_nic::uplink::tap_queue::*;

const LAN: NetworkId = NetworkId(0);
/// Number of the host's port and station.
const HOST: u8 = 1;
const GUEST: u8 = 2;
/// Number of entries of a ring.
const RING: u16 = 128;
/// Frames in flight in each direction.
const DEPTH: u16 = 32;
/// Bytes of a frame with its header.
const FRAME: usize = HEADER_BYTES + 60;
/// Far more time than all frames take, even under valgrind on a busy machine.
const DEADLINE: Duration = Duration::from_secs(240);
const MEMORY_BYTES: u64 = 4 << 20;

/// Builds a frame from one station to another, with a header that requests no offload.
fn frame(dst: u8, src: u8) -> [u8; FRAME] {
    let mut out = [7; FRAME];
    out[..HEADER_BYTES].fill(0);
    for (at, station) in [(HEADER_BYTES, dst), (HEADER_BYTES + 6, src)] {
        out[at..at + 6].fill(2 * station);
    }
    out[HEADER_BYTES + 12..][..2].copy_from_slice(&[0x12, 0x34]);
    out
}

/// The host behind its socket, and the guest's driver. Each sends some frames to the other, and the
/// next ones when all have arrived.
struct Ends {
    host: UdpSocket,
    rx: Driver,
    tx: Driver,
    /// Frames sent in each direction, and frames that the host received.
    sent: u16,
    got: u16,
    left: u64,
    until: Instant,
    /// `None` until all is ready.
    fabric: Option<Arc<Fabric>>,
}

impl Ends {
    fn new(host: UdpSocket, left: u64) -> Self {
        let [mut rx, mut tx] = [(); 2].map(|()| Driver::new(RING, MEMORY_BYTES, true));
        tx.write(BUFFERS, &frame(HOST, GUEST));
        (0..DEPTH).for_each(|slot| tx.put_chain(slot, &[(BUFFERS, FRAME as u32, false)]));
        for slot in 0..RING {
            rx.put_chain(slot, &[(BUFFERS + 2048 * u64::from(slot), 2048, true)]);
            rx.offer(slot);
            tx.offer(slot % DEPTH);
        }
        let until = Instant::now() + DEADLINE;
        Self { host, rx, tx, sent: 0, got: 0, left, until, fabric: None }
    }

    /// Returns the parameters of the guest's rings.
    fn rings(&self) -> [QueueStart; 2] {
        [(0, &self.rx), (1, &self.tx)].map(|(index, driver)| QueueStart {
            index,
            ring: driver.config,
            table: driver.table.clone(),
            kick: None,
            call: None,
            err: None,
            features: 0,
            inflight: None,
        })
    }

    /// Sends the next frames after the former ones have arrived.
    fn next(&mut self, fabric: &Fabric) {
        if self.left == 0 {
            let counts = fabric.counts(PortId(HOST.into()));
            assert!(counts.sent_frames > 0 && counts.sent_frames == counts.got_frames);
            // Exit here: a sleeping reactor blocks all threads under valgrind 3.19.
            std::process::exit(0);
        }
        self.left = self.left.saturating_sub(DEPTH.into());
        self.rx.jump(self.sent.wrapping_add(RING));
        self.sent = self.sent.wrapping_add(DEPTH);
        self.tx.jump(self.sent);
        for _ in 0..DEPTH {
            self.host.send(&frame(GUEST, HOST)).unwrap();
        }
    }
}

impl Poller for Ends {
    fn poll(&mut self, _: &mut Context<'_>) -> PollOutcome {
        while self.host.recv(&mut [0; 2 * FRAME]).is_ok_and(|bytes| bytes == FRAME) {
            self.got = self.got.wrapping_add(1);
        }
        let arrived = [self.got, self.tx.used_idx(), self.rx.used_idx()];
        if arrived == [self.sent; 3]
            && let Some(fabric) = self.fabric.take()
        {
            self.next(&fabric);
            self.fabric = Some(fabric);
        }
        assert!(Instant::now() < self.until, "of {} frames {arrived:?} have arrived", self.sent);
        PollOutcome::Busy
    }

    fn on_runnable(&mut self) {}

    fn arm(&mut self) -> bool {
        true
    }
}

/// Returns both ends of a connection that preserves frame boundaries.
fn sockets() -> [UdpSocket; 2] {
    let both = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
    let [near, far] = &both;
    near.connect(far.local_addr().unwrap()).unwrap();
    far.connect(near.local_addr().unwrap()).unwrap();
    both.iter().for_each(|one| one.set_nonblocking(true).unwrap());
    both
}

/// Starts the guest's rings, both on the only reactor.
fn start(fabric: &Arc<Fabric>, reactor: &Reactor, rings: [QueueStart; 2]) {
    let offered_features =
        OfferedFeatures { offloads: true, mergeable: true, pairs: 1, control: false, mtu: true };
    let port_incarnation = PortIncarnation::driver(
        PortId(GUEST.into()),
        offered_features.accept(offered_features.bits()).unwrap(),
    );
    for ring in rings {
        let fault: nic::FaultHandler = Arc::new(|why| panic!("{why}"));
        let queue =
            RunningQueue::start(fabric, reactor.handle(), port_incarnation, ring, fault).unwrap();
        // Serve it until the process ends.
        std::mem::forget(queue);
    }
}

/// Returns a switch that has learnt both stations.
fn switch(reactor: &Reactor) -> Arc<Fabric> {
    let fabric = Fabric::new([reactor.handle()]).unwrap();
    fabric.set_network(LAN, NetworkPolicy::default()).unwrap();
    let seen_ns = reactor::clock_ns();
    let stations = [HOST, GUEST].map(|number| {
        let port = PortId(number.into());
        fabric.set_port(port, &PortPolicy::open(LAN)).unwrap();
        LearntStation { network: LAN, port, vlan: 0, mac: Mac([2 * number; 6]), seen_ns }
    });
    fabric.recall(&Arc::from(stations)).unwrap();
    fabric
}

/// Exchanges this many frames in each direction, and ends the process.
fn run(frames: u64) -> ! {
    let [near, far] = sockets();
    let (sender, ready) = std::sync::mpsc::channel();
    let begin = move |context: &mut Context<'_>| {
        let ends = Ends::new(far, frames);
        let rings = ends.rings();
        sender.send((context.add_poller(None, |_| Ok::<_, ()>(ends)).unwrap(), rings)).unwrap();
    };
    let reactor = Reactor::spawn_with("steady", begin).unwrap();
    let (ends, rings) = ready.recv().unwrap();
    let fabric = switch(&reactor);
    start(&fabric, &reactor, rings);
    let (fd, uplink_exit) = (Arc::new(OwnedFd::from(near)), UplinkExit::new().unwrap());
    let (port_incarnation, kick) =
        (PortIncarnation::host(PortId(HOST.into()), Offloads::KERNEL), Arc::clone(&fd));
    let make =
        move |context: &mut Context<'_>, hub| make(context, hub, port_incarnation, fd, uplink_exit);
    let queue =
        HostQueue::new(&fabric, reactor.handle(), port_incarnation, 0, Some(kick), make).unwrap();
    queue.with(|tap_reader: &mut TapReader, _| tap_reader.unquiesce()).unwrap();
    let go = move |context: &mut Context<'_>| {
        context.with_poller(ends, |ends: &mut Ends, _| ends.fabric = Some(fabric)).unwrap();
    };
    reactor.handle().send(go).unwrap();
    loop {
        std::thread::park();
    }
}

/// Load of the test below under valgrind; not a test itself.
#[test]
#[ignore = "it is the load of the other test"]
fn load() {
    if let Some(words) = callgrind::load() {
        run(words[0].parse().unwrap());
    }
}

#[test]
fn frames_of_the_host_and_to_it_take_no_memory_and_no_lock() {
    const SHORT: u64 = 256;
    const MORE: u64 = 3 * SHORT;
    let load = "served_nic::uplink::tap_queue::tests::alloc::load";
    let [short, long] = [SHORT, SHORT + MORE].map(|frames| frames.to_string());
    let mut grown = callgrind::extra_calls(load, &short, &long).unwrap();
    // Rare calls are not calls for each frame.
    grown.retain(|_, count| *count > 8 && *count * 64 > MORE);
    // Frames of both directions are forwarded, and those to the host are accepted.
    for (step, times) in
        [("Hub>::forward", 2 * MORE), ("TapQueue as nic::frame_sink::FrameSink>::deliver", MORE)]
    {
        let seen = grown.iter().find(|(name, _)| name.contains(step));
        assert!(seen.is_some_and(|(_, count)| *count >= times), "{step} not seen: {grown:?}");
    }
    grown.retain(|name, _| allocates_or_locks(name));
    assert!(grown.is_empty(), "{grown:#?}");
}
