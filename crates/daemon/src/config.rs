//! What the daemon runs with: options, over the configuration file, over what is usual.

use std::fs::File;
use std::io::{self, Read};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use model::admission::Limits;
use model::plan::Deadlines;
use serde::Deserialize;

use crate::first::Product;
use crate::options::{HypervisorKind, Listen, Options};

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
/// Longest of the times that can be given.
const TIME_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// What the daemon runs with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Directory of what is remembered.
    pub state: PathBuf,
    /// Directory of what a reboot of the host forgets.
    pub run: PathBuf,
    /// Where to listen on TCP.
    pub listen: Vec<Listen>,
    /// The Unix socket.
    pub socket: PathBuf,
    /// What runs the machines.
    pub hypervisor: HypervisorKind,
    /// Users and passwords, if their file was named.
    pub password_file: Option<PathBuf>,
    /// Directories from which kernels and ramdisks may be taken.
    pub boot: Vec<PathBuf>,
    /// How many device steps run at once.
    pub limits: Limits,
    /// How long steps may take.
    pub deadlines: Deadlines,
    /// How long an operation waits for its turn at a machine.
    pub queue: Duration,
    /// What the host says it is. Clients do what they do for a brand that they know, and compare
    /// versions.
    pub product: Product,
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

/// The file, as it is written.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
struct Written {
    state: Option<PathBuf>,
    run: Option<PathBuf>,
    listen: Option<Vec<Listen>>,
    socket: Option<PathBuf>,
    hypervisor: Option<HypervisorKind>,
    password_file: Option<PathBuf>,
    boot: WrittenBoot,
    limits: WrittenLimits,
    identity: WrittenIdentity,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct WrittenBoot {
    directories: Option<Vec<PathBuf>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
struct WrittenLimits {
    worker_pool_size: Option<u16>,
    machine: Option<u16>,
    sr: Option<u16>,
    stuck_ms: Option<u64>,
    attach_deadline_s: Option<u64>,
    queue_deadline_s: Option<u64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
struct WrittenIdentity {
    product_brand: Option<String>,
    product_version: Option<String>,
    platform_version: Option<String>,
}

/// What to run with.
///
/// # Errors
/// The configuration file was named and is not there, or what is in it is wrong.
pub fn settings(options: Options) -> Result<Settings, ConfigError> {
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

fn resolve(options: Options, text: &str) -> Result<Settings, String> {
    let written: Written = toml::from_str(text).map_err(|error| error.to_string())?;
    let moved = options.run.is_none() && written.run.is_none() && options.state.is_some();
    // Processes that are started elsewhere are told of it.
    let absolute = |path: PathBuf| std::path::absolute(&path).unwrap_or(path);
    let state = absolute(options.state.or(written.state).unwrap_or_else(|| USUAL_STATE.into()));
    let run = options.run.or(written.run).map(absolute);
    let run = run.unwrap_or_else(|| if moved { state.join("run") } else { USUAL_RUN.into() });
    let socket = options.socket.or(written.socket).unwrap_or_else(|| run.join(SOCKET_NAME));
    let listen = Some(options.listen).filter(|given| !given.is_empty());
    let boot = written.boot.directories;
    let deadlines = Deadlines {
        storage: within("limits.attach-deadline-s", written.limits.attach_deadline_s)?
            .unwrap_or(Deadlines::default().storage),
        ..Deadlines::default()
    };
    let queue = within("limits.queue-deadline-s", written.limits.queue_deadline_s)?;
    Ok(Settings {
        listen: listen.or(written.listen).unwrap_or_else(usual_listen),
        hypervisor: options.hypervisor.or(written.hypervisor).unwrap_or_default(),
        password_file: options.password_file.or(written.password_file),
        boot: boot.unwrap_or_else(|| USUAL_BOOT.map(PathBuf::from).to_vec()),
        limits: limits(&written.limits)?,
        deadlines,
        queue: queue.unwrap_or(USUAL_QUEUE),
        product: product(written.identity)?,
        state,
        run,
        socket,
    })
}

fn usual_listen() -> Vec<Listen> {
    let everywhere = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 443));
    let here = SocketAddr::from((Ipv4Addr::LOCALHOST, 80));
    vec![Listen { address: everywhere, plain: false }, Listen { address: here, plain: true }]
}

fn limits(written: &WrittenLimits) -> Result<Limits, String> {
    let usual = Limits::default();
    let limits = Limits {
        host: written.worker_pool_size.unwrap_or(usual.host),
        machine: written.machine.unwrap_or(usual.machine),
        sr: written.sr.unwrap_or(usual.sr),
        stuck: written.stuck_ms.map_or(usual.stuck, Duration::from_millis),
        ..usual
    };
    limits.validate().map_err(|error| error.to_string())?;
    Ok(limits)
}

/// A time of 1 s to [`TIME_MAX`], if one is given.
fn within(name: &str, seconds: Option<u64>) -> Result<Option<Duration>, String> {
    let most = TIME_MAX.as_secs();
    match seconds {
        Some(seconds) if seconds == 0 || seconds > most => {
            Err(format!("{name} = {seconds}: give 1 to {most}"))
        }
        given => Ok(given.map(Duration::from_secs)),
    }
}

fn product(written: WrittenIdentity) -> Result<Product, String> {
    Ok(Product {
        brand: written.product_brand.unwrap_or_else(|| "Ringway".to_owned()),
        version: numbers("identity.product-version", written.product_version, "7.0.0")?,
        platform: numbers("identity.platform-version", written.platform_version, "2.1.0")?,
    })
}

/// Numbers with dots between them.
fn numbers(name: &str, given: Option<String>, usual: &str) -> Result<String, String> {
    let text = given.unwrap_or_else(|| usual.to_owned());
    if text.split('.').all(|part| part.parse::<u32>().is_ok()) {
        return Ok(text);
    }
    Err(format!("{name} = {text:?}: give numbers with dots between them, as {usual}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Result<Settings, String> {
        resolve(Options::default(), text)
    }

    #[test]
    fn what_is_usual() {
        let settings = of("").unwrap();
        assert_eq!(settings.state, Path::new("/var/lib/ringway"));
        assert_eq!(settings.socket, Path::new("/run/ringway/ringwayd.sock"));
        let listen: Vec<_> = settings.listen.iter().map(ToString::to_string).collect();
        assert_eq!(listen, ["0.0.0.0:443", "127.0.0.1:80,plain"]);
        assert_eq!(settings.limits, Limits::default());
        assert_eq!(settings.hypervisor, HypervisorKind::Qemu);
        assert_eq!(settings.product.version, "7.0.0");
    }

    #[test]
    fn options_go_before_the_file() {
        let text = "state = \"/a\"\nrun = \"/b\"\nhypervisor = \"simulator\"\n\
                    listen = [\"127.0.0.1:1,plain\"]\n[limits]\nworker-pool-size = 8\n\
                    queue-deadline-s = 5\n[identity]\nproduct-brand = \"Other\"\n";
        let settings = of(text).unwrap();
        assert_eq!(settings.socket, Path::new("/b/ringwayd.sock"));
        assert_eq!(settings.hypervisor, HypervisorKind::Simulator);
        assert_eq!((settings.limits.host, settings.queue), (8, Duration::from_secs(5)));
        assert_eq!(settings.product.brand, "Other");
        let options = Options {
            state: Some("/c".into()),
            listen: vec!["127.0.0.1:2".parse().unwrap()],
            ..Options::default()
        };
        let settings = resolve(options, text).unwrap();
        assert_eq!(settings.state, Path::new("/c"));
        assert_eq!(settings.run, Path::new("/b"), "the file names it");
        assert_eq!(settings.listen.len(), 1);
        assert!(!settings.listen[0].plain);
    }

    #[test]
    fn another_state_has_its_own_sockets() {
        let options = Options { state: Some("/c".into()), ..Options::default() };
        let settings = resolve(options, "").unwrap();
        assert_eq!(settings.socket, Path::new("/c/run/ringwayd.sock"));
    }

    #[test]
    fn directories_are_where_the_daemon_is_started() {
        let options = Options { state: Some("c".into()), ..Options::default() };
        let here = std::env::current_dir().unwrap();
        let settings = resolve(options, "").unwrap();
        assert_eq!((settings.state, settings.run), (here.join("c"), here.join("c/run")));
        assert_eq!(of("run = \"r\"").unwrap().run, here.join("r"));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, named) in [
            ("stat = \"/a\"", "stat"),
            ("[limits]\nworker-pool-size = 0", "limits.host"),
            ("[limits]\nqueue-deadline-s = 0", "limits.queue-deadline-s"),
            ("[identity]\nproduct-version = \"7.x\"", "identity.product-version"),
            ("listen = [\"nowhere\"]", "nowhere"),
            ("state =", "state"),
        ] {
            let error = of(text).unwrap_err();
            assert!(error.contains(named), "{text}: {error}");
        }
    }

    #[test]
    fn a_file_that_is_named_must_be_there() {
        let config = Some(PathBuf::from("/nowhere/ringwayd.toml"));
        let error = settings(Options { config, ..Options::default() }).unwrap_err();
        assert!(error.to_string().contains("/nowhere/ringwayd.toml"), "{error}");
    }
}
