//! One disk over vhost-user, served by ours or `qemu-storage-daemon`, with a neutral client.
//!
//! The client is the front-end and driver of the `virtio-driver` crate (which libblkio uses) in the
//! lab's own loop ([`client`]). Client and backend have a CPU each, unless the experiment says
//! otherwise. Every sample starts a fresh backend and ends it, so no polling thread disturbs the
//! next sample.

pub mod aggregate;
pub mod baseline;
mod cell;
pub mod client;
mod copy;
mod eventfd_pair;
pub(crate) mod fleet;
pub mod formats;
mod guest;
pub mod hung_disk;
pub mod idle;
pub mod image;
pub mod loopback;
pub mod medium;
pub mod polling;
pub mod restart_pause;
pub mod scale;
pub mod shared_cpu;
pub mod sleeping;
pub mod stats_cost;
pub mod systems;
