//! Tests of operations on VMs of a simulated host, and the application that unit tests use.

mod addresses;
pub(crate) mod app;
mod boot_times;
mod calibration;
mod coalesce;
mod config;
mod crash_loops;
mod daemon_killed;
mod devices;
mod disk_settings;
mod full_storage;
mod guest_exits;
mod guest_metrics;
mod host_nics;
mod interfaces;
mod interrupted_ops;
mod power;
pub(crate) mod simulated_host;
mod snapshots;
mod storage;
mod typed_records;
mod volume_locks;
