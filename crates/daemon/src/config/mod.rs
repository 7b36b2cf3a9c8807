//! Configuration of the daemon: options override the configuration file, which overrides defaults.

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
use crate::options::{CalibrateMode, HypervisorKind, Listen, Options, SlicesMode};
use crate::xapi_socket::XAPI;
use values::{limits, product, slices, web, within};
use written::ConfigFile;

/// Default configuration file.
const USUAL_FILE: &str = "/etc/ringway/ringwayd.toml";
/// Default state directory.
const USUAL_STATE: &str = "/var/lib/ringway";
/// Default run directory, which contains the sockets.
const USUAL_RUN: &str = "/run/ringway";
/// Name of the socket in the run directory.
const SOCKET_NAME: &str = "ringwayd.sock";
/// Longest configuration file, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Default directories from which VMs may boot.
const USUAL_BOOT: [&str; 2] = ["/boot", "/usr/share/ringway/guest"];
/// Default for the longest time that an operation waits in its VM's queue.
const USUAL_QUEUE: Duration = Duration::from_secs(120);

/// Resolved configuration of the daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DaemonConfig {
    /// Directory of persistent state.
    pub state: PathBuf,
    /// Directory of state that does not survive a reboot of the host.
    pub run: PathBuf,
    /// TCP addresses to listen on.
    pub listen: Vec<Listen>,
    /// Path of the Unix socket.
    pub socket: PathBuf,
    /// Second path where clients expect the socket. `None` unless the socket is at the default
    /// path.
    pub known: Option<PathBuf>,
    /// Hypervisor that runs VMs.
    pub hypervisor: HypervisorKind,
    /// Password file, if one was configured.
    pub password_file: Option<PathBuf>,
    /// Directories from which kernels and ramdisks may be loaded.
    pub boot: Vec<PathBuf>,
    /// Limits of concurrent device steps.
    pub limits: StepLimits,
    /// Deadlines of steps.
    pub deadlines: Deadlines,
    /// Longest time that an operation waits in its VM's queue.
    pub queue: Duration,
    /// Product identity of the host. Clients enable features for brands that they know, and compare
    /// versions.
    pub product: Product,
    /// Measurement of storage repositories.
    pub calibrate: CalibrateMode,
    /// Control group settings.
    pub slices: SliceSettings,
    /// Web pages.
    pub web: WebSettings,
}

/// Settings of web pages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WebSettings {
    /// Directory of the pages that the server sends. `None` for no pages.
    pub directory: Option<PathBuf>,
    /// Origins of pages of other servers that may call.
    pub origins: Vec<String>,
}

/// Settings of the control groups that reserve CPU time for the control plane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SliceSettings {
    /// Whether control groups are created.
    pub mode: SlicesMode,
    /// Prefix of the group names.
    pub name: String,
    /// Weights where the host's record sets none.
    pub weights: Weights,
}

/// Reason why the configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("the configuration {} cannot be read: check its path and permissions", .path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// The file is invalid.
    #[error("the configuration {} is wrong: {what}", .path.display())]
    Wrong {
        /// Path of the file.
        path: PathBuf,
        /// Location of the error and what is valid there.
        what: String,
    },
}

/// Resolves the configuration from options, file and defaults.
///
/// # Errors
/// [`ConfigError`] if a named configuration file does not exist, or if the file is invalid.
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
    // Other processes receive these paths and may have another working directory.
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
        calibrate: options.calibrate.or(config_file.storage.calibrate).unwrap_or_default(),
        slices: slices(options.slices, config_file.slices, own_state.then_some(state.as_path()))?,
        web: web(config_file.web)?,
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
