//! Disk images: block maps with journal and owner, and formats, without I/O of their own.
#![forbid(unsafe_code)]

pub mod channel;
pub mod file;
pub mod format;
pub mod journal;
pub mod map;
pub mod owner;
mod planted;
pub mod shared;
#[cfg(test)]
mod simulation;
