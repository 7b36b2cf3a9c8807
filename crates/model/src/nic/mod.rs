//! What somebody asks of a NIC, and of the network that it is in, as data.

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

/// Most pairs of queues of a NIC: steering has a byte for the number of one.
pub const MAX_PAIRS: u16 = 128;
/// Most addresses of each kind that a NIC may be locked to: more than one machine has, and few enough
/// for what its keeper holds of it (64 KiB).
pub const MAX_LOCKED: usize = 256;
/// Smallest MTU that a driver may be told (virtio 1.2, 5.1.4.1).
pub const MIN_MTU: u16 = 68;
/// MTU of a network whose first NIC asks for none.
pub const DEFAULT_MTU: u16 = 1500;
/// Frames a second that a NIC may send to many where nothing is said, of which one of more than 1,518 bytes
/// counts for several: more than machines say that speak to each other, and few enough that a storm of one
/// leaves the others their CPU.
pub const DEFAULT_FLOOD: u32 = 10_000;
/// Longest name of a network device: `IFNAMSIZ` with its terminator is 16.
pub const MAX_TAP_BYTES: usize = 15;

/// One NIC to serve: the parameters of `nic.attach`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NicSpec {
    /// Name of the NIC within the process.
    pub id: String,
    /// Unix socket to listen on.
    pub socket: PathBuf,
    /// Name of its network: made by the first NIC in it, gone with the last.
    pub network: String,
    /// Address that its driver reads, if its front-end has none of its own for it.
    pub mac: MacAddress,
    /// Pairs of queues.
    #[serde(default = "one")]
    pub queues: u16,
    /// Offer several pairs and a control queue to drivers; with `false` it is one pair and no control
    /// queue, whatever `queues` says. That is for front-ends which show their guests all that is offered,
    /// and neither answer a control queue nor hand it over: their drivers would wait for an answer.
    #[serde(default = "yes")]
    pub mq: bool,
    /// Most bytes of a packet, the same for a whole network; as the network has it when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u16>,
    /// Its only VLAN, whose frames have no tag there; when absent, it has all, with their tags.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vlan: Option<u16>,
    /// It may send only as `mac` and these; when absent, as anybody.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub locked: Option<Locked>,
    /// It may neither send nor get anything.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub disabled: bool,
    /// How much it may send.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<NicRate>,
    /// Frames a second that it may send to many: to groups, and to stations that nobody has heard. One of
    /// more than 1,518 bytes counts for several. [`DEFAULT_FLOOD`] when absent, as many as it likes when 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flood: Option<u32>,
    /// Whether its queues are polled; as the process is set when absent, like the two that follow.
    /// Changed by `nic.poll`.
    #[serde(default, deserialize_with = "poll::mode", skip_serializing_if = "Option::is_none")]
    pub poll: Option<PollMode>,
    /// Longest spin, in microseconds.
    #[serde(default, deserialize_with = "poll::max_us", skip_serializing_if = "Option::is_none")]
    pub poll_max_us: Option<u16>,
    /// How much of a CPU must be free for a reactor that spins, in percent.
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

/// Addresses that a locked NIC may send from, beside its MAC. Without any of a kind, it may use
/// none of that kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Locked {
    /// IPv4.
    #[serde(default)]
    pub ipv4: Vec<Ipv4Addr>,
    /// IPv6.
    #[serde(default)]
    pub ipv6: Vec<Ipv6Addr>,
}

/// What a NIC may do, which `nic.limits` changes while it is served.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NicLimits {
    /// It may send only as its address and these; when absent, as anybody.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub locked: Option<Locked>,
    /// It may neither send nor get anything.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub disabled: bool,
    /// How much it may send.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<NicRate>,
    /// Frames a second that it may send to many, as [`NicSpec::flood`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flood: Option<u32>,
}

/// A cap on what a NIC sends, over all its queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NicRate {
    /// Bytes a second in the long run.
    pub bytes_per_second: u64,
    /// Bytes at once after a pause; what passes in 50 ms when absent. No less than 128 KiB, whatever
    /// is asked for: the largest frame must be no rare event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_burst: Option<u64>,
}

/// The host at a network: the parameters of `network.uplink`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UplinkSpec {
    /// Name of the network.
    pub network: String,
    /// TAP device, made if it is not there; when absent, the network is to have no uplink.
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
    /// A NIC with every default.
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

    /// Checks everything that can be checked without touching the host.
    ///
    /// # Errors
    /// The first field that cannot be served.
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

    /// What it may do.
    pub fn limits(&self) -> NicLimits {
        let &Self { disabled, rate, flood, .. } = self;
        NicLimits { locked: self.locked.clone(), disabled, rate, flood }
    }

    /// The same NIC that may do something else.
    pub fn with_limits(self, limits: NicLimits) -> Self {
        let NicLimits { locked, disabled, rate, flood } = limits;
        Self { locked, disabled, rate, flood, ..self }
    }

    /// What was asked for of polling.
    pub fn polling(&self) -> PollSpec {
        let &Self { poll, poll_max_us, poll_idle_threshold, .. } = self;
        PollSpec { poll, poll_max_us, poll_idle_threshold }
    }

    /// The same spec with this of polling.
    #[must_use]
    pub fn with_polling(self, polling: PollSpec) -> Self {
        let PollSpec { poll, poll_max_us, poll_idle_threshold } = polling;
        Self { poll, poll_max_us, poll_idle_threshold, ..self }
    }
}

impl NicLimits {
    /// Checks everything that can be checked without touching the host.
    ///
    /// # Errors
    /// The first field that cannot be served.
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
    /// Checks everything that can be checked without touching the host.
    ///
    /// # Errors
    /// The first field that cannot be served.
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

/// Names of networks are ids of another kind.
fn validate_network(name: &str) -> Result<(), SpecError> {
    validate_id(name).map_err(|SpecError { problem, .. }| SpecError { field: "network", problem })
}
