//! Specification of a NIC and of its network.

mod mac;
#[cfg(test)]
mod tests;

use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::caps::{MAX_BYTES_PER_SECOND, MIN_BYTES_PER_SECOND};
use crate::poll::{self, PollMode, PollSpec};
use crate::spec::{SpecError, refuse, validate_id, validate_socket};
pub use mac::MacAddress;

/// Maximum number of queue pairs of a NIC: flow steering stores a pair's number in a byte.
pub const MAX_PAIRS: u16 = 128;
/// Maximum number of addresses of each kind in an address lock. A machine has fewer, and the
/// record that the keeper stores stays small enough (64 KiB).
pub const MAX_LOCKED: usize = 256;
/// Minimum MTU (virtio 1.2, 5.1.4.1).
pub const MIN_MTU: u16 = 68;
/// MTU of a network whose first NIC requests none.
pub const DEFAULT_MTU: u16 = 1500;
/// Default limit of flooded frames a second of a NIC. A frame of more than 1,518 bytes counts for
/// several. Machines that talk to each other send fewer. A storm at this rate still leaves the
/// other machines their CPU time.
pub const DEFAULT_FLOOD: u32 = 10_000;
/// Longest name of a network device: `IFNAMSIZ` is 16 with the terminator.
pub const MAX_TAP_BYTES: usize = 15;

/// A NIC to serve: the parameters of `nic.attach`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NicSpec {
    /// Name of the NIC within the process.
    pub id: String,
    /// Unix socket to listen on.
    pub socket: PathBuf,
    /// Name of its network. The first NIC creates the network, and the last one removes it.
    pub network: String,
    /// Address that its driver reads, unless the front-end provides one.
    pub mac: MacAddress,
    /// Number of queue pairs.
    #[serde(default = "one")]
    pub queues: u16,
    /// Whether to offer several pairs and a control queue to drivers. With `false` there is one
    /// pair and no control queue, whatever `queues` says. Some front-ends show their guests every
    /// offered feature, but neither answer a control queue nor hand it over. Their drivers would
    /// wait for an answer.
    #[serde(default = "yes")]
    pub mq: bool,
    /// Maximum bytes of a packet, equal for all NICs of a network; the network's when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u16>,
    /// Its only VLAN, whose frames have no tag at the NIC; all VLANs with their tags when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vlan: Option<u16>,
    /// Address lock: the NIC may send only from `mac` and these addresses; no lock when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub locked: Option<Locked>,
    /// Whether the NIC may neither send nor receive.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub disabled: bool,
    /// Limit of sent bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<NicRate>,
    /// Limit of flooded frames a second: frames to groups and to unknown stations. A frame of more
    /// than 1,518 bytes counts for several. [`DEFAULT_FLOOD`] when absent, no limit when 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flood: Option<u32>,
    /// Polling mode of its queues. The default of the process when absent, as for the next two.
    /// `nic.poll` changes it.
    #[serde(default, deserialize_with = "poll::mode", skip_serializing_if = "Option::is_none")]
    pub poll: Option<PollMode>,
    /// Longest spin, in microseconds.
    #[serde(default, deserialize_with = "poll::max_us", skip_serializing_if = "Option::is_none")]
    pub poll_max_us: Option<u16>,
    /// Percentage of a CPU that must be idle for a polling reactor.
    #[serde(
        default,
        deserialize_with = "poll::idle_threshold",
        skip_serializing_if = "Option::is_none"
    )]
    pub poll_idle_threshold: Option<u8>,
    /// Permission bits of the socket, for example 0o660.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub socket_mode: Option<u32>,
    /// Group that owns the socket, by name or number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub socket_group: Option<String>,
}

/// Addresses that a locked NIC may send from, in addition to its MAC. Without addresses of a kind,
/// it may use none of that kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Locked {
    /// IPv4 addresses.
    #[serde(default)]
    pub ipv4: Vec<Ipv4Addr>,
    /// IPv6 addresses.
    #[serde(default)]
    pub ipv6: Vec<Ipv6Addr>,
}

/// Limits of a NIC, which `nic.limits` changes while it is served.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NicLimits {
    /// Address lock: the NIC may send only from its MAC and these addresses; no lock when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub locked: Option<Locked>,
    /// Whether the NIC may neither send nor receive.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub disabled: bool,
    /// Limit of sent bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<NicRate>,
    /// Limit of flooded frames a second, as [`NicSpec::flood`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flood: Option<u32>,
}

/// Cap of the bytes that a NIC sends, over all its queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NicRate {
    /// Bytes a second in the long run.
    pub bytes_per_second: u64,
    /// Bytes at once after a pause; the bytes of 50 ms when absent. At least 128 KiB in any case,
    /// so that frames of the largest size pass normally.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_burst: Option<u64>,
}

/// The host's uplink of a network: the parameters of `network.uplink`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UplinkSpec {
    /// Name of the network.
    pub network: String,
    /// TAP device, created if it does not exist. When absent, the uplink is removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tap: Option<String>,
}

