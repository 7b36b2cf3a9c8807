//! One disk over vhost-user, ours and `qemu-storage-daemon`'s, by a neutral client.
//!
//! The client is the `virtio-driver` crate's front-end and driver (what libblkio uses) in a loop of
//! our own ([`client`]). Client and backend have a CPU each, unless the experiment says otherwise.
//! Every sample starts its backend fresh and ends it, so nothing that polls is left over for the next.

pub mod aggregate;
pub mod baseline;
mod cell;
pub mod client;
mod copy;
mod eventfd_pair;
mod fleet;
mod guest;
pub mod hung_disk;
pub mod idle;
pub mod image;
pub mod loopback;
pub mod medium;
pub mod peer;
pub mod polling;
pub mod scale;
pub mod shared_cpu;
pub mod stats_cost;
pub mod systems;
