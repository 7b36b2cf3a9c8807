//! Tests that a port without virtqueues sends and receives frames as others do.
#![allow(clippy::unwrap_used)]

use std::cell::RefCell;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use crate::guest::*;
use memory::Buffers;
use net::Reason;
use net::flow::QUIET_NS;
use net::frame::PREFIX_BYTES;
use net::header::{HEADER_BYTES, Offloads};
use net::port::{PortId, PortPolicy};
use nic::{EgressFrame, FrameSink, HostQueue, HostQueueParts, Hub, IngressFrame, PortIncarnation};
use reactor::{Context, PollOutcome, Poller};
use rustix::event::{EventfdFlags, eventfd};

const SOON: Duration = Duration::from_secs(20);
/// Number of the port and of its station.
const HOST: u8 = 9;

/// Header and frame.
type Packet = (Vec<u8>, Vec<u8>);

fn bytes(frame: &EgressFrame<'_>) -> Vec<u8> {
    let mut bytes = vec![0; frame.bytes()];
    bytes[..frame.head.len()].copy_from_slice(frame.head);
    frame.body.peek(&mut bytes[frame.head.len()..]);
    bytes
}

/// Accepts two frames of each batch.
struct Sink {
    batch: Vec<Packet>,
    out: mpsc::Sender<Vec<Packet>>,
}

impl FrameSink for Sink {
    fn deliver(&mut self, frame: &EgressFrame<'_>, _: &mut usize) -> Result<(), Reason> {
        if self.batch.len() == 2 {
            return Err(Reason::NoBuffer);
        }
        self.batch.push((frame.header.to_vec(), bytes(frame)));
        Ok(())
    }

    fn flush(&mut self, _: &mut Context<'_>) {
        let _ = self.out.send(std::mem::take(&mut self.batch));
    }
}

/// Forwards the frames that the test sends it.
struct Source {
    hub: Rc<RefCell<Hub>>,
    port_incarnation: PortIncarnation,
    next: Option<Packet>,
    from: mpsc::Receiver<Packet>,
}

impl Poller for Source {
    fn poll(&mut self, context: &mut Context<'_>) -> PollOutcome {
        let Some((header, frame)) = self.next.take().or_else(|| self.from.try_recv().ok()) else {
            return PollOutcome::Idle;
        };
        let (prefix, rest) = frame.split_at(PREFIX_BYTES.min(frame.len()));
        let body = Buffers::alloc(rest.len()).unwrap();
        body.write(rest);
        let (header, may) = (&header.try_into().unwrap(), &self.port_incarnation.tx_offloads());
        let ingress_frame = IngressFrame { header, prefix, body: &body, may };
        let now_ns = context.now_ns();
        let mut hub = self.hub.borrow_mut();
        hub.forward(self.port_incarnation.port(), &ingress_frame, now_ns);
        hub.flush(context);
        PollOutcome::Busy
    }

    fn on_runnable(&mut self) {}

    fn arm(&mut self) -> bool {
        self.next = self.from.try_recv().ok();
        self.next.is_some()
    }
}

/// The test's side of the port.
struct Host {
    host_queue: HostQueue,
    to: mpsc::Sender<Packet>,
    kick: Arc<OwnedFd>,
    got: mpsc::Receiver<Vec<Packet>>,
}

impl Host {
    fn new(lan: &Lan, reactor: usize) -> Self {
        let port_incarnation = plug(lan);
        let kick = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap());
        let ((to, from), (out, got)) = (mpsc::channel(), mpsc::channel());
        let make = move |_: &mut Context<'_>, hub| {
            let inlet = Source { hub, port_incarnation, next: None, from };
            let frame_sink: Rc<RefCell<dyn FrameSink>> =
                Rc::new(RefCell::new(Sink { batch: Vec::new(), out }));
            Ok(HostQueueParts { inlet, frame_sink })
        };
        let handle = lan.reactors[reactor].handle();
        let host_queue =
            HostQueue::new(&lan.fabric, handle, port_incarnation, 0, Some(kick.clone()), make)
                .unwrap();
        Self { host_queue, to, kick, got }
    }

    fn send(&self, header: [u8; HEADER_BYTES], frame: &[u8]) {
        self.to.send((header.to_vec(), frame.to_vec())).unwrap();
        rustix::io::write(&self.kick, &1u64.to_ne_bytes()).unwrap();
    }
}

/// Adds the port to the network.
fn plug(lan: &Lan) -> PortIncarnation {
    let port = PortId(HOST.into());
    lan.fabric.set_port(port, &PortPolicy::open(LAN)).unwrap();
    PortIncarnation::host(port, Offloads::KERNEL)
}

/// Reports the source port of each accepted frame, and accepts none until it is opened.
struct Gate {
    closed: mpsc::Receiver<()>,
    out: mpsc::Sender<u16>,
}

impl FrameSink for Gate {
    fn deliver(&mut self, frame: &EgressFrame<'_>, _: &mut usize) -> Result<(), Reason> {
        // The wait ends when the other side is dropped.
        let _ = self.closed.recv();
        let port = *bytes(frame)[TCP_AT..].first_chunk().unwrap();
        let _ = self.out.send(u16::from_be_bytes(port));
        Ok(())
    }

