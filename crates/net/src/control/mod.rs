//! The control queue: what a driver asks its interface to be (virtio 1.2, 5.1.6.5).
//!
//! A [`Command`] is parsed once from a private copy of its bytes, against what was negotiated
//! ([`ControlFeatures`]); [`ControlSettings`] is what all commands since the last reset come to. What is wrong in any
//! way changes nothing and is answered [`ERR`].

mod parse;
mod settings;

pub use parse::{Command, CommandError, ControlFeatures};
pub use settings::ControlSettings;

/// The answer to a command that was carried out.
pub const OK: u8 = 0;
/// The answer to any other.
pub const ERR: u8 = 1;

/// Most addresses of a driver's table: Linux has one for each address of the interface itself, of
/// what is stacked on it, and of each group that it is in.
pub const ADDRESSES_MAX: usize = 1024;
/// Bytes of the longest command: class, command, and a table of two lists, each behind its length.
pub const COMMAND_BYTES_MAX: usize = 2 + 2 * 4 + 6 * ADDRESSES_MAX;

#[cfg(test)]
mod tests;
