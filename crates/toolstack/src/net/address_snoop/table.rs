//! Table of address claims on one network.

use std::collections::HashMap;
use std::net::IpAddr;

use model::id::VifId;

use super::dhcp::DhcpRequest;
use super::frame::{AddressClaim, Mac};

/// Most addresses of an interface for each address family: as many as an agent's report may
/// contain.
pub(super) const ADDRESSES_MAX: usize = 16;

/// Interfaces by their MAC addresses.
#[derive(Debug, Default)]
pub(super) struct Table(HashMap<Mac, InterfaceClaims>);

#[derive(Debug)]
struct InterfaceClaims {
    vif: VifId,
    /// Claimed addresses, the latest first.
    addresses: Vec<IpAddr>,
    /// Address that the interface has requested by DHCP but not used yet.
    asked: Option<IpAddr>,
    /// Assigned addresses: the only ones that the interface can have.
    own: Option<Vec<IpAddr>>,
}

impl Table {
    /// Adds an interface without claims. If two interfaces have the same MAC address, claims count
    /// for the later one.
    pub(super) fn add(&mut self, vif: VifId, mac: Mac, own: Option<Vec<IpAddr>>) {
        self.0.insert(mac, InterfaceClaims { vif, addresses: Vec::new(), asked: None, own });
    }

    /// Changes the assigned addresses of an interface. Returns the interfaces that lose addresses
    /// by this.
    pub(super) fn own(&mut self, vif: VifId, own: &Option<Vec<IpAddr>>) -> Vec<VifId> {
        let Some(interface_claims) =
            self.0.values_mut().find(|interface_claims| interface_claims.vif == vif)
        else {
            return Vec::new();
        };
        interface_claims.own = own.clone();
        let lost = |(mac, interface_claims): (&Mac, &InterfaceClaims)| {
            let lost = interface_claims.addresses.iter().filter(|one| !self.may_have(*mac, one));
            let lost: Vec<IpAddr> = lost.copied().collect();
            (!lost.is_empty()).then_some((*mac, lost))
        };
        let lost: Vec<_> = self.0.iter().filter_map(lost).collect();
        let mut changed = Vec::new();
        for (mac, lost) in lost {
            if let Some(interface_claims) = self.0.get_mut(&mac) {
                interface_claims.addresses.retain(|one| !lost.contains(one));
                changed.push(interface_claims.vif);
            }
        }
        changed
    }

    /// Returns whether the switch lets a device send this address.
    fn may_have(&self, mac: Mac, address: &IpAddr) -> bool {
        let owns = |interface_claims: &InterfaceClaims| {
            interface_claims.own.as_ref().map(|own| own.contains(address))
        };
        let owns_it = self.0.get(&mac).and_then(owns);
        owns_it.unwrap_or_else(|| !self.0.values().any(|other| owns(other) == Some(true)))
    }

