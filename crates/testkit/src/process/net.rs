//! A `ringway-net` under test.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use super::backend::wait_ready_byte;
use super::{Process, find_binary};
use crate::error::Result;

/// A running `ringway-net`.
#[derive(Debug)]
pub struct RingwayNet {
    /// Process of `ringway-net`.
    pub process: Process,
}

impl RingwayNet {
    /// Starts `ringway-net` with a port at each of these sockets, and the given options besides.
    /// Returns when the sockets accept connections.
    ///
    /// # Errors
    /// [`crate::Error::Missing`] if it is not built, [`crate::Error::Process`] with its message if
    /// it ends.
    pub fn start(sockets: &[PathBuf], options: &[&str]) -> Result<Self> {
        let mut command = Command::new(find_binary("ringway-net")?);
        for socket in sockets {
            command.arg("--port").arg(socket);
        }
        command.args(options).args(["--ready-fd", "1"]).stdout(Stdio::piped());
        let mut process = Process::start(&mut command)?;
        wait_ready_byte(&mut process)?;
        Ok(Self { process })
    }
}
