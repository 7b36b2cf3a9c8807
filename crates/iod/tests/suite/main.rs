//! Tests of `iod`, in one program.
#![allow(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

mod actor;
mod arrivals;
mod began;
mod caps;
mod closing;
#[path = "../common/mod.rs"]
mod common;
mod control;
mod descriptors;
mod export_storage;
mod exports;
mod fence;
mod handover;
mod idle;
mod images;
mod io_nics;
mod keeper;
mod logs;
mod metrics;
mod nbd_clients;
mod neighbours;
mod net_control;
mod net_conventions;
mod net_ports;
mod net_told;
mod net_uplink;
mod nic_upgrade;
mod options;
mod orphan;
mod pause;
mod peer;
mod polling;
mod reads;
mod resize;
mod signals;
mod sockets;
mod standstill;
mod stop_cont;
mod stuck;
mod supervise;
mod suspects;
mod systemd;
mod unheld;
mod unkillable;
mod upgrade;