    fn flush(&mut self, _: &mut Context<'_>) {}
}

/// Creates a queue of the host on the reactor of its number. Returns the accepted frames, and the
/// sender that keeps the gate closed.
fn gate(
    lan: &Lan,
    port_incarnation: PortIncarnation,
    queue: u16,
) -> (HostQueue, mpsc::Receiver<u16>, mpsc::Sender<()>) {
    let ((out, got), (gate, closed)) = (mpsc::channel(), mpsc::channel());
    let make = move |_: &mut Context<'_>, hub| {
        let inlet = Source { hub, port_incarnation, next: None, from: mpsc::channel().1 };
        let frame_sink: Rc<RefCell<dyn FrameSink>> = Rc::new(RefCell::new(Gate { closed, out }));
        Ok(HostQueueParts { inlet, frame_sink })
    };
    let handle = lan.reactors[usize::from(queue)].handle();
    (HostQueue::new(&lan.fabric, handle, port_incarnation, queue, None, make).unwrap(), got, gate)
}

/// Two flows collide on a queue whose reactor is blocked, so that one of them is to be moved. The
/// flow pauses, and continues while its former frames are still in the link.
#[test]
fn a_flow_is_not_moved_while_its_frames_are_on_their_way_to_another_reactor() {
    let frame = |port: u16| {
        let mut frame = tcp(HOST, 1, &data(60_000));
        frame[TCP_AT..TCP_AT + 2].copy_from_slice(&port.to_be_bytes());
        frame
    };
    let lan = Lan::new(2);
    let port_incarnation = plug(&lan);
    let (_here, near, open) = gate(&lan, port_incarnation, 0);
    drop(open);
    let (_there, far, open) = gate(&lan, port_incarnation, 1);
    let mut a = Guest::new(&lan, 1, 0, all());
    let mut flows = (33_000..).filter(|port| bucket(&frame(*port)) % 2 == 1);
    let first = flows.next().unwrap();
    let second = flows.find(|port| bucket(&frame(*port)) != bucket(&frame(first))).unwrap();
    let mut sent = 0;
    let mut send = |pairs: usize| {
        for port in [first, second].repeat(pairs) {
            a.send(cut(1448), &frame(port));
            sent += 1;
        }
        sent
    };
    let host = PortId(HOST.into());
    let until = Instant::now() + SOON;
    // Frames that find no room count for the balancing too.
    while lan.fabric.moves(host) == 0 {
        assert!(Instant::now() < until, "neither is to be moved");
        send(1);
    }
    let pause = Duration::from_nanos(2 * QUIET_NS);
    assert!(near.recv_timeout(pause).is_err(), "what was sent before has not arrived");
    let sent = send(1);
    assert_eq!(near.try_iter().count(), 0, "what was sent before has not arrived");
    drop(open);
    let lost = lan.counts(HOST.into()).missed(Reason::ReactorBusy);
    (lost..sent).for_each(|_| assert!(far.recv_timeout(SOON).is_ok()));
    // A move that could not be made for long was cancelled; another one is then made.
    while near.recv_timeout(pause).is_err() {
        assert!(Instant::now() < until, "neither was moved");
        send(9);
    }
}

#[test]
fn frames_come_from_and_go_to_what_is_no_ring() {
    for reactor in [0, 1] {
        let lan = Lan::new(2);
        let host = Host::new(&lan, reactor);
        let mut a = Guest::new(&lan, 1, 0, all());
        a.rx.post(8, 2048);
        let large = tcp(HOST, 1, &data(9000));
        a.send(cut(1448), &large);
        let batch = host.got.recv_timeout(SOON).unwrap();
        let [(header, frame)] = &batch[..] else { panic!("{} frames", batch.len()) };
        assert_eq!((&header[..10], frame), (&cut(1448)[..10], &large));
        // The kernel's valid-checksum mark is passed on.
        let valid = [2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        for bytes in [60, 128, 129, 1500] {
            host.send(valid, &plain(1, HOST, bytes));
            let got = a.rx.receive();
            assert_eq!((got.header[0], got.frame), (2, plain(1, HOST, bytes)));
        }
        host.host_queue.stop().unwrap();
        a.send(NOTHING, &plain(HOST, 1, 60));
        assert_eq!(lan.counts(HOST.into()).missed(Reason::ReceiverClosed), 1);
    }
}

#[test]
fn what_has_no_room_for_a_batch_loses_the_rest_of_it() {
    let lan = Lan::new(1);
    let host = Host::new(&lan, 0);
    let mut a = Guest::new(&lan, 1, 0, all());
    for bytes in [60, 61, 62, 63] {
        a.tx.put(&[&NOTHING[..], &plain(HOST, 1, bytes)].concat(), &[]);
    }
    a.tx.publish();
    a.tx.left(4);
    let frames: Vec<_> =
        host.got.recv_timeout(SOON).unwrap().into_iter().map(|one| one.1).collect();
    assert_eq!(frames, [plain(HOST, 1, 60), plain(HOST, 1, 61)]);
    assert_eq!(lan.counts(HOST.into()).missed(Reason::NoBuffer), 2);
}
