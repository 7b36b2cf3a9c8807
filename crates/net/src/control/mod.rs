//! Control queue: settings that a driver requests (virtio 1.2, 5.1.6.5).
//!
//! A [`Command`] is parsed once from a private copy of its bytes, against the negotiated features
//! ([`ControlFeatures`]). [`ControlSettings`] is the sum of all commands since the last reset. An
//! invalid command changes nothing and is answered with [`ERR`].

mod parse;
mod settings;

pub use parse::{Command, CommandError, ControlFeatures};
pub use settings::ControlSettings;

/// Status of a command that was applied.
pub const OK: u8 = 0;
/// Status of a command that was rejected.
pub const ERR: u8 = 1;

/// Most addresses in a driver's MAC table. Linux uses one for each address of the interface, of
/// each device stacked on it, and of each multicast group.
pub const ADDRESSES_MAX: usize = 1024;
/// Bytes of the longest command: class, command, and a table of two lists, each with its length.
pub const COMMAND_BYTES_MAX: usize = 2 + 2 * 4 + 6 * ADDRESSES_MAX;

#[cfg(test)]
mod tests;
