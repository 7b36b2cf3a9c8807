//! Settings that result from a driver's commands.

use super::Command;
use crate::mac::Mac;

/// Settings that a driver has requested since the last reset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControlSettings {
    pairs: u16,
    promiscuous: bool,
    all_multicast: bool,
    address: Mac,
    /// Sorted addresses of the table.
    table: Box<[Mac]>,
}

impl ControlSettings {
    /// Returns the settings after a reset: one queue pair, all frames (virtio 1.2, 5.1.6.5.5).
    /// Drivers that never restrict reception depend on receiving all frames.
    pub fn nothing(address: Mac) -> Self {
        Self { pairs: 1, promiscuous: true, all_multicast: false, address, table: Box::default() }
    }

    /// Applies a command.
    pub fn apply(&mut self, command: Command) {
        match command {
            Command::Promiscuous(on) => self.promiscuous = on,
            Command::AllMulticast(on) => self.all_multicast = on,
            Command::Table(mut macs) => {
                macs.sort_unstable();
                macs.dedup();
                self.table = macs.into();
            }
            Command::Address(mac) => self.address = mac,
            Command::Pairs(pairs) => self.pairs = pairs,
        }
    }

    /// Returns the commands that turn the settings after a reset, with the same [`Self::address`],
    /// into these.
    pub fn commands(&self) -> [Command; 4] {
        [
            Command::Promiscuous(self.promiscuous),
            Command::AllMulticast(self.all_multicast),
            Command::Table(self.table.to_vec()),
            Command::Pairs(self.pairs),
        ]
    }

    /// Returns the number of queue pairs in use, from the first on.
    pub fn pairs(&self) -> u16 {
        self.pairs
    }

    /// Returns the address of the interface.
    pub fn address(&self) -> Mac {
        self.address
    }

    /// Returns whether the driver wants a frame to `dst`, if the switch does not know the station
    /// `dst`.
    pub fn wants(&self, dst: Mac) -> bool {
        self.promiscuous
            || dst == Mac::BROADCAST
            || dst == self.address
            || dst.is_group() && self.all_multicast
            || self.table.binary_search(&dst).is_ok()
    }
}
