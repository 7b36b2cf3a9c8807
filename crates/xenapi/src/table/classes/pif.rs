//! Network devices of hosts.

use super::prelude::*;

fields! { "PIF", PoolOperator;
    /// Its UUID.
    uuid: ro(Str),
    /// Its name in the host's kernel.
    device: rc(Str),
    /// Its network.
    network: rc(Ref("network")),
    /// Its host.
    host: rc(Ref("host")),
    /// Its Ethernet address.
    MAC: rc(Str),
    /// Largest packet, in bytes.
    MTU: rc(Int),
    /// Its virtual LAN; -1 for none.
    VLAN: rc(Int),
    /// What is measured of it.
    metrics: ro(Ref("PIF_metrics")),
    /// It is a card, not made of others.
    physical: ro(Bool).opt(),
    /// It is up.
    currently_attached: ro(Bool).or(Yes),
    /// How the host gets its IPv4 address.
    ip_configuration_mode: ro(Enum(&enums::IP_CONFIGURATION_MODE)).opt(),
    /// Its IPv4 address.
    IP: ro(Str).opt(),
    /// The mask of its IPv4 network.
    netmask: ro(Str).opt(),
    /// The IPv4 gateway.
    gateway: ro(Str).opt(),
    /// Name servers, with commas between them.
    DNS: ro(Str).opt(),
    /// The bond of which it is a part.
    bond_slave_of: ro(Ref("Bond")).opt(),
    /// The bond that it is.
    bond_master_of: ro(Set(&Ref("Bond"))).inverse("Bond", "master"),
    /// The virtual LAN that it is.
    VLAN_master_of: ro(Ref("VLAN")).opt(),
    /// Virtual LANs that it carries.
    VLAN_slave_of: ro(Set(&Ref("VLAN"))).inverse("VLAN", "tagged_PIF"),
    /// The host is managed by it.
    management: ro(Bool).opt(),
    /// Whatever clients keep with it.
    other_config: rw(PAIRS).opt(),
    /// It must stay up.
    disallow_unplug: ro(Bool).opt(),
    /// Tunnels whose inside it is.
    tunnel_access_PIF_of: ro(Set(&Ref("tunnel"))),
    /// Tunnels that it carries.
    tunnel_transport_PIF_of: ro(Set(&Ref("tunnel"))),
    /// How the host gets its IPv6 address.
    ipv6_configuration_mode: ro(Enum(&enums::IPV6_CONFIGURATION_MODE)).opt(),
    /// Its IPv6 addresses.
    IPv6: ro(STRS).opt(),
    /// The IPv6 gateway.
    ipv6_gateway: ro(Str).opt(),
    /// Which kind of address is the first.
    primary_address_type: ro(Enum(&enums::PRIMARY_ADDRESS_TYPE)).opt(),
    /// The toolstack brings it up and down.
    managed: rc(Bool).or(Yes),
    /// Settings of the card.
    properties: ro(PAIRS).opt(),
    /// What the card can do.
    capabilities: ro(STRS).opt(),
    /// Whether its switch watches who wants which multicast.
    igmp_snooping_status: ro(Enum(&enums::PIF_IGMP_STATUS)).or(Text("unknown")),
    /// Networks made of its virtual functions.
    sriov_physical_PIF_of: ro(Set(&Ref("network_sriov"))),
    /// Networks of virtual functions that it stands for.
    sriov_logical_PIF_of: ro(Set(&Ref("network_sriov"))),
    /// Its PCI device.
    PCI: ro(Ref("PCI")).opt(),
}

messages! {
    /// Looks for cards that have no record.
    PoolOperator Long scan(host: Ref("host"));
    /// Makes a record of a network device: by its name, by its Ethernet address, or by both.
    PoolOperator Long introduce(host: Ref("host"), MAC: Str, device: Str; managed: Bool => Yes) -> Ref("PIF");
    /// Removes its record. Nothing happens to the device.
    PoolOperator Short forget(self: Ref("PIF"));
    /// Brings it up.
    PoolOperator Long plug(self: Ref("PIF"));
    /// Takes it down.
    PoolOperator Long unplug(self: Ref("PIF"));
    /// Sets whether it must stay up.
    PoolOperator Short set_disallow_unplug(self: Ref("PIF"), value: Bool);
}

/// The class.
pub static CLASS: Class =
    Class::new(("PIF", "A network device of a host"), Role::PoolOperator, FIELDS, MESSAGES);
