//! Forwarding decisions alone: the cost of a frame before its bytes are moved.
//!
//! `steering KIND FRAMES`: KIND is `udp` (64 bytes, known stations), `locked` (the same from a
//! locked port), `tso` (64 KiB to a receiver that accepts it whole), `cut` (the same, segmented in
//! software) or `learn` (a new source each time, flooded). Prints nanoseconds for each frame.
#![allow(clippy::print_stdout)] // Its only output is its measurements.
#![allow(clippy::unwrap_used)] // A tool of the repository: a panic is its report.

use std::hint::black_box;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Instant;

use net::flow::{FlowHashCache, FlowKey, QueueLoads, QueueSelector, TopFlows};
use net::frame::{Frame, PREFIX_BYTES};
use net::header::{Header, Offloads, SoftwareOffload};
use net::port::{PortId, PortPolicy};
use net::segment::Segments;
use net::switch::{Decision, NetworkId, NetworkPolicy, Switch};
use net::{Drops, Mac};

const LAN: NetworkId = NetworkId(0);
const SOURCE: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const NOTHING: Offloads =
    Offloads { checksum: false, tcp4: false, tcp6: false, ecn: false, vouches: false };

fn mac(number: u32) -> Mac {
    let [a, b, c, d] = number.to_be_bytes();
    Mac([2, 0, a, b, c, d])
}

/// Returns an IPv4 frame from station 1 to station 2 with `body` after its ports.
fn frame(protocol: u8, body: &[u8]) -> Vec<u8> {
    let mut out = [mac(2).0, mac(1).0].concat();
    out.extend([8, 0, 0x45, 0]);
    out.extend((24 + body.len() as u16).to_be_bytes());
    out.extend([0, 1, 0x40, 0, 64, protocol, 0, 0]);
    out.extend(SOURCE.octets());
    out.extend([10, 0, 0, 2, 0x80, 0, 0x14, 0x51]);
    out.extend(body);
    out
}

/// State of one reactor.
struct Path {
    switch: Switch,
    hash: FlowHashCache,
    queue_selector: QueueSelector,
    flows: TopFlows,
    drops: Drops,
    room: Vec<u8>,
    now: u64,
    done: u64,
}

impl Path {
    fn new(locked: bool) -> Self {
        let mut switch = Switch::new();
        switch.set_network(LAN, NetworkPolicy::default()).unwrap();
        for port in 0..4 {
            switch.set_port(PortId(port), PortPolicy::open(LAN)).unwrap();
        }
        if locked {
            let policy = PortPolicy::open(LAN).locked(mac(1), &[SOURCE], &[]).unwrap();
            switch.set_port(PortId(1), policy).unwrap();
        }
        switch.learn(PortId(2), 0, mac(2), 0);
        let mut queue_selector = QueueSelector::new(Arc::new(QueueLoads::new(1)), 0);
        queue_selector.set_queues(4);
        Self {
            switch,
            hash: FlowHashCache::default(),
            queue_selector,
            flows: TopFlows::default(),
            drops: Drops::default(),
            room: vec![0; 2048],
            now: 0,
            done: 0,
        }
    }

    /// Decides about a frame, and does the work for its receiver that precedes the move.
    fn take(&mut self, bytes: &[u8], header: &[u8], receiver: Offloads) -> u64 {
        self.now += 100;
        let prefix = bytes.get(..PREFIX_BYTES).unwrap_or(bytes);
        let frame = Frame::parse(prefix, bytes.len()).unwrap();
        let header = Header::parse(header, &frame, Offloads::KERNEL).unwrap();
        let verdict = self.switch.decide(PortId(1), &frame, &header, self.now);
        let port = match verdict.decision {
            Decision::Drop(reason) => {
                self.drops.count(reason);
                return 0;
            }
            Decision::Flood(ports) => return ports.len().into(),
            Decision::Forward(port) => port,
        };
        black_box(self.switch.tagging(port, verdict.vlan, &frame));
        let hash = self.hash.of(&frame);
        let done = self.done;
        black_box(self.queue_selector.pick(hash, self.now, |_, position| Some(position <= done)));
        self.done += 1;
        self.queue_selector.sent(hash, self.done, bytes.len() as u64, self.now);
        let key = || FlowKey::of(&frame, Some(port));
        self.flows.see(|| hash, bytes.len() as u64, self.now, key);
        if header.finish_for(receiver) == SoftwareOffload::Segment {
            let mut segments = Segments::new(bytes, &frame, &header).unwrap();
            let count = segments.left() as u64;
            while segments.write_next(&mut self.room).unwrap().is_some() {}
            return count;
        }
        black_box(header.for_receiver(receiver).bytes(1));
        1
    }
}

/// Runs `FRAMES` of a `KIND`.
pub(crate) fn run(args: &[String]) {
    let [kind, frames] = args else { panic!("steering KIND FRAMES") };
    let frames: u64 = frames.parse().unwrap();
    // After the ports: length and checksum of UDP, or the rest of a TCP header.
    let udp = frame(17, &[0; 26]);
    let tcp = [&[0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x10, 0, 0, 0, 0, 0, 0], &[7; 65_000][..]].concat();
    let tcp = frame(6, &tcp);
    let segmented = [1, 1, 54, 0, 0xa8, 5, 34, 0, 16, 0, 0, 0];
    let (mut bytes, header, receiver) = match kind.as_str() {
        "udp" | "locked" | "learn" => (udp, [0; 12], NOTHING),
        "tso" => (tcp, segmented, Offloads::KERNEL),
        "cut" => (tcp, segmented, NOTHING),
        _ => panic!("no kind called {kind}"),
    };
    let mut path = Path::new(kind == "locked");
    let begun = Instant::now();
    let mut moved = 0;
    for number in 0..frames {
        if kind == "learn" {
            bytes[6..12].copy_from_slice(&mac(number as u32 + 10).0);
            bytes[..6].copy_from_slice(&Mac::BROADCAST.0);
        }
        moved += path.take(black_box(&bytes), &header, receiver);
    }
    assert!(moved >= frames, "{moved} of {frames}: they are dropped");
    println!("{kind}: {:.1} ns a frame", begun.elapsed().as_nanos() as f64 / frames as f64);
}

fn main() {
    run(&std::env::args().skip(1).collect::<Vec<_>>());
}
