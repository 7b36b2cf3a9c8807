//! Internal networks of a host: a bridge with an address, NAT, DHCP and DNS, and a TAP device by which
//! a switch has its uplink there.
//!
//! # Model
//! ```text
//! create: record -> rules and NAT -> bridge, address, TAP device -> forwarding -> DHCP and DNS
//! destroy: DHCP and DNS -> devices -> rules and NAT -> record
//! ```
//! Each step looks what is there and makes the rest, so a call that was cut off is made good by the
//! same call again; a network that is gone after a start of the host comes back by it too. The work
//! is done by `ip`, `nft` and `dnsmasq`, which get words and files and no shell.
//!
//! # Invariants
//! - Nothing is touched that is not named after a network of ours: devices that somebody else has made
//!   are refused, tables of nftables are changed by their own name only.
//! - As long as there is a bridge, what may pass between it and elsewhere is ruled: with NAT guests go
//!   out, without it nothing passes, whoever turns forwarding on.
//! - Forwarding that was turned on stays on: others may count on it by then.

mod devices;
mod dnsmasq;
mod error;
mod forward;
mod name;
mod process;
mod rules;
mod spec;
mod subnet;
mod tool;

use std::path::Path;

use serde::Serialize;

use dnsmasq::Files;
pub use error::InternalError;
pub use name::Name;
use spec::NetworkStore;
pub use spec::Spec;
pub use subnet::Subnet;
use tool::{DNSMASQ, NFT, Tool};
pub(crate) use tool::{IP, Named, missing};

/// What is asked for. What is left out follows from what is on record, else from the host.
#[derive(Clone, Debug)]
pub struct NetworkRequest {
    /// Its name.
    pub name: Name,
    /// Its addresses.
    pub subnet: Option<Subnet>,
    /// With NAT.
    pub nat: bool,
    /// With DHCP and DNS.
    pub dhcp: bool,
}

/// What was made.
#[derive(Clone, Debug)]
pub struct CreatedNetwork {
    /// The network.
    pub spec: Spec,
    /// IPv4 forwarding was off, and has been turned on.
    pub forwards_now: bool,
}

/// A network as it is.
#[derive(Clone, Debug, Serialize)]
pub struct NetworkStatus {
    /// What it is to be.
    #[serde(flatten)]
    pub spec: Spec,
    /// Its bridge.
    pub bridge: String,
    /// The TAP device for a switch's uplink.
    pub tap: String,
    /// The host's address there.
    pub gateway: std::net::Ipv4Addr,
    /// Addresses that guests have got.
    pub leases: usize,
    /// What is not as it should be; nothing if all is well.
    pub problems: Vec<String>,
}

/// The internal networks of this host.
#[derive(Debug)]
pub struct Networks {
    state: NetworkStore,
}

impl Networks {
    /// Those that are on record below this directory.
    ///
    /// # Errors
    /// A path that cannot be completed, or that dnsmasq could not be told of.
    pub fn at(root: &Path) -> Result<Self, InternalError> {
        Ok(Self { state: NetworkStore::at(root)? })
    }

    /// Makes a network, or completes it if it is there in part.
    ///
    /// # Errors
    /// [`InternalError`]. What was made until then stays, and the same call goes on there.
    pub async fn create(
        &self,
        network_request: &NetworkRequest,
    ) -> Result<CreatedNetwork, InternalError> {
        let ip = Tool::find(IP)?;
        let nft = Tool::find(NFT)?;
        let dnsmasq = network_request.dhcp.then(|| Tool::find(DNSMASQ)).transpose()?;
        let _turn = self.state.turn().await?;
        let recorded = self.state.read(&network_request.name)?;
        let spec = self.settle(network_request, recorded.as_ref())?;
        // What is there before there is a record is not ours.
        devices::check(&spec.name, recorded.is_some())?;
        self.state.write(&spec)?;
        rules::set(&nft, &spec).await?;
        let anew = devices::make(&ip.program, &spec, recorded.is_some()).await?;
        let forwards_now = spec.nat && forward::turn_on()?;
        if let Some(dnsmasq) = &dnsmasq {
            let files = Files::within(&self.state.of(&spec.name));
            dnsmasq::start(dnsmasq, &files, &spec, anew).await?;
        }
        Ok(CreatedNetwork { spec, forwards_now })
    }

