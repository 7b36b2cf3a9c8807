//! Ports whose numbers are used again.

use net::Mac;
use net::port::{Vlan, VlanId};

use super::*;

const PORT: PortId = PortId(7);
const NOW: u64 = 1_000_000_000;

fn plug(hub: &mut Hub, network: u16, vlan: Vlan, term: u32) {
    let policy = Policy { vlan, ..Policy::open(NetworkId(network)) };
    let common = Common { counts: Arc::default(), shares: Arc::new(Shares::new(1)) };
    hub.set_port(PORT, policy, common, term).unwrap();
}

fn hub() -> Hub {
    let mut hub = Hub::new(0);
    (0..2).for_each(|id| hub.set_network(NetworkId(id), NetworkPolicy::default()).unwrap());
    hub
}

/// Another reactor has seen a station by a policy of this number; whether that was new here.
fn learns(hub: &mut Hub, term: u32, vlan: u16) -> bool {
    let mac = Mac([2, 0, 0, 0, 0, 1]);
    hub.learn(News { port: PORT, term, vlan, mac }, NOW);
    // Who asks again is told something new only where nothing was learnt before.
    !hub.switch.learn(PORT, vlan, mac, NOW).is_news()
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
    // The other reactor may know the next policy before we do.
    assert!(!learns(&mut hub, 3, 8));
    assert!(learns(&mut hub, 2, 6));
}

#[test]
fn news_of_no_port_is_forgotten() {
    let mut hub = hub();
    hub.learn(News { port: PORT, term: 0, vlan: 0, mac: Mac([2, 0, 0, 0, 0, 1]) }, NOW);
    hub.learn(News { port: PortId(u16::MAX), term: 0, vlan: 0, mac: Mac::default() }, NOW);
    assert!(hub.switch.port(PORT).is_none());
}
