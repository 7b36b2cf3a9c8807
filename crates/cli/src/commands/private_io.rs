//! The ringway-io that does the work of a command: a running one, or one for this command alone.

use std::path::Path;

use toolstack::binaries;
use toolstack::ringway_io::{PrivateIo, RpcConnection};
use toolstack::run::scratch_of_user;

use crate::terminal;

/// Runs `work` with the ringway-io at `control`, or with one that is started for it and ends after
/// it. `work` gets a connection, and the control socket for more.
///
/// # Errors
/// No ringway-io can be reached or started, the work failed, or a signal has ended it: an
/// [`Interrupt`](terminal::Interrupt). Nothing of the started ringway-io is left then.
pub(super) async fn with_ringway_io<T>(
    control: Option<&Path>,
    work: impl AsyncFnOnce(&mut RpcConnection, &Path) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    if let Some(control) = control {
        let mut connection = RpcConnection::connect(control).await?;
        return work(&mut connection, control).await;
    }
    let program = binaries::ours(binaries::RINGWAY_IO)?;
    let interrupts = terminal::interrupts()?;
    let mut private = PrivateIo::start(&program, &scratch_of_user()).await?;
    let control = private.control();
    let result = tokio::select! {
        result = work(private.connection(), &control) => result,
        interrupt = interrupts.first() => return Err(interrupt.into()),
    };
    // The result counts: nothing of the work depends on how this process ends.
    if let Err(error) = private.stop().await {
        tracing::warn!("ringway-io did not end in order: {error}");
    }
    result
}
