//! Paths at which the processes of a host are called.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use model::id::SrId;
use serde::Deserialize;

use super::supervisor::CONTROL;
use crate::machines;

/// Control socket of a `ringway-io` that is started without `ringwayd`.
pub const USUAL_CONTROL: &str = "/run/ringway/io.sock";
/// Configuration file of `ringwayd`.
const CONFIG: &str = "/etc/ringway/ringwayd.toml";
/// Default run directory of `ringwayd`.
const USUAL_RUN: &str = "/run/ringway";
/// Name of the socket of `ringwayd` in its run directory.
const RINGWAYD: &str = "ringwayd.sock";
/// Longest configuration file in bytes, as in `ringwayd`.
const CONFIG_BYTES_MAX: u64 = 1 << 20;
/// Most control sockets of a run directory. There is one for each storage repository.
const CONTROLS_MAX: usize = 1024;

/// Paths of the sockets of `ringwayd`, and of every `ringway-io` at a known place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostSockets {
    run: PathBuf,
    ringwayd: PathBuf,
    /// Control socket of a process without `ringwayd`.
    single: Option<PathBuf>,
}

/// Keys of the configuration file that move sockets.
#[derive(Debug, Default, Deserialize)]
struct ConfiguredPaths {
    run: Option<PathBuf>,
    socket: Option<PathBuf>,
}

impl HostSockets {
    /// Returns the paths of this host, as `ringwayd`'s configuration file says. Without a file that
    /// can be read, these are the default ones.
    pub fn of_host() -> Self {
        let mut text = String::new();
        let read = File::open(CONFIG)
            .and_then(|file| file.take(CONFIG_BYTES_MAX).read_to_string(&mut text));
        let configured = read.ok().and_then(|_| toml::from_str(&text).ok()).unwrap_or_default();
        Self { single: Some(USUAL_CONTROL.into()), ..Self::configured(configured) }
    }

    /// Returns the paths of a `ringwayd` with this run directory.
    pub fn in_run(run: &Path) -> Self {
        Self::configured(ConfiguredPaths { run: Some(run.into()), socket: None })
    }

    fn configured(ConfiguredPaths { run, socket }: ConfiguredPaths) -> Self {
        let run = run.unwrap_or_else(|| USUAL_RUN.into());
        Self { ringwayd: socket.unwrap_or_else(|| run.join(RINGWAYD)), run, single: None }
    }

    /// Returns the socket of `ringwayd`.
    pub fn ringwayd(&self) -> &Path {
        &self.ringwayd
    }

    /// Returns the control sockets that exist now, in order. A process that was killed leaves its
    /// socket behind.
    pub fn controls(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.run.join("io")).into_iter().flatten().flatten();
        let mut found: Vec<_> = entries
            .take(CONTROLS_MAX)
            .map(|entry| entry.path().join(CONTROL))
            .chain(self.single.clone())
            .filter(|path| path.exists())
            .collect();
        found.sort();
        found
    }

    /// Returns the control socket of the process that serves this SR of `ringwayd`, if one runs.
    pub fn control_of_sr(&self, sr: SrId) -> PathBuf {
        machines::sockets(&self.run, sr).join(CONTROL)
    }

    /// Returns a text that says where control sockets are expected.
    pub fn places(&self) -> String {
        let in_run = self.run.join("io").join("*").join(CONTROL);
        match &self.single {
            Some(single) => format!("{} and {}", single.display(), in_run.display()),
            None => in_run.display().to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_moves_sockets() {
        let paths = |text| HostSockets::configured(toml::from_str(text).unwrap());
        let usual = paths("hypervisor = \"qemu\"\n[limits]\nsr = 3\n");
        assert_eq!(usual.ringwayd(), Path::new("/run/ringway/ringwayd.sock"));
        let moved = paths("run = \"/run/r\"\n");
        assert_eq!(moved.ringwayd(), Path::new("/run/r/ringwayd.sock"));
        assert_eq!(moved.places(), "/run/r/io/*/control.sock");
        let named = paths("run = \"/run/r\"\nsocket = \"/s\"\n");
        assert_eq!((named.ringwayd(), &named.run), (Path::new("/s"), &PathBuf::from("/run/r")));
    }

    #[test]
    fn only_sockets_that_exist_are_returned() {
        let dir = tempfile::tempdir().unwrap();
        let host_sockets = HostSockets::in_run(dir.path());
        assert!(host_sockets.controls().is_empty());
        for name in ["networks", "ded8b6b5", "empty"] {
            std::fs::create_dir_all(dir.path().join("io").join(name)).unwrap();
        }
        let paths = ["ded8b6b5", "networks"].map(|id| dir.path().join("io").join(id).join(CONTROL));
        paths.iter().for_each(|path| std::fs::write(path, "").unwrap());
        assert_eq!(host_sockets.controls(), paths);
    }
}