    /// What the network is to be.
    fn settle(
        &self,
        network_request: &NetworkRequest,
        recorded: Option<&Spec>,
    ) -> Result<Spec, InternalError> {
        let NetworkRequest { name, subnet, nat, dhcp } = network_request.clone();
        if let Some(spec) = recorded {
            let same = subnet.is_none_or(|subnet| subnet == spec.subnet);
            if same && (nat, dhcp) == (spec.nat, spec.dhcp) {
                return Ok(spec.clone());
            }
            let yes = |name: &str, with: bool| format!("{}{name}", if with { "" } else { "no " });
            let (nat, dhcp) = (yes("NAT", spec.nat), yes("DHCP", spec.dhcp));
            let has = format!("{}, {nat}, {dhcp}", spec.subnet);
            return Err(InternalError::Differs { name, has });
        }
        let mut used = forward::routes(&name.bridge());
        used.extend(self.state.all()?.iter().map(|other| other.subnet.block()));
        let Some(subnet) = subnet else {
            let subnet = Subnet::free(&used).ok_or(InternalError::NoneFree)?;
            return Ok(Spec { name, subnet, nat, dhcp });
        };
        match used.iter().find(|used| used.overlaps(subnet.block())) {
            Some(used) => Err(InternalError::Overlaps { subnet, with: used.to_string() }),
            None => Ok(Spec { name, subnet, nat, dhcp }),
        }
    }

    /// Removes a network with all that belongs to it; whether there was one. `force`: also if
    /// somebody uses it.
    ///
    /// # Errors
    /// [`InternalError`]. What is left then goes by the same call.
    pub async fn destroy(&self, name: &Name, force: bool) -> Result<bool, InternalError> {
        let ip = Tool::find(IP)?;
        let nft = Tool::find(NFT)?;
        let _turn = self.state.turn().await?;
        let recorded = self.state.read(name)?;
        if recorded.is_none() && !devices::any(name) {
            return Ok(false);
        }
        if !force {
            devices::unused(name)?;
        }
        dnsmasq::stop(&Files::within(&self.state.of(name))).await?;
        devices::remove(&ip.program, name, recorded.is_some()).await?;
        rules::remove(&nft, &name.table()).await?;
        self.state.remove(name)?;
        Ok(true)
    }

    /// Every network as it is, by name.
    ///
    /// # Errors
    /// What is on record cannot be read.
    pub async fn list(&self) -> Result<Vec<NetworkStatus>, InternalError> {
        let mut all = Vec::new();
        for spec in self.state.all()? {
            all.push(self.shown(spec).await);
        }
        Ok(all)
    }

    async fn shown(&self, spec: Spec) -> NetworkStatus {
        let files = Files::within(&self.state.of(&spec.name));
        let mut problems = devices::missing(&spec);
        if spec.nat && !forward::is_on() {
            problems.push("the host does not forward IPv4 (net.ipv4.ip_forward)".into());
        }
        match Tool::find(NFT) {
            Err(missing) => problems.push(missing.to_string()),
            Ok(nft) => problems.extend(rules::problem(&nft, &spec).await),
        }
        if spec.dhcp && !dnsmasq::is_running(&files) {
            problems.push("dnsmasq does not run".into());
        }
        let (bridge, tap) = (spec.name.bridge(), spec.name.tap());
        let (gateway, leases) = (spec.subnet.gateway(), files.leases());
        NetworkStatus { spec, bridge, tap, gateway, leases, problems }
    }
}
