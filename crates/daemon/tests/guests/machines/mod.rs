//! Operations on VMs with real guests through the real program, and kills of the daemon during
//! them.
#![allow(clippy::unwrap_used, clippy::panic)] // A failed helper is a failed test.

mod answered;
mod cards;
mod cds;
mod clock;
mod clones;
mod coalesce;
mod command;
mod datapaths;
mod devices;
mod ends;
mod firmware;
mod golden;
mod kernels;
mod killed;
mod knobs;
mod many;
mod nets;
mod pending;
mod places;
mod plugs;
mod quiesced;
mod records;
mod running;
mod shares;
mod snapshots;
mod world;
