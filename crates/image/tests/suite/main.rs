//! Images made by QEMU's tools, and images made for them, in one program.
#![allow(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

mod content;
mod create;
mod damage;
mod disk;
mod hostile;
mod qemu;
mod refusals;
mod vhd;
mod written;
mod xenserver;
