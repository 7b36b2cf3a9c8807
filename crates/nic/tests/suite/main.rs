//! Tests of `nic`, in one program.
#![allow(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

mod attached;
mod balanced;
mod control;
mod counted;
mod floods;
mod frames;
mod guest;
mod hostile;
mod locked;
mod polled;
mod reactors;
mod restarts;
mod rested;
