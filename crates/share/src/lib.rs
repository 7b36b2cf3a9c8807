//! Fair shares of one storage.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod charge;
mod depth;
pub mod device;
mod dispatch_queue;
mod error;
mod order;
mod profile;
mod share;
mod state;
mod stats;
mod survey;
mod turn;

#[cfg(test)]
mod simulation;

pub use dispatch_queue::{Dispatch, DispatchQueue, Permit, Submitted};
pub use error::ShareError;
pub use profile::{Cost, Op, OpKind, Piece, Profile, Sample, Turn};
pub use share::{
    BACKGROUND_WEIGHT, DEFAULT_WEIGHT, DiskConfig, DiskId, ReactorId, Share, WEIGHT_MAX,
};
pub use state::{CELLS, DISKS_MAX, REACTORS_MAX};
pub use stats::{DiskStats, ShareStats, WaitReason};
