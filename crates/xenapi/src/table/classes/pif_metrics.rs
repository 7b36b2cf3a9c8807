//! Metrics of PIFs.

use super::prelude::*;

fields! { "PIF_metrics", PoolOperator;
    /// UUID.
    uuid: ro(Str),
    /// Received data in KiB/s.
    io_read_kbs: ro(Float).opt().volatile(),
    /// Sent data in KiB/s.
    io_write_kbs: ro(Float).opt().volatile(),
    /// True if the device has a link.
    carrier: ro(Bool),
    /// Vendor id of the card.
    vendor_id: ro(Str),
    /// Vendor name of the card.
    vendor_name: ro(Str),
    /// Device id of the card.
    device_id: ro(Str),
    /// Device name of the card.
    device_name: ro(Str),
    /// Link speed in Mbit/s.
    speed: ro(Int),
    /// True for full duplex.
    duplex: ro(Bool),
    /// Address on the PCI bus.
    pci_bus_path: ro(Str),
    /// Time of the last update.
    last_updated: ro(Date).volatile(),
    /// Additional settings of clients.
    other_config: rw(PAIRS).opt(),
}

/// Definition of the class.
pub static CLASS: Class = Class::new(
    ("PIF_metrics", "What is measured of a host's network device"),
    Role::PoolOperator,
    FIELDS,
    &[],
);
