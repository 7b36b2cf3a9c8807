//! Tests of drivers that set queues and filters over a control queue.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::guest::*;
use net::Mac;
use net::control::{COMMAND_BYTES_MAX, ControlFeatures, ERR, OK};
use net::features::OfferedFeatures;
use net::port::{PortId, PortPolicy};
use nic::{ControlQueueState, PortIncarnation};
use virtq::driver::BUFFERS;

const SOON: Duration = Duration::from_secs(20);
const PAIRS: u16 = 4;
/// Enough flows for every queue to receive some.
const FLOWS: u16 = 24;
/// Port of the driver with the control queue, and its station.
const PORT: u8 = 2;

/// Guest with several possible receive queues and a control queue.
struct Asking {
    port_incarnation: PortIncarnation,
    control_features: ControlFeatures,
    rx: Vec<Ring>,
    tx: Ring,
    control: Ring,
    control_queue_state: Option<Arc<ControlQueueState>>,
}

impl Asking {
    /// Creates the guest with its pairs on the reactors in turn. All rings but the control queue
    /// run.
    fn new(lan: &Lan) -> Self {
        let offered_features = OfferedFeatures {
            offloads: true,
            mergeable: true,
            pairs: PAIRS,
            control: true,
            mtu: true,
        };
        let features = offered_features.accept(offered_features.bits()).unwrap();
        let port = PortId(PORT.into());
        lan.fabric.set_port(port, &PortPolicy::open(LAN)).unwrap();
        let port_incarnation = PortIncarnation::driver(port, features);
        let mut rx: Vec<_> = (0..PAIRS).map(|pair| Ring::new(2 * pair, true)).collect();
        for (pair, ring) in rx.iter_mut().enumerate() {
            ring.start(lan, pair % lan.reactors.len(), port_incarnation);
            ring.post(RING, 2048);
        }
        let [mut tx, control] = [1, 2 * PAIRS].map(|index| Ring::new(index, true));
        tx.start(lan, 0, port_incarnation);
        let control_features = ControlFeatures { features, pairs: PAIRS };
        Self { port_incarnation, control_features, rx, tx, control, control_queue_state: None }
    }

    fn start_control(&mut self, lan: &Lan, next: u16) {
        let port = self.port_incarnation.port();
        let open = || {
            ControlQueueState::open(&lan.fabric, port, self.control_features, Mac(station(PORT)))
                .unwrap()
        };
        let control_queue_state = self.control_queue_state.get_or_insert_with(open);
        self.control.start_control(lan, 0, control_queue_state, next);
    }

    fn ask(&mut self, command: &[u8]) {
        assert_eq!(self.control.ask(command, 1), [OK], "{command:?}");
    }
}

/// Sends a frame of each of many flows; returns the number received by each queue.
fn spread(lan: &Lan, sender: &mut Guest, asking: &mut Asking) -> Vec<usize> {
    let before = lan.counts(PORT.into()).got_frames;
    for flow in 0..FLOWS {
        sender.send(NOTHING, &udp(PORT, 1, [1000 + flow, 9], b"which queue"));
    }
    let until = Instant::now() + SOON;
    while lan.counts(PORT.into()).got_frames < before + u64::from(FLOWS) {
        assert!(Instant::now() < until, "{:?}", lan.counts(PORT.into()));
        lan.settle();
    }
    // Publishes the frames that were counted last, too.
    lan.settle();
    let mut received = |ring: &mut Ring| std::iter::from_fn(|| ring.got()).count();
    asking.rx.iter_mut().map(&mut received).collect()
}

/// Returns the number of leading queues that received frames; none after them did.
fn in_use(received: &[usize]) -> usize {
    assert_eq!(received.iter().sum::<usize>(), usize::from(FLOWS), "{received:?}");
    let used = received.iter().take_while(|count| **count > 0).count();
    assert!(received.iter().skip(used).all(|count| *count == 0), "{received:?}");
    used
}

