//! What all commands come to.

use super::Command;
use crate::mac::Mac;

/// What a driver has asked its interface to be since the last reset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControlSettings {
    pairs: u16,
    promiscuous: bool,
    all_multicast: bool,
    address: Mac,
    /// In order.
    table: Box<[Mac]>,
}

impl ControlSettings {
    /// Nothing yet: it uses one pair of queues, and gets whatever there is (virtio 1.2, 5.1.6.5.5;
    /// drivers that never ask for less count on the latter).
    pub fn nothing(address: Mac) -> Self {
        Self { pairs: 1, promiscuous: true, all_multicast: false, address, table: Box::default() }
    }

    /// Carries out a command.
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

    /// What brings one of which [`Self::address`] was asked, and nothing else, to this.
    pub fn commands(&self) -> [Command; 4] {
        [
            Command::Promiscuous(self.promiscuous),
            Command::AllMulticast(self.all_multicast),
            Command::Table(self.table.to_vec()),
            Command::Pairs(self.pairs),
        ]
    }

    /// Pairs of queues that it uses, from the first on.
    pub fn pairs(&self) -> u16 {
        self.pairs
    }

    /// Its address.
    pub fn address(&self) -> Mac {
        self.address
    }

    /// Whether it wants a frame to `dst`, of which nobody knows whose it is.
    pub fn wants(&self, dst: Mac) -> bool {
        self.promiscuous
            || dst == Mac::BROADCAST
            || dst == self.address
            || dst.is_group() && self.all_multicast
            || self.table.binary_search(&dst).is_ok()
    }
}
