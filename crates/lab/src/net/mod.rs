//! Frames between NICs, through our switch and peers.
//!
//! Clients are DPDK's virtio-user ([`pps`]), User-Mode Linux guests ([`queues`]), and the lab's raw
//! client where neither fits ([`tso`], [`aggregate`], [`latency`], [`balance`]). Switch and client
//! have a CPU each, unless the experiment says otherwise. Every sample starts a fresh switch and
//! ends it, so no polling thread disturbs the next sample.

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

pub(crate) use client::{PingPair, Waits};
