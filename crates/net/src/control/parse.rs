//! Parses commands of the control queue.

use super::{ADDRESSES_MAX, COMMAND_BYTES_MAX};
use crate::features::{AcceptedFeatures, feature};
use crate::mac::Mac;

/// Classes and their commands (virtio 1.2, 5.1.6.5.1, .2, .5).
const RX: u8 = 0;
const RX_PROMISCUOUS: u8 = 0;
const RX_ALL_MULTICAST: u8 = 1;
const MAC: u8 = 1;
const MAC_TABLE: u8 = 0;
const MAC_ADDRESS: u8 = 1;
const MQ: u8 = 4;
const MQ_PAIRS: u8 = 0;

/// Negotiated features that commands depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControlFeatures {
    /// Features that the driver has accepted.
    pub features: AcceptedFeatures,
    /// Number of queue pairs.
    pub pairs: u16,
}

/// Valid command of a driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Receive all frames, or only those that the other settings admit.
    Promiscuous(bool),
    /// Receive all multicast frames.
    AllMulticast(bool),
    /// Receive frames to these addresses, unicast and multicast, instead of those of the former
    /// table.
    Table(Vec<Mac>),
    /// Use this unicast address.
    Address(Mac),
    /// Use this many queue pairs: 1 to [`ControlFeatures::pairs`].
    Pairs(u16),
}

/// Reason why a command is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    /// The chain has no room for a status.
    #[error("the command has no room for its status")]
    NoAnswer,
    /// The command is too short for a class and a number.
    #[error("{0} bytes are too short for a command")]
    Short(usize),
    /// The command is longer than any valid one.
    #[error("a command has at most {COMMAND_BYTES_MAX} bytes")]
    Long,
    /// The command is unknown or was not negotiated.
    #[error("command {command} of class {class} was not negotiated")]
    Unknown {
        /// Class of the command.
        class: u8,
        /// Number of the command in its class.
        command: u8,
    },
    /// The data do not have the length of that command's data.
    #[error("{0} bytes of data do not fit this command")]
    Data(usize),
    /// A table has too many addresses.
    #[error("a table has at most {ADDRESSES_MAX} addresses")]
    LargeTable,
    /// The address is a multicast address or zero.
    #[error("{0} is not the address of a station")]
    NoStation(Mac),
    /// The number of queue pairs is invalid.
    #[error("{0} pairs of queues cannot be used")]
    Pairs(u16),
}

impl Command {
    /// Parses a command of a driver from private memory.
    ///
    /// # Errors
    /// [`CommandError`] for an invalid command.
    pub fn parse(bytes: &[u8], control_features: ControlFeatures) -> Result<Self, CommandError> {
        if bytes.len() > COMMAND_BYTES_MAX {
            return Err(CommandError::Long);
        }
        let Some(([class, command], data)) = bytes.split_first_chunk() else {
            return Err(CommandError::Short(bytes.len()));
        };
        let has = |bit| control_features.features.has(bit);
        match (*class, *command) {
            (RX, RX_PROMISCUOUS) if has(feature::CTRL_RX) => switch(data).map(Self::Promiscuous),
            (RX, RX_ALL_MULTICAST) if has(feature::CTRL_RX) => switch(data).map(Self::AllMulticast),
            (MAC, MAC_TABLE) if has(feature::CTRL_RX) => table(data).map(Self::Table),
            (MAC, MAC_ADDRESS) if has(feature::CTRL_MAC_ADDR) => address(data).map(Self::Address),
            (MQ, MQ_PAIRS) if has(feature::MQ) => {
                pairs(data, control_features.pairs).map(Self::Pairs)
            }
            (class, command) => Err(CommandError::Unknown { class, command }),
        }
    }
}

/// Returns data of a fixed length.
fn exactly<const N: usize>(data: &[u8]) -> Result<[u8; N], CommandError> {
    data.try_into().map_err(|_| CommandError::Data(data.len()))
}

fn switch(data: &[u8]) -> Result<bool, CommandError> {
    exactly(data).map(|[on]| on != 0)
}

fn address(data: &[u8]) -> Result<Mac, CommandError> {
    let mac = Mac(exactly(data)?);
    if mac.is_station() { Ok(mac) } else { Err(CommandError::NoStation(mac)) }
}

fn pairs(data: &[u8], most: u16) -> Result<u16, CommandError> {
    let pairs = u16::from_le_bytes(exactly(data)?);
    if (1..=most).contains(&pairs) { Ok(pairs) } else { Err(CommandError::Pairs(pairs)) }
}

/// Parses two lists, of unicast and of multicast addresses; the list of an address does not matter.
fn table(data: &[u8]) -> Result<Vec<Mac>, CommandError> {
    let wrong = || CommandError::Data(data.len());
    let (mut all, mut rest) = (Vec::new(), data);
    for _ in 0..2 {
        let (count, behind) = rest.split_first_chunk().ok_or_else(wrong)?;
        let count = usize::try_from(u32::from_le_bytes(*count)).unwrap_or(usize::MAX);
        if count > ADDRESSES_MAX - all.len() {
            return Err(CommandError::LargeTable);
        }
        let (list, behind) = behind.split_at_checked(6 * count).ok_or_else(wrong)?;
        all.extend(list.chunks_exact(6).filter_map(|mac| mac.try_into().ok()).map(Mac));
        rest = behind;
    }
    if rest.is_empty() { Ok(all) } else { Err(wrong()) }
}
