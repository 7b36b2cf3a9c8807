//! Networks in the test's namespace.

use std::future::Future;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;
use testkit::process::find_tool;
use toolstack::net::internal::{
    CreatedNetwork, InternalError, Name, NetworkRequest, NetworkStatus, Networks,
};

/// Runs a program. Returns its output.
pub(super) fn run(words: &[&str]) -> String {
    let (program, arguments) = words.split_first().unwrap();
    let output = Command::new(program).args(arguments).output().unwrap();
    assert!(output.status.success(), "{words:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Runs a command line like [`run`].
pub(super) fn sh(line: &str) -> String {
    run(&line.split(' ').collect::<Vec<_>>())
}

/// Runs a future to its end.
pub(super) fn wait<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(work)
}

/// Networks of the host that this namespace represents.
pub(super) struct World {
    pub(super) dir: TempDir,
    pub(super) networks: Networks,
}

impl World {
    pub(super) fn new() -> Self {
        find_tool("nft", "nftables").unwrap();
        find_tool("dnsmasq", "dnsmasq-base").unwrap();
        sh("ip link set dev lo up");
        let dir = tempfile::tempdir().unwrap();
        let networks = Networks::at(&dir.path().join("networks")).unwrap();
        Self { dir, networks }
    }

    pub(super) fn create(
        &self,
        name: &str,
        nat: bool,
        dhcp: bool,
        subnet: Option<&str>,
    ) -> Result<CreatedNetwork, InternalError> {
        let subnet = subnet.map(|subnet| subnet.parse().unwrap());
        wait(self.networks.create(&NetworkRequest {
            name: name.parse().unwrap(),
            subnet,
            nat,
            dhcp,
        }))
    }

    pub(super) fn destroy(&self, name: &str, force: bool) -> Result<bool, InternalError> {
        let name: Name = name.parse().unwrap();
        wait(self.networks.destroy(&name, force))
    }

    pub(super) fn list(&self) -> Vec<NetworkStatus> {
        wait(self.networks.list()).unwrap()
    }

    /// Returns the problems of the only network.
    pub(super) fn problems(&self) -> Vec<String> {
        let all = self.list();
        let [only] = &all[..] else { panic!("{all:?}") };
        only.problems.clone()
    }

    /// Returns the ids of processes that were started with files of this world.
    pub(super) fn processes(&self) -> Vec<u32> {
        let place = self.dir.path().to_str().unwrap().to_owned();
        let ids = std::fs::read_dir("/proc").unwrap().flatten();
        let ids = ids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let ours = |id: &u32| {
            let line = std::fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
            line.starts_with(b"dnsmasq") || String::from_utf8_lossy(&line).contains("/dnsmasq\0")
        };
        let named = |id: &u32| {
            let line = std::fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&line).contains(&place)
        };
        ids.filter(ours).filter(named).collect()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // End all processes, even after a failure.
        for id in self.processes() {
            let _gone = Command::new("kill").args(["-9", &id.to_string()]).output();
        }
    }
}

/// Returns the existing devices with names of networks.
pub(super) fn devices() -> Vec<String> {
    let all = std::fs::read_dir("/sys/class/net").unwrap().flatten();
    let all = all.map(|one| one.file_name().into_string().unwrap());
    let mut ours: Vec<_> = all.filter(|name| name.starts_with("rw")).collect();
    ours.sort();
    ours
}

/// Returns whether a path exists.
pub(super) fn there(path: &Path) -> bool {
    path.exists()
}
