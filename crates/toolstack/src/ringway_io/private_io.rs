//! `ringway-io` for the calls of one command.

use std::path::{Path, PathBuf};

use super::{DatapathError, IoProcess, RpcConnection};
use crate::run::workspace::Workspace;

/// Name of the control socket.
const SOCKET: &str = "io.sock";

/// Running `ringway-io` on a control socket in a private directory. It serves no disk. Dropping it
/// kills the process and removes the directory.
#[derive(Debug)]
pub struct PrivateIo {
    // Dropped before its directory.
    process: IoProcess,
    connection: RpcConnection,
    workspace: Workspace,
}

impl PrivateIo {
    /// Starts the program, with its socket in a new directory under `scratch`.
    ///
    /// # Errors
    /// The directory cannot be created, or the errors of [`IoProcess::spawn`] and
    /// [`IoProcess::ready`].
    pub async fn start(program: &Path, scratch: &Path) -> Result<Self, DatapathError> {
        let workspace = Workspace::new(scratch)
            .map_err(|source| DatapathError::Folder { folder: scratch.into(), source })?;
        let mut process = IoProcess::spawn(program, &workspace.path().join(SOCKET), false)?;
        let connection = process.ready().await?;
        Ok(Self { process, connection, workspace })
    }

    /// Returns the path of the control socket.
    pub fn control(&self) -> PathBuf {
        self.workspace.path().join(SOCKET)
    }

    /// Returns the connection for calls.
    pub fn connection(&mut self) -> &mut RpcConnection {
        &mut self.connection
    }

    /// Ends the process in order.
    ///
    /// # Errors
    /// The errors of [`IoProcess::stop`].
    pub async fn stop(mut self) -> Result<(), DatapathError> {
        self.process.stop(&mut self.connection).await?;
        // The next run removes a directory that stays.
        let _ = self.workspace.remove();
        Ok(())
    }
}
