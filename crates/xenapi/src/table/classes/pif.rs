//! PIFs: network devices of hosts.

use super::prelude::*;

fields! { "PIF", PoolOperator;
    /// UUID.
    uuid: ro(Str),
    /// Name of the device in the host's kernel.
    device: rc(Str),
    /// Network of the device.
    network: rc(Ref("network")),
    /// Host of the device.
    host: rc(Ref("host")),
    /// Ethernet address.
    MAC: rc(Str),
    /// Maximum transmission unit in bytes.
    MTU: rc(Int),
    /// VLAN tag, or -1 for none.
    VLAN: rc(Int),
    /// Metrics of the device.
    metrics: ro(Ref("PIF_metrics")),
    /// True for a physical network card.
    physical: ro(Bool).opt(),
    /// True if the device is up.
    currently_attached: ro(Bool).or(Yes),
    /// Source of the host's IPv4 address.
    ip_configuration_mode: ro(Enum(&enums::IP_CONFIGURATION_MODE)).opt(),
    /// IPv4 address.
    IP: ro(Str).opt(),
    /// IPv4 netmask.
    netmask: ro(Str).opt(),
    /// IPv4 gateway.
    gateway: ro(Str).opt(),
    /// Name servers, separated by commas.
    DNS: ro(Str).opt(),
    /// Bond of which the device is a part.
    bond_slave_of: ro(Ref("Bond")).opt(),
    /// Bond that this device represents.
    bond_master_of: ro(Set(&Ref("Bond"))).inverse("Bond", "master"),
    /// VLAN that this device represents.
    VLAN_master_of: ro(Ref("VLAN")).opt(),
    /// VLANs that the device carries.
    VLAN_slave_of: ro(Set(&Ref("VLAN"))).inverse("VLAN", "tagged_PIF"),
    /// True for the management interface.
    management: ro(Bool).opt(),
    /// Additional settings of clients.
    other_config: rw(PAIRS).opt(),
    /// True if the device must stay up.
    disallow_unplug: ro(Bool).opt(),
    /// Tunnels to which the device gives access.
    tunnel_access_PIF_of: ro(Set(&Ref("tunnel"))),
    /// Tunnels that the device carries.
    tunnel_transport_PIF_of: ro(Set(&Ref("tunnel"))),
    /// Source of the host's IPv6 address.
    ipv6_configuration_mode: ro(Enum(&enums::IPV6_CONFIGURATION_MODE)).opt(),
    /// IPv6 addresses.
    IPv6: ro(STRS).opt(),
    /// IPv6 gateway.
    ipv6_gateway: ro(Str).opt(),
    /// Primary address type.
    primary_address_type: ro(Enum(&enums::PRIMARY_ADDRESS_TYPE)).opt(),
    /// True if the toolstack brings the device up and down.
    managed: rc(Bool).or(Yes),
    /// Settings of the card.
    properties: ro(PAIRS).opt(),
    /// Capabilities of the card.
    capabilities: ro(STRS).opt(),
    /// State of IGMP snooping on the device's bridge.
    igmp_snooping_status: ro(Enum(&enums::PIF_IGMP_STATUS)).or(Text("unknown")),
    /// SR-IOV networks made of the virtual functions of this device.
    sriov_physical_PIF_of: ro(Set(&Ref("network_sriov"))),
    /// SR-IOV networks that this device represents.
    sriov_logical_PIF_of: ro(Set(&Ref("network_sriov"))),
    /// PCI device of the card.
    PCI: ro(Ref("PCI")).opt(),
}

messages! {
    /// Finds network cards without a record and creates their records.
    PoolOperator Long scan(host: Ref("host"));
    /// Creates the record of a network device, given by name, by Ethernet address, or by both.
    PoolOperator Long introduce(host: Ref("host"), MAC: Str, device: Str; managed: Bool => Yes) -> Ref("PIF");
    /// Removes the record. The device stays unchanged.
    PoolOperator Short forget(self: Ref("PIF"));
    /// Brings the device up.
    PoolOperator Long plug(self: Ref("PIF"));
    /// Takes the device down.
    PoolOperator Long unplug(self: Ref("PIF"));
    /// Creates a VLAN on a device of the host.
    PoolOperator Long create_VLAN(
        device: Str, network: Ref("network"), host: Ref("host"), VLAN: Int) -> Ref("PIF");
    /// Destroys the record of a VLAN.
    PoolOperator Long destroy(self: Ref("PIF"));
    /// Sets the host's IPv4 address on the device.
    PoolOperator Long reconfigure_ip(self: Ref("PIF"), mode: Enum(&enums::IP_CONFIGURATION_MODE),
        IP: Str, netmask: Str, gateway: Str, DNS: Str);
    /// Sets the host's IPv6 address on the device.
    PoolOperator Long reconfigure_ipv6(self: Ref("PIF"),
        mode: Enum(&enums::IPV6_CONFIGURATION_MODE), IPv6: Str, gateway: Str, DNS: Str);
    /// Sets the primary address type.
    PoolOperator Long set_primary_address_type(
        self: Ref("PIF"), primary_address_type: Enum(&enums::PRIMARY_ADDRESS_TYPE));
    /// Sets a property of the card.
    PoolOperator Long set_property(self: Ref("PIF"), name: Str, value: Str);
    /// Sets whether the device must stay up.
    PoolOperator Short set_disallow_unplug(self: Ref("PIF"), value: Bool);
}

/// Definition of the class.
pub static CLASS: Class =
    Class::new(("PIF", "A network device of a host"), Role::PoolOperator, FIELDS, MESSAGES);