    pub(super) fn remove(&mut self, vif: VifId) {
        self.0.retain(|_, interface_claims| interface_claims.vif != vif);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn of(&self, vif: VifId) -> Option<Vec<IpAddr>> {
        self.0
            .values()
            .find(|interface_claims| interface_claims.vif == vif)
            .map(|interface_claims| interface_claims.addresses.clone())
    }

    /// Records a claim. Returns the interface if its addresses changed.
    ///
    /// A known address keeps its position unless it is announced: a guest with two addresses uses
    /// both.
    pub(super) fn claimed(&mut self, claim: &AddressClaim) -> Option<VifId> {
        let AddressClaim { mac, address, announced } = *claim;
        if !self.may_have(mac, &address) {
            return None;
        }
        let InterfaceClaims { vif, addresses, asked, .. } = self.0.get_mut(&mac)?;
        // The first use of a requested address is a change: the client may not have had it when it
        // asked.
        let begins = asked.take_if(|asked| *asked == address).is_some();
        let is_same_kind = |one: &IpAddr| one.is_ipv4() == address.is_ipv4();
        let is_first = addresses.iter().find(|one| is_same_kind(one)) == Some(&address);
        if is_first || !announced && addresses.contains(&address) {
            return begins.then_some(*vif);
        }
        addresses.retain(|one| *one != address);
        addresses.insert(0, address);
        let mut of_kind = 0;
        addresses.retain(|one| {
            of_kind += usize::from(is_same_kind(one));
            !is_same_kind(one) || of_kind <= ADDRESSES_MAX
        });
        Some(*vif)
    }
}

impl Table {
    /// Records a DHCP client message. Returns the interface if its addresses may have changed.
    ///
    /// The client has the requested address until it looks for another one without having used it.
    /// Every request counts as a change: the client may get the address only after the last
    /// request. A report of an earlier one may have come too soon.
    pub(super) fn asked(&mut self, dhcp_request: &DhcpRequest) -> Option<VifId> {
        match dhcp_request {
            DhcpRequest::Takes(claim) => {
                if !self.may_have(claim.mac, &claim.address) {
                    return None;
                }
                let interface_claims = self.0.get_mut(&claim.mac)?;
                let is_used = interface_claims.uses(&claim.address);
                interface_claims.refused();
                self.claimed(claim);
                let interface_claims = self.0.get_mut(&claim.mac)?;
                interface_claims.asked = (!is_used).then_some(claim.address);
                Some(interface_claims.vif)
            }
            DhcpRequest::NoAddress(mac) => {
                let interface_claims = self.0.get_mut(mac)?;
                interface_claims.refused().then_some(interface_claims.vif)
            }
        }
    }
}

impl InterfaceClaims {
    /// Drops the requested but unused address. Returns whether there was one.
    fn refused(&mut self) -> bool {
        let Some(asked) = self.asked.take() else { return false };
        self.addresses.retain(|one| *one != asked);
        true
    }

    /// Returns whether the interface has used the address, and not only requested it.
    fn uses(&self, address: &IpAddr) -> bool {
        self.asked.as_ref() != Some(address) && self.addresses.contains(address)
    }
}

#[cfg(test)]
mod tests {
    use model::id::Uuid;

    use super::*;

    fn vif(n: u8) -> VifId {
        VifId(Uuid::from_random([n; 16]))
    }

    fn mac(n: u8) -> Mac {
        format!("00:16:3e:00:00:{n:02x}").parse().unwrap()
    }

    fn claim(n: u8, address: &str, announced: bool) -> AddressClaim {
        AddressClaim { mac: mac(n), address: address.parse().unwrap(), announced }
    }

