//! What those tell who serve disks and interfaces.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use model::report::{DiskStats, NicStats, Stats};

use super::world::{PATIENCE, World};

impl World {
    /// What each `ringway-io` tells.
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

    /// What the datapath tells of a disk, if it serves it.
    pub(crate) fn served(&mut self, slot: &str) -> Option<DiskStats> {
        let id = self.record("VBD", slot).text("uuid").to_owned();
        let mut disks = self.datapaths().into_iter().flat_map(|stats| stats.disks);
        disks.find(|disk| disk.id == id)
    }

    /// Asks the datapath until this is so of a disk: nobody tells when it was told.
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

    /// What the switch tells of an interface.
    pub(crate) fn port(&mut self, vif: &str) -> Option<NicStats> {
        let id = self.record("VIF", vif).text("uuid").to_owned();
        let mut nics = self.datapaths().into_iter().flat_map(|stats| stats.nics);
        nics.find(|nic| nic.id == id)
    }

    /// Whether the switch has an interface, and the host is in its network.
    pub(crate) fn is_served(&mut self, vif: &str) -> bool {
        let Some(port) = self.port(vif) else { return false };
        let mut networks = self.datapaths().into_iter().flat_map(|stats| stats.networks);
        let network = networks.find(|one| one.name == port.network).unwrap();
        port.connected && network.uplink.is_some_and(|uplink| uplink.failed.is_none())
    }
}