#[test]
fn frames_go_to_the_queues_that_were_asked_for() {
    for reactors in [1, 2] {
        let lan = Lan::new(reactors);
        let mut sender = Guest::new(&lan, 1, 0, all());
        let mut asking = Asking::new(&lan);
        let mut used = |asking: &mut Asking| in_use(&spread(&lan, &mut sender, asking));
        assert_eq!(used(&mut asking), 4, "without a control queue, all that runs is in use");
        asking.start_control(&lan, 0);
        assert_eq!(used(&mut asking), 1, "after a reset");
        for pairs in [4, 2, 3, 1] {
            asking.ask(&[4, 0, pairs, 0]);
            assert_eq!(used(&mut asking), usize::from(pairs));
        }
        asking.control.stop();
        asking.control_queue_state.take().unwrap().close().unwrap();
        assert_eq!(used(&mut asking), 4, "nobody asks any more");
    }
}

#[test]
fn queues_that_do_not_run_get_nothing() {
    let lan = Lan::new(2);
    let mut sender = Guest::new(&lan, 1, 1, all());
    let mut asking = Asking::new(&lan);
    asking.start_control(&lan, 0);
    asking.ask(&[4, 0, 4, 0]);
    assert_eq!(asking.rx[2].stop(), 0);
    assert_eq!(in_use(&spread(&lan, &mut sender, &mut asking)), 2);
    let port_incarnation = asking.port_incarnation;
    asking.rx[2].start(&lan, 0, port_incarnation);
    assert_eq!(in_use(&spread(&lan, &mut sender, &mut asking)), 4);
}