    fn texts(table: &Table, vif: VifId) -> Vec<String> {
        table.of(vif).unwrap().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_claim_counts_for_whose_address_sends_it() {
        let mut table = Table::default();
        table.add(vif(1), mac(1), None);
        table.add(vif(2), mac(2), None);
        assert_eq!(table.claimed(&claim(1, "10.0.0.1", false)), Some(vif(1)));
        assert_eq!(table.claimed(&claim(1, "10.0.0.1", true)), None, "it is known");
        assert_eq!(table.claimed(&claim(3, "10.0.0.3", true)), None, "it is nobody's of ours");
        assert_eq!(texts(&table, vif(1)), ["10.0.0.1"]);
        assert_eq!(texts(&table, vif(2)), [""; 0]);
        // An added interface has no claims.
        table.add(vif(1), mac(1), None);
        assert_eq!(texts(&table, vif(1)), [""; 0]);
        table.remove(vif(1));
        table.remove(vif(2));
        assert!(table.is_empty() && table.of(vif(1)).is_none());
    }

    #[test]
    fn what_was_announced_last_comes_first() {
        let mut table = Table::default();
        table.add(vif(1), mac(1), None);
        for (address, announced, new) in [
            ("10.0.0.1", true, true),
            ("fe80::1", true, true),
            ("10.0.0.2", false, true),
            ("10.0.0.1", false, false),
            ("fe80::1", true, false),
            ("10.0.0.1", true, true),
        ] {
            let changed = table.claimed(&claim(1, address, announced));
            assert_eq!(changed.is_some(), new, "{address}");
        }
        assert_eq!(texts(&table, vif(1)), ["10.0.0.1", "10.0.0.2", "fe80::1"]);
    }

    #[test]
    fn what_a_server_refused_is_not_had() {
        let mut table = Table::default();
        table.add(vif(1), mac(1), None);
        let takes = |address: &str| DhcpRequest::Takes(claim(1, address, true));
        assert_eq!(table.asked(&takes("10.0.0.1")), Some(vif(1)));
        assert_eq!(table.asked(&takes("10.0.0.1")), Some(vif(1)), "it asks again");
        assert_eq!(table.asked(&DhcpRequest::NoAddress(mac(1))), Some(vif(1)));
        assert_eq!(texts(&table, vif(1)), [""; 0]);
        assert_eq!(table.asked(&DhcpRequest::NoAddress(mac(1))), None);
        // The client requests both, and has the last.
        for address in ["10.0.0.1", "10.0.0.2"] {
            assert_eq!(table.asked(&takes(address)), Some(vif(1)));
            assert_eq!(texts(&table, vif(1)), [address]);
        }
        // The client uses that address.
        assert_eq!(table.claimed(&claim(1, "10.0.0.2", false)), Some(vif(1)));
        assert_eq!(table.claimed(&claim(1, "10.0.0.2", false)), None);
        assert_eq!(table.asked(&takes("10.0.0.2")), Some(vif(1)), "it asks for more time");
        assert_eq!(table.asked(&DhcpRequest::NoAddress(mac(1))), None);
        assert_eq!(texts(&table, vif(1)), ["10.0.0.2"]);
        // An address that the switch does not permit, and a MAC address of no interface.
        table.add(vif(2), mac(2), Some(vec!["10.0.0.3".parse().unwrap()]));
        assert_eq!(table.asked(&takes("10.0.0.3")), None);
        assert_eq!(table.asked(&DhcpRequest::NoAddress(mac(3))), None);
        assert_eq!(texts(&table, vif(1)), ["10.0.0.2"]);
    }

    #[test]
    fn there_are_never_more_than_a_few_of_each_kind() {
        let mut table = Table::default();
        table.add(vif(1), mac(1), None);
        for n in 0..100 {
            table.claimed(&claim(1, &format!("10.0.0.{n}"), false));
            table.claimed(&claim(1, &format!("fe80::{n}"), true));
        }
        let all = texts(&table, vif(1));
        assert_eq!(all.len(), 2 * ADDRESSES_MAX);
        assert_eq!(all[..2], ["fe80::99", "10.0.0.99"]);
        assert!(all.contains(&"10.0.0.84".to_owned()) && !all.contains(&"10.0.0.83".to_owned()));
    }

    #[test]
    fn what_is_somebodys_own_is_nobody_elses() {
        let mut table = Table::default();
        let own = |address: &str| Some(vec![address.parse().unwrap()]);
        table.add(vif(1), mac(1), own("10.0.0.1"));
        table.add(vif(2), mac(2), None);
        // The first interface claims as the second, and vice versa.
        for (who, address, new) in [
            (2, "10.0.0.1", false),
            (1, "10.0.0.2", false),
            (1, "fe80::1", false),
            (1, "10.0.0.1", true),
            (2, "10.0.0.2", true),
            (2, "10.0.0.3", true),
        ] {
            let changed = table.claimed(&claim(who, address, true));
            assert_eq!(changed.is_some(), new, "{who} {address}");
        }
        // Addresses that are now assigned to another interface are removed.
        assert_eq!(table.own(vif(1), &own("10.0.0.2")).len(), 2);
        assert_eq!(
            (texts(&table, vif(1)).len(), texts(&table, vif(2))),
            (0, vec!["10.0.0.3".into()])
        );
        assert_eq!(table.own(vif(1), &None), []);
        assert!(table.claimed(&claim(1, "10.0.0.9", false)).is_some());
        // An interface with an empty list has no addresses.
        assert_eq!(table.own(vif(1), &Some(Vec::new())), [vif(1)]);
        assert!(table.claimed(&claim(1, "10.0.0.9", true)).is_none());
        assert_eq!(table.own(vif(7), &own("10.0.0.3")), []);
    }
}
