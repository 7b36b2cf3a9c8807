//! Tests of ports that change, or whose numbers are reused.

use net::Mac;
use net::port::{Vlan, VlanId};

use super::*;

const PORT: PortId = PortId(7);
const NOW: u64 = 1_000_000_000;

fn plug(hub: &mut Hub, network: u16, vlan: Vlan, term: u32) {
    let policy = PortPolicy { vlan, ..PortPolicy::open(NetworkId(network)) };
    let shared_port_state =
        SharedPortState { counts: Arc::default(), queue_loads: Arc::new(QueueLoads::new(1)) };
    hub.set_port(PORT, policy, shared_port_state, term).unwrap();
}

fn hub() -> Hub {
    let mut hub = Hub::new(0);
    (0..2).for_each(|id| hub.set_network(NetworkId(id), NetworkPolicy::default()).unwrap());
    hub
}

/// Lets the hub learn a station that another reactor saw under this policy version. Returns whether
/// it was learnt.
fn learns(hub: &mut Hub, term: u32, vlan: u16) -> bool {
    let mac = Mac([2, 0, 0, 0, 0, 1]);
    hub.learn(StationUpdate { port: PORT, term, vlan, mac }, NOW);
    // A second learning reports news only if nothing was learnt before.
    !hub.switch.learn(PORT, vlan, mac, NOW).should_broadcast()
}

#[test]
fn news_of_a_port_that_is_gone_is_not_of_the_next_of_its_number() {
    let mut first = hub();
    plug(&mut first, 0, Vlan::Trunk, 1);
    assert!(learns(&mut first, 1, 0));
    first.remove_port(PORT);
    plug(&mut first, 1, Vlan::Trunk, 2);
    assert!(!learns(&mut first, 1, 0), "it was said of another network");
    first.remove_port(PORT);
    plug(&mut first, 1, Vlan::Trunk, 3);
    assert!(learns(&mut first, 3, 0));
}

#[test]
fn news_of_another_policy_of_the_port_is_forgotten() {
    let access = |id: u16| Vlan::Access(VlanId::try_from(id).unwrap());
    let mut hub = hub();
    plug(&mut hub, 0, access(5), 1);
    plug(&mut hub, 0, access(6), 2);
    assert!(!learns(&mut hub, 1, 5));
    // The other reactor may have the next policy earlier.
    assert!(!learns(&mut hub, 3, 8));
    assert!(learns(&mut hub, 2, 6));
}

#[test]
fn news_of_no_port_is_forgotten() {
    let mut hub = hub();
    hub.learn(StationUpdate { port: PORT, term: 0, vlan: 0, mac: Mac([2, 0, 0, 0, 0, 1]) }, NOW);
    hub.learn(StationUpdate { port: PortId(u16::MAX), term: 0, vlan: 0, mac: Mac::default() }, NOW);
    assert!(hub.switch.port(PORT).is_none());
}

/// Creates a hub with two ports in one network.
fn with_two_ports() -> (Hub, [PortId; 2]) {
    let (mut hub, ports) = (hub(), [PORT, PortId(8)]);
    for port in ports {
        let shared_port_state =
            SharedPortState { counts: Arc::default(), queue_loads: Arc::new(QueueLoads::new(1)) };
        hub.set_port(port, PortPolicy::open(NetworkId(0)), shared_port_state, 1).unwrap();
    }
    (hub, ports)
}

/// Frames that a queue received, and the number of further pieces to which it copies each.
#[derive(Default)]
struct Got {
    frames: usize,
    pieces: usize,
}

impl FrameSink for Got {
    fn deliver(&mut self, _: &EgressFrame<'_>, more: &mut usize) -> Result<(), Reason> {
        self.frames += 1;
        *more += self.pieces;
        Ok(())
    }

    fn flush(&mut self, _: &mut Context<'_>) {}
}

fn opens(hub: &mut Hub, port: PortId) -> Rc<RefCell<Got>> {
    let outlet = Rc::new(RefCell::new(Got::default()));
    let takes = Offloads::default();
    hub.open(
        QueueAnnouncement { port, queue: 0, epoch: 1, takes, consumption_counter: None },
        outlet.clone(),
    );
    outlet
}

/// Sends a frame to the broadcast address.
fn sends(hub: &mut Hub, from: PortId) {
    let (header, mut prefix) = ([0; HEADER_BYTES], [2; 60]);
    prefix[..6].fill(0xff);
    let (body, may) = (Buffers::default(), Offloads::default());
    hub.forward(
        from,
        &IngressFrame { header: &header, prefix: &prefix, body: &body, may: &may },
        NOW,
    );
}

/// In one batch, in which consecutive frames go to the same location.
#[test]
fn a_frame_does_not_follow_the_last_one_to_a_place_that_somebody_else_has_now() {
    let (mut hub, [from, to]) = with_two_ports();
    let first = opens(&mut hub, to);
    (0..2).for_each(|_| sends(&mut hub, from));
    assert_eq!(first.borrow().frames, 2);
    hub.close(to, 0);
    // The new queue takes the location that has become free.
    let others = opens(&mut hub, from);
    sends(&mut hub, from);
    assert_eq!((first.borrow().frames, others.borrow().frames), (2, 0));
    let again = opens(&mut hub, to);
    sends(&mut hub, from);
    assert_eq!(again.borrow().frames, 1);
}

/// Other pollers get their turn, on the sender's reactor as well as on the receiver's.
#[test]
fn frames_that_are_copied_to_many_pieces_end_a_turn() {
    let (mut hub, [from, to]) = with_two_ports();
    let receiver = opens(&mut hub, to);
    let until_spent = |hub: &mut Hub, one: &mut dyn FnMut(&mut Hub)| {
        hub.turn_budget = TurnBudget::default();
        let mut count = 0;
        while count < 100 && !hub.is_spent() {
            one(hub);
            count += 1;
        }
        count
    };
    assert_eq!(until_spent(&mut hub, &mut |hub| sends(hub, from)), 100);
    receiver.borrow_mut().pieces = 1511;
    assert_eq!(until_spent(&mut hub, &mut |hub| sends(hub, from)), 2);
    let (body, address) = (Buffers::default(), LinkAddress::new(to, 0, 1));
    let frame =
        EgressFrame { header: [0; HEADER_BYTES], head: &[2; 60], body: &body, since_ns: NOW };
    assert_eq!(until_spent(&mut hub, &mut |hub| hub.arrive(address, &frame)), 2);
}
