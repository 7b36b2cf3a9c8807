//! Tests of `iod`, in one program.
#![allow(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]
#![allow(clippy::print_stdout, reason = "a test reports what it saw")]

mod actor;
mod arrivals;
mod began;
mod block_sizes;
mod broken;
mod budgets;
mod caps;
mod closing;
mod commits;
#[path = "../common/mod.rs"]
mod common;
mod control;
mod descriptors;
mod export_storage;
mod exports;
mod fence;
mod full;
mod full_snapshots;
mod golden;
#[path = "../../../golden/tests/suite/servers.rs"]
#[allow(dead_code, reason = "the tests of golden use the rest")]
mod golden_servers;
mod handover;
mod idle;
mod image_calls;
mod image_layers;
mod images;
mod io_nics;
mod keeper;
mod logs;
mod mapped_budgets;
mod mapped_faults;
mod mapped_refusals;
mod memory_holes;
mod merges;
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
mod overlay;
mod pause;
mod peer;
mod polling;
mod reads;
mod resize;
mod shared_storage;
mod shares;
mod signals;
mod snapshots;
mod socket_files;
mod sockets;
mod standstill;
mod stated_formats;
mod stop_cont;
mod stuck;
mod supervise;
mod suspects;
mod systemd;
mod threads;
mod trees;
mod unheld;
mod unkillable;
mod upgrade;
mod upgrade_hostile;
mod vhds;
mod without_socket;
