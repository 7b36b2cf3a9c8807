//! What the daemon runs with: options, over the configuration file, over what is usual.

#[cfg(test)]
mod tests;
mod values;
mod written;

use std::fs::File;
use std::io::{self, Read};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use model::admission::StepLimits;
use model::plan::Deadlines;
use toolstack::cgroup::Weights;
use toolstack::doctor::sizes;

use crate::bootstrap::Product;
use crate::options::{HypervisorKind, Listen, Options, SlicesMode};
use crate::xapi_socket::XAPI;
use values::{limits, product, slices, within};
use written::ConfigFile;

/// Configuration that is read if nothing else is said.
const USUAL_FILE: &str = "/etc/ringway/ringwayd.toml";
/// Where state is kept if nothing else is said.
const USUAL_STATE: &str = "/var/lib/ringway";
/// Where sockets are if nothing else is said.
const USUAL_RUN: &str = "/run/ringway";
/// Name of the socket in the run directory.
const SOCKET_NAME: &str = "ringwayd.sock";
/// Longest configuration, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Directories from which machines may boot if nothing else is said.
const USUAL_BOOT: [&str; 2] = ["/boot", "/usr/share/ringway/guest"];
/// How long an operation may wait for its turn at a machine if nothing else is said.
const USUAL_QUEUE: Duration = Duration::from_secs(120);

/// What the daemon runs with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DaemonConfig {
    /// Directory of what is remembered.
    pub state: PathBuf,
    /// Directory of what a reboot of the host forgets.
    pub run: PathBuf,
    /// Where to listen on TCP.
    pub listen: Vec<Listen>,
    /// The Unix socket.
    pub socket: PathBuf,
    /// Another place where clients look for the socket; none for a daemon beside the host's own.
    pub known: Option<PathBuf>,
    /// What runs the machines.
    pub hypervisor: HypervisorKind,
    /// Users and passwords, if their file was named.
    pub password_file: Option<PathBuf>,
    /// Directories from which kernels and ramdisks may be taken.
    pub boot: Vec<PathBuf>,
    /// How many device steps run at once.
    pub limits: StepLimits,
    /// How long steps may take.
    pub deadlines: Deadlines,
    /// How long an operation waits for its turn at a machine.
    pub queue: Duration,
    /// What the host says it is. Clients do what they do for a brand that they know, and compare
    /// versions.
    pub product: Product,
    /// The control groups.
    pub slices: SliceSettings,
}

/// The control groups by which CPU time is kept for control.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SliceSettings {
    /// Whether there are any.
    pub mode: SlicesMode,
    /// What their names begin with.
    pub name: String,
    /// Their weights, where the host's record says nothing else.
    pub weights: Weights,
}

/// Why there are no settings.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("the configuration {} cannot be read: see to its path and permissions", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It is not what it should be.
    #[error("the configuration {} is wrong: {what}", .path.display())]
    Wrong {
        /// The file.
        path: PathBuf,
        /// Where, and what would be right.
        what: String,
    },
}

/// What to run with.
///
/// # Errors
/// The configuration file was named and is not there, or what is in it is wrong.
pub fn settings(options: Options) -> Result<DaemonConfig, ConfigError> {
    let (path, must) = match &options.config {
        Some(path) => (path.clone(), true),
        None => (PathBuf::from(USUAL_FILE), false),
    };
    let text = match read(&path) {
        Err(error) if !must && error.kind() == io::ErrorKind::NotFound => String::new(),
        Err(source) => return Err(ConfigError::Read { path, source }),
        Ok(text) => text,
    };
    resolve(options, &text).map_err(|what| ConfigError::Wrong { path, what })
}

fn read(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    let read = File::open(path)?.take(FILE_BYTES_MAX + 1).read_to_string(&mut text)?;
    if read as u64 > FILE_BYTES_MAX {
        return Err(io::Error::other(format!("it is longer than {FILE_BYTES_MAX} bytes")));
    }
    Ok(text)
}

fn resolve(options: Options, text: &str) -> Result<DaemonConfig, String> {
    let config_file: ConfigFile = toml::from_str(text).map_err(|error| error.to_string())?;
    let own_state = options.state.is_some();
    let moved = options.run.is_none() && config_file.run.is_none() && own_state;
    // Processes that are started elsewhere are told of it.
    let absolute = |path: PathBuf| std::path::absolute(&path).unwrap_or(path);
    let state = absolute(options.state.or(config_file.state).unwrap_or_else(|| USUAL_STATE.into()));
    let run = options.run.or(config_file.run).map(absolute);
    let run = run.unwrap_or_else(|| if moved { state.join("run") } else { USUAL_RUN.into() });
    let socket = options.socket.or(config_file.socket).unwrap_or_else(|| run.join(SOCKET_NAME));
    let is_usual = socket == Path::new(USUAL_RUN).join(SOCKET_NAME);
    let known = is_usual.then(|| PathBuf::from(XAPI));
    let listen = Some(options.listen).filter(|given| !given.is_empty());
    let boot = config_file.boot.directories;
    let deadlines = Deadlines {
        storage: within("limits.attach-deadline-s", config_file.limits.attach_deadline_s)?
            .unwrap_or(Deadlines::default().storage),
        ..Deadlines::default()
    };
    let queue = within("limits.queue-deadline-s", config_file.limits.queue_deadline_s)?;
    Ok(DaemonConfig {
        listen: listen.or(config_file.listen).unwrap_or_else(usual_listen),
        hypervisor: options.hypervisor.or(config_file.hypervisor).unwrap_or_default(),
        password_file: options.password_file.or(config_file.password_file),
        boot: boot.unwrap_or_else(|| USUAL_BOOT.map(PathBuf::from).to_vec()),
        limits: limits(&config_file.limits, &sizes())?,
        deadlines,
        queue: queue.unwrap_or(USUAL_QUEUE),
        product: product(config_file.identity)?,
        slices: slices(options.slices, config_file.slices, own_state.then_some(state.as_path()))?,
        state,
        run,
        socket,
        known,
    })
}

fn usual_listen() -> Vec<Listen> {
    let everywhere = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 443));
    let here = SocketAddr::from((Ipv4Addr::LOCALHOST, 80));
    vec![Listen { address: everywhere, plain: false }, Listen { address: here, plain: true }]
}
