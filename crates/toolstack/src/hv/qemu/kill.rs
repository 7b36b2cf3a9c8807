//! End of a domain's process.

use std::time::Duration;

use serde_json::Value;
use tokio::time::timeout;

use super::domain::Domain;
use super::os;
use crate::hv::HvError;

/// Longest wait after `quit`. QEMU waits for its disks' I/O.
const QUIT_DEADLINE: Duration = Duration::from_secs(5);
/// Longest wait after SIGKILL. The kernel may wait for a device.
const KILL_DEADLINE: Duration = Duration::from_secs(5);

/// Ends the process. Returns when it has exited.
pub(super) async fn kill(domain: &Domain) -> Result<(), HvError> {
    domain.expect_end();
    let quit = async {
        let Ok(qmp) = domain.qmp().await else { return };
        // QEMU may exit before it answers, or not answer at all.
        let _answer = qmp.execute("quit", Value::Null, QUIT_DEADLINE).await;
    };
    let asked = async {
        tokio::select! {
            () = async { quit.await; domain.process.gone().await } => {}
            () = domain.process.gone() => {}
        }
    };
    if timeout(QUIT_DEADLINE, asked).await.is_ok() {
        return Ok(());
    }
    tracing::warn!(vm = %domain.vm, pid = domain.process.id(), "QEMU does not quit; killing it");
    let failed = |source| os("killing the process of", domain.dir.path(), source);
    domain.process.kill().map_err(failed)?;
    let late = |_| HvError::Late { what: "the exit of a killed QEMU".into(), after: KILL_DEADLINE };
    timeout(KILL_DEADLINE, domain.process.gone()).await.map_err(late)
}
