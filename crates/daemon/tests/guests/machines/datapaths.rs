//! Statistics of the processes that serve disks and NICs.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use model::report::{DiskStats, NicStats, Stats};

use super::world::{PATIENCE, World};

impl World {
    /// Returns the statistics of each `ringway-io`.
    pub(crate) fn datapaths(&self) -> Vec<Stats> {
        let folders = std::fs::read_dir(self.daemon.dir().join("run/io")).unwrap();
        let controls = folders.map(|folder| folder.unwrap().path().join("control.sock"));
        let stats = |control: PathBuf| {
            let mut line = UnixStream::connect(control).unwrap();
            line.write_all(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"stats\"}\n").unwrap();
            let mut answer = String::new();
            BufReader::new(line).read_line(&mut answer).unwrap();
            let mut answer: serde_json::Value = serde_json::from_str(&answer).unwrap();
            serde_json::from_value(answer["result"].take()).unwrap()
        };
        controls.filter(|path| path.exists()).map(stats).collect()
    }

    /// Returns the statistics of a disk, if it is served.
    pub(crate) fn served(&mut self, slot: &str) -> Option<DiskStats> {
        let id = self.record("VBD", slot).text("uuid").to_owned();
        let mut disks = self.datapaths().into_iter().flat_map(|stats| stats.disks);
        disks.find(|disk| disk.id == id)
    }

    /// Polls the statistics of a disk until a condition holds. No event reports applied settings.
    pub(crate) fn until_served(&mut self, slot: &str, is: impl Fn(&DiskStats) -> bool) {
        let end = Instant::now() + PATIENCE;
        loop {
            let disk = self.served(slot).unwrap();
            if is(&disk) {
                return;
            }
            assert!(Instant::now() < end, "{disk:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Returns the statistics of a NIC.
    pub(crate) fn port(&mut self, vif: &str) -> Option<NicStats> {
        let id = self.record("VIF", vif).text("uuid").to_owned();
        let mut nics = self.datapaths().into_iter().flat_map(|stats| stats.nics);
        nics.find(|nic| nic.id == id)
    }

    /// Returns whether the switch serves a VIF and its network has an uplink.
    pub(crate) fn is_served(&mut self, vif: &str) -> bool {
        let Some(port) = self.port(vif) else { return false };
        let mut networks = self.datapaths().into_iter().flat_map(|stats| stats.networks);
        let network = networks.find(|one| one.name == port.network).unwrap();
        port.connected && network.uplink.is_some_and(|uplink| uplink.failed.is_none())
    }
}
