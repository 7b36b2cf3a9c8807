//! A `ringway-net` with the folder of its sockets.

use std::path::PathBuf;

use tempfile::TempDir;
use testkit::process::Process;

use super::{Caller, NET, folder, ready};

pub struct Switch {
    pub process: Process,
    pub folder: TempDir,
}

impl Switch {
    /// Starts a switch with a port of each of these names.
    pub fn with(ports: &[&str], options: &[&str]) -> Self {
        let folder = folder();
        let control = folder.path().join("control");
        let sockets: Vec<_> = ports.iter().map(|name| folder.path().join(name)).collect();
        let ports = sockets.iter().flat_map(|socket| ["--port", socket.to_str().unwrap()]);
        let own = ["--control", control.to_str().unwrap()];
        let all: Vec<_> = ports.chain(own).chain(options.iter().copied()).collect();
        let process = ready(NET, &all);
        Self { process, folder }
    }

    /// Returns the statistics of all ports.
    pub fn ports(&self) -> Vec<model::report::PortStats> {
        Caller::connect(&self.folder.path().join("control")).stats().ports
    }

    pub fn port(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}
