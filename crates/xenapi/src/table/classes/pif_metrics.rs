//! What is measured of network devices of hosts.

use super::prelude::*;

fields! { "PIF_metrics", PoolOperator;
    /// Its UUID.
    uuid: ro(Str),
    /// What it receives, in KiB a second.
    io_read_kbs: ro(Float).opt().volatile(),
    /// What it sends, in KiB a second.
    io_write_kbs: ro(Float).opt().volatile(),
    /// Something is at the other end of the cable.
    carrier: ro(Bool),
    /// The card's vendor, by number.
    vendor_id: ro(Str),
    /// The card's vendor.
    vendor_name: ro(Str),
    /// The card, by number.
    device_id: ro(Str),
    /// The card.
    device_name: ro(Str),
    /// Its speed, in Mbit a second.
    speed: ro(Int),
    /// It sends and receives at the same time.
    duplex: ro(Bool),
    /// Its address on the PCI bus.
    pci_bus_path: ro(Str),
    /// When this was last found.
    last_updated: ro(Date).volatile(),
    /// Whatever clients keep with it.
    other_config: rw(PAIRS).opt(),
}

/// The class.
pub static CLASS: Class = Class::new(
    ("PIF_metrics", "What is measured of a host's network device"),
    Role::PoolOperator,
    FIELDS,
    &[],
);
