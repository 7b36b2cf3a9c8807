//! From bytes to commands.

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

/// What was negotiated, as far as commands depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControlFeatures {
    /// What the driver has accepted.
    pub features: AcceptedFeatures,
    /// Pairs of queues that there are.
    pub pairs: u16,
}

/// Something that a driver asks for, which can be had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// All frames, or only those that its other wishes let pass.
    Promiscuous(bool),
    /// All frames to groups.
    AllMulticast(bool),
    /// Frames to these addresses, stations' and groups', instead of those that it listed before.
    Table(Vec<Mac>),
    /// It has this address, which is a station's.
    Address(Mac),
    /// It uses so many pairs of queues: 1 to [`ControlFeatures::pairs`].
    Pairs(u16),
}

/// Why a command is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    /// There is no room for an answer.
    #[error("nobody could hear what became of it")]
    NoAnswer,
    /// It has no class and command.
    #[error("{0} bytes are no command")]
    Short(usize),
    /// It is longer than any command.
    #[error("a command has at most {COMMAND_BYTES_MAX} bytes")]
    Long,
    /// Nobody has negotiated, or knows, such a command.
    #[error("command {command} of class {class} was not negotiated")]
    Unknown {
        /// Its class.
        class: u8,
        /// Its number in the class.
        command: u8,
    },
    /// Its data have another length than that command's.
    #[error("{0} bytes are no data of this command")]
    Data(usize),
    /// A table has too many addresses.
    #[error("a table has at most {ADDRESSES_MAX} addresses")]
    LargeTable,
    /// A group, or zero.
    #[error("{0} is no address of a station")]
    NoStation(Mac),
    /// Such a number of pairs cannot be used.
    #[error("{0} pairs of queues cannot be used")]
    Pairs(u16),
}

impl Command {
    /// A command as a driver has written it, in private memory.
    ///
    /// # Errors
    /// [`CommandError`]
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

/// Data of a fixed length.
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

/// Two lists, of stations and of groups; which of them an address is in does not matter.
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