fn one() -> u16 {
    1
}

fn yes() -> bool {
    true
}

impl NicSpec {
    /// Creates a NIC with default values.
    pub fn new(
        id: impl Into<String>,
        socket: impl Into<PathBuf>,
        network: impl Into<String>,
        mac: MacAddress,
    ) -> Self {
        Self {
            id: id.into(),
            socket: socket.into(),
            network: network.into(),
            mac,
            queues: 1,
            mq: true,
            mtu: None,
            vlan: None,
            locked: None,
            disabled: false,
            rate: None,
            flood: None,
            poll: None,
            poll_max_us: None,
            poll_idle_threshold: None,
            socket_mode: None,
            socket_group: None,
        }
    }

    /// Checks the fields without accessing the host.
    ///
    /// # Errors
    /// The first invalid field.
    pub fn validate(&self) -> Result<(), SpecError> {
        validate_id(&self.id)?;
        validate_network(&self.network)?;
        validate_socket(&self.socket, self.socket_mode)?;
        if !(1..=MAX_PAIRS).contains(&self.queues) {
            return refuse("queues", format!("{} is not in 1 to {MAX_PAIRS}", self.queues));
        }
        if let Some(mtu) = self.mtu.filter(|mtu| *mtu < MIN_MTU) {
            return refuse("mtu", format!("{mtu} is not in {MIN_MTU} to {}", u16::MAX));
        }
        if let Some(vlan) = self.vlan.filter(|vlan| !(1..=4094).contains(vlan)) {
            return refuse("vlan", format!("{vlan} is not in 1 to 4094"));
        }
        self.limits().validate()?;
        self.polling().validate()
    }

    /// Returns its limits.
    pub fn limits(&self) -> NicLimits {
        let &Self { disabled, rate, flood, .. } = self;
        NicLimits { locked: self.locked.clone(), disabled, rate, flood }
    }

    /// Returns the same NIC with other limits.
    pub fn with_limits(self, limits: NicLimits) -> Self {
        let NicLimits { locked, disabled, rate, flood } = limits;
        Self { locked, disabled, rate, flood, ..self }
    }

    /// Returns its polling settings.
    pub fn polling(&self) -> PollSpec {
        let &Self { poll, poll_max_us, poll_idle_threshold, .. } = self;
        PollSpec { poll, poll_max_us, poll_idle_threshold }
    }

    /// Returns the same spec with other polling settings.
    #[must_use]
    pub fn with_polling(self, polling: PollSpec) -> Self {
        let PollSpec { poll, poll_max_us, poll_idle_threshold } = polling;
        Self { poll, poll_max_us, poll_idle_threshold, ..self }
    }
}

impl NicLimits {
    /// Checks the fields without accessing the host.
    ///
    /// # Errors
    /// The first invalid field.
    pub fn validate(&self) -> Result<(), SpecError> {
        self.locked.as_ref().map_or(Ok(()), Locked::validate)?;
        self.rate.map_or(Ok(()), NicRate::validate)
    }
}

impl Locked {
    fn validate(&self) -> Result<(), SpecError> {
        match self.ipv4.len().max(self.ipv6.len()) {
            ..=MAX_LOCKED => Ok(()),
            most => refuse("locked", format!("{most} addresses are more than {MAX_LOCKED}")),
        }
    }
}

impl NicRate {
    fn validate(self) -> Result<(), SpecError> {
        let fits = |field, value: u64| {
            let range = MIN_BYTES_PER_SECOND..=MAX_BYTES_PER_SECOND;
            let problem = || format!("{value} is not in {} to {}", range.start(), range.end());
            if range.contains(&value) { Ok(()) } else { refuse(field, problem()) }
        };
        fits("rate.bytes_per_second", self.bytes_per_second)?;
        self.bytes_burst.map_or(Ok(()), |burst| fits("rate.bytes_burst", burst))
    }
}

impl UplinkSpec {
    /// Checks the fields without accessing the host.
    ///
    /// # Errors
    /// The first invalid field.
    pub fn validate(&self) -> Result<(), SpecError> {
        validate_network(&self.network)?;
        let Some(tap) = &self.tap else { return Ok(()) };
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        let named = (1..=MAX_TAP_BYTES).contains(&tap.len()) && tap.chars().all(plain);
        if named && !tap.starts_with(['.', '-']) {
            return Ok(());
        }
        let problem = format!(
            "{tap:?} is not 1 to {MAX_TAP_BYTES} of letters, digits, '.', '_', '-', beginning \
             with a letter, a digit or '_'"
        );
        refuse("tap", problem)
    }
}

/// Checks the name of a network, which has the form of an id.
fn validate_network(name: &str) -> Result<(), SpecError> {
    validate_id(name).map_err(|SpecError { problem, .. }| SpecError { field: "network", problem })
}
