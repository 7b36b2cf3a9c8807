//! Internal networks of a host: a bridge with an address, NAT, DHCP and DNS, and a TAP device for
//! the uplink of a switch.
//!
//! # Model
//! ```text
//! create: record -> rules and NAT -> bridge, address, TAP device -> forwarding -> DHCP and DNS
//! destroy: DHCP and DNS -> devices -> rules and NAT -> record
//! ```
//! Each step checks what exists and creates the rest. So a repeated call completes an interrupted
//! one, and restores a network that a reboot has removed. `ip`, `nft` and `dnsmasq` do the work.
//! They get arguments and files, and no shell.
//!
//! # Invariants
//! - Only names of these networks are touched. Devices of other owners are refused, and nftables
//!   tables are changed by their own name only.
//! - While a bridge exists, rules restrict its traffic with other networks. With NAT, guests reach
//!   them. Without NAT nothing passes, even if another tool turns forwarding on.
//! - Forwarding that was turned on stays on: other tools may rely on it by then.

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

/// Requested network. Missing values come from the record, else from the host.
#[derive(Clone, Debug)]
pub struct NetworkRequest {
    /// Name of the network.
    pub name: Name,
    /// Subnet of the network.
    pub subnet: Option<Subnet>,
    /// True for NAT.
    pub nat: bool,
    /// True for DHCP and DNS.
    pub dhcp: bool,
}

/// Created network.
#[derive(Clone, Debug)]
pub struct CreatedNetwork {
    /// Specification of the network.
    pub spec: Spec,
    /// True if IPv4 forwarding was off and has been turned on.
    pub forwards_now: bool,
}

/// State of a network.
#[derive(Clone, Debug, Serialize)]
pub struct NetworkStatus {
    /// Recorded specification.
    #[serde(flatten)]
    pub spec: Spec,
    /// Name of its bridge.
    pub bridge: String,
    /// TAP device for the uplink of a switch.
    pub tap: String,
    /// Address of the host in the network.
    pub gateway: std::net::Ipv4Addr,
    /// Number of DHCP leases.
    pub leases: usize,
    /// Differences from the specification; empty if there are none.
    pub problems: Vec<String>,
}

/// Internal networks of this host.
#[derive(Debug)]
pub struct Networks {
    state: NetworkStore,
}

impl Networks {
    /// Opens the records below this directory.
    ///
    /// # Errors
    /// The path cannot be made absolute, or dnsmasq cannot use it.
    pub fn at(root: &Path) -> Result<Self, InternalError> {
        Ok(Self { state: NetworkStore::at(root)? })
    }

    /// Creates a network, or completes it.
    ///
    /// # Errors
    /// [`InternalError`]. Created parts stay, and a repeated call continues from there.
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
        // Devices that exist before the record belong to another owner.
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

    /// Determines the specification of the network.
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

    /// Removes a network with all its parts. Returns whether it existed. With `force`, removes it
    /// even if it is in use.
    ///
    /// # Errors
    /// [`InternalError`]. A repeated call removes the remaining parts.
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

    /// Returns the state of every network, by name.
    ///
    /// # Errors
    /// The records cannot be read.
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
