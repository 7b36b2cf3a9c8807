//! Frames between NICs, through our switch and others'.
//!
//! Clients are DPDK's virtio-user ([`pps`]), User-Mode Linux guests ([`queues`]) and a raw one of our
//! own where neither will do ([`tso`], [`aggregate`], [`latency`], [`balance`]). Switch and client have
//! a CPU each, unless the experiment says otherwise. Every sample starts its switch fresh and ends it,
//! so nothing that polls is left over.

pub mod aggregate;
pub mod balance;
mod client;
mod guests;
mod idle;
pub mod latency;
mod ovs;
pub mod pps;
pub mod queues;
mod relay;
mod systems;
mod tap;
pub mod tso;
