//! `ringway net`: manages internal networks of this host.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, Subcommand, ValueEnum};
use toolstack::net::internal::{Name, NetworkRequest, NetworkStatus, Networks, Subnet};

use crate::table;

/// Default directory of network records.
const DEFAULT_STATE: &str = "/var/lib/ringway/networks";

/// Options of `ringway net`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  ringway net create lan --nat --dhcp
  ringway net create lab --nat --dhcp --subnet 10.5.0.0/24
  ringway net list
  ringway net destroy lan

A network is a bridge rw-NAME with an address of the host, and in it a TAP device rwt-NAME for a
switch's uplink. Running the same create again, after a crash or a reboot of the host, adds what is
missing. Root is needed.")]
pub(crate) struct Net {
    /// Directory for network records and leases
    #[arg(
        long,
        value_name = "DIR",
        env = "RINGWAY_NETWORKS",
        default_value = DEFAULT_STATE,
        global = true
    )]
    state: PathBuf,
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Create a network, or complete an existing one
    Create(Create),
    /// Show the networks and their problems
    List(List),
    /// Remove a network with everything that belongs to it
    Destroy(Destroy),
}

/// Options of `ringway net create`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  ringway net create lan --nat --dhcp
  ringway net create quiet --subnet 192.168.7.0/28")]
struct Create {
    /// 1 to 11 lower-case letters, digits, - or _
    name: Name,
    /// Let guests reach what the host reaches, with the host's address; turns on IPv4 forwarding if
    /// it is off. Without it, guests reach only the host and each other
    #[arg(long)]
    nat: bool,
    /// Assign addresses and names to guests (dnsmasq)
    #[arg(long)]
    dhcp: bool,
    /// Subnet; the host gets its first address [default: first free one of 10.213.N.0/24]
    #[arg(long, value_name = "CIDR")]
    subnet: Option<Subnet>,
}

/// Output format of networks.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Format {
    /// Table for terminals
    Table,
    /// Array of JSON objects, for programs
    Json,
}

/// Options of `ringway net list`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  ringway net list
  ringway net list --format json

Exit code 1 if a network has a problem.")]
struct List {
    /// Output format
    #[arg(long, value_enum, default_value = "table")]
    format: Format,
}

/// Options of `ringway net destroy`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  ringway net destroy lan
  ringway net destroy lan --force")]
struct Destroy {
    /// Name of the network
    name: Name,
    /// Remove it even if it is in use
    #[arg(long)]
    force: bool,
}

impl Net {
    pub(super) async fn execute(self) -> anyhow::Result<ExitCode> {
        let networks = Networks::at(&self.state).context("cannot use the state directory")?;
        match self.action {
            Action::Create(options) => create(&networks, options).await,
            Action::List(options) => list(&networks, options.format).await,
            Action::Destroy(options) => {
                if !networks.destroy(&options.name, options.force).await? {
                    logging::write_line(&format!("there is no network {}", options.name));
                }
                Ok(ExitCode::SUCCESS)
            }
        }
    }
}

async fn create(networks: &Networks, options: Create) -> anyhow::Result<ExitCode> {
    let Create { name, nat, dhcp, subnet } = options;
    let created_network = networks.create(&NetworkRequest { name, subnet, nat, dhcp }).await?;
    if created_network.forwards_now {
        logging::write_line(
            "IPv4 forwarding was off, and is on now (net.ipv4.ip_forward); it stays on",
        );
    }
    let (spec, (first, last)) = (&created_network.spec, created_network.spec.subnet.guests());
    let mut output = std::io::stdout().lock();
    writeln!(output, "bridge   {}", spec.name.bridge())?;
    writeln!(output, "uplink   {}", spec.name.tap())?;
    writeln!(output, "gateway  {}/{}", spec.subnet.gateway(), spec.subnet.bits())?;
    if spec.dhcp {
        writeln!(output, "guests   {first} to {last}, by DHCP")?;
    } else {
        writeln!(output, "guests   {first} to {last}, set by hand")?;
    }
    Ok(ExitCode::SUCCESS)
}

async fn list(networks: &Networks, format: Format) -> anyhow::Result<ExitCode> {
    let all = networks.list().await?;
    let mut output = std::io::stdout().lock();
    match format {
        Format::Json => {
            serde_json::to_writer_pretty(&mut output, &all)?;
            writeln!(output)?;
        }
        Format::Table => print(&mut output, &all)?,
    }
    let well = all.iter().all(|network| network.problems.is_empty());
    Ok(if well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn print(output: &mut impl std::io::Write, all: &[NetworkStatus]) -> std::io::Result<()> {
    let header = ["network", "bridge", "uplink", "subnet", "NAT", "DHCP", "state", "leases"];
    let mut table = table::new(&header, 7);
    let yes = |with: bool| if with { "yes" } else { "no" };
    for network in all {
        let state = if network.problems.is_empty() { "up" } else { "broken" };
        let (spec, leases) = (&network.spec, network.leases.to_string());
        let (name, subnet) = (spec.name.to_string(), spec.subnet.to_string());
        let (nat, dhcp) = (yes(spec.nat), yes(spec.dhcp));
        let devices = [name.as_str(), &network.bridge, &network.tap];
        table.add_row(devices.into_iter().chain([subnet.as_str(), nat, dhcp, state, &leases]));
    }
    writeln!(output, "{table}")?;
    for network in all {
        for problem in &network.problems {
            writeln!(output, "{}: {problem}", network.spec.name)?;
        }
    }
    Ok(())
}