#[test]
fn filters_hold_for_what_nobody_has_been_seen_at() {
    let lan = Lan::new(2);
    let mut sender = Guest::new(&lan, 1, 1, all());
    let mut asking = Asking::new(&lan);
    asking.start_control(&lan, 0);
    sender.rx.post(1, 2048);
    let group = 0x33;
    let to = |dst: u8| {
        let mut frame = plain(dst, 1, 60);
        if dst == group {
            frame[..6].copy_from_slice(&[0x33, 0x33, 0, 0, 0, 1]);
        }
        frame
    };
    let gets = |sender: &mut Guest, asking: &mut Asking| {
        let all = [PORT, 7, group].map(|dst| {
            sender.send(NOTHING, &to(dst));
            // A broadcast passes any filter, and follows the filtered frames.
            sender.send(NOTHING, &to(EVERYBODY));
            let first = asking.rx[0].receive().frame;
            first != to(EVERYBODY) && asking.rx[0].receive().frame == to(EVERYBODY)
        });
        all.map(u8::from)
    };
    assert_eq!(gets(&mut sender, &mut asking), [1, 1, 1], "after a reset");
    asking.ask(&[0, 0, 0]);
    assert_eq!(gets(&mut sender, &mut asking), [1, 0, 0]);
    asking.ask(&[0, 1, 1]);
    assert_eq!(gets(&mut sender, &mut asking), [1, 0, 1]);
    asking.ask(&[0, 1, 0]);
    let table = [&[1, 0, 1, 0, 0, 0][..], &station(7), &[1, 0, 0, 0, 0x33, 0x33, 0, 0, 0, 1]];
    asking.ask(&table.concat());
    assert_eq!(gets(&mut sender, &mut asking), [1, 1, 1]);
    asking.ask(&[1, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    asking.ask(&[&[1, 1][..], &station(7)].concat());
    assert_eq!(asking.control_queue_state.as_ref().unwrap().address(), Mac(station(7)));
    assert_eq!(gets(&mut sender, &mut asking), [0, 1, 0]);
    // Once the guest has sent from an address, frames go there as the switch has learnt.
    asking.tx.put(&[&NOTHING[..], &plain(1, PORT, 60)].concat(), &[]);
    asking.tx.publish();
    asking.tx.left(1);
    sender.rx.receive();
    assert_eq!(gets(&mut sender, &mut asking), [1, 1, 0]);
}

#[test]
fn what_is_no_command_is_refused_and_harms_nobody() {
    let lan = Lan::new(2);
    let mut asking = Asking::new(&lan);
    asking.start_control(&lan, 0);
    let huge = [&[1, 0][..], &u32::MAX.to_le_bytes(), &[2; 600]].concat();
    let long = vec![0; COMMAND_BYTES_MAX + 1];
    let wrong: [&[u8]; 12] = [
        &[],
        &[4],
        &[4, 0],
        &[4, 0, 0, 0],
        &[4, 0, 5, 0],
        &[4, 0, 255, 255],
        &[9, 9, 9],
        &[255; 64],
        &[0, 5, 1],
        &[2, 0, 1, 0],
        &huge,
        &long,
    ];
    for command in wrong {
        assert_eq!(asking.control.ask(command, 1), [ERR], "{} bytes", command.len());
    }
    // Without room for a status nothing changes, and the chain is returned.
    assert!(asking.control.ask(&[4, 0, 4, 0], 0).is_empty());
    assert_eq!(asking.control.ask(&[0, 0, 0], 9), [OK], "one byte of the room is written");
    let mut sender = Guest::new(&lan, 1, 1, all());
    assert_eq!(in_use(&spread(&lan, &mut sender, &mut asking)), 1);
    // Several commands at once are answered in order.
    let pairs = [4, 9, 2, 0, 3];
    pairs.iter().for_each(|pairs| asking.control.offer_command(&[4, 0, *pairs, 0], 1));
    asking.control.publish();
    pairs.iter().for_each(|_| assert_eq!(asking.control.used().1, 1));
    assert_eq!(in_use(&spread(&lan, &mut sender, &mut asking)), 3);
    asking.control.driver.jump(1000);
    asking.control.kick();
    asking.control.wait_for_error();
    assert_eq!(in_use(&spread(&lan, &mut sender, &mut asking)), 3);
}

#[test]
fn a_command_outside_memory_is_refused_and_the_next_one_obeyed() {
    let lan = Lan::new(1);
    let mut asking = Asking::new(&lan);
    asking.start_control(&lan, 0);
    let (outside, answer) = (1 << 40, BUFFERS + 64);
    let control = &mut asking.control;
    control.driver.write(answer, &[0xaa]);
    control.offer(&[(outside, 2, false), (answer, 1, true)]);
    control.publish();
    assert_eq!((control.used().1, control.driver.read(answer, 1)), (1, vec![ERR]));
    // Without a place for the answer.
    control.offer(&[(BUFFERS, 2, false), (outside, 1, true)]);
    control.publish();
    assert_eq!(control.used().1, 0);
    assert_eq!(control.ask(&[0, 0, 0], 1), [OK]);
    assert_eq!(lan.fabric.broken_ring_count(PortId(PORT.into())), 0);
}

#[test]
fn what_was_asked_for_outlives_the_rings() {
    let lan = Lan::new(2);
    let mut sender = Guest::new(&lan, 1, 1, all());
    let mut asking = Asking::new(&lan);
    asking.start_control(&lan, 0);
    asking.ask(&[4, 0, 3, 0]);
    let queue = asking.control.queue.as_ref().unwrap();
    queue.set_memory(asking.control.driver.table.clone()).unwrap();
    asking.ask(&[0, 1, 1]);
    let next = asking.control.stop();
    assert_eq!(next, 2);
    // Submitted while the ring is not served: it is found when the ring is served again.
    asking.control.offer_command(&[4, 0, 2, 0], 1);
    asking.control.publish();
    assert_eq!(in_use(&spread(&lan, &mut sender, &mut asking)), 3);
    asking.start_control(&lan, next);
    assert_eq!(asking.control.used().1, 1);
    assert_eq!(in_use(&spread(&lan, &mut sender, &mut asking)), 2);
}

#[test]
fn a_reactor_that_has_ended_holds_up_no_answer() {
    let mut lan = Lan::new(2);
    let mut asking = Asking::new(&lan);
    asking.start_control(&lan, 0);
    drop(lan.reactors.pop());
    asking.ask(&[4, 0, 2, 0]);
    asking.ask(&[0, 0, 1]);
}
