//! Shutdown and reboot requests to a guest.

use std::sync::Arc;
use std::time::Duration;

use model::plan::{GuestRequest, RunState};
use serde_json::Value;

use super::agent;
use super::domain::Domain;
use crate::hv::{HvError, not_begun};

/// Interval of repeated requests. A guest that was booting has missed the first.
const ASK_AGAIN: Duration = Duration::from_secs(5);

/// Longest wait for each query of a slow QEMU before the request. The caller waits for the guest
/// anyway. The step's deadline bounds the sum.
const ANSWER_WITHIN: Duration = Duration::from_secs(20);

/// Sends one request: through the agent if it listens, else through the power button.
///
/// The power button cannot request a reboot. A guest that powers off is enough then, because a new
/// domain follows. A guest that has not begun to run cannot be asked. An exiting one counts as
/// absent.
pub(super) async fn once(domain: &Domain, what: GuestRequest) -> Result<(), HvError> {
    match ask(domain, what).await {
        Err(_) if domain.wait_process_exit().await => Err(HvError::Absent),
        asked => asked,
    }
}

async fn ask(domain: &Domain, what: GuestRequest) -> Result<(), HvError> {
    let qmp = domain.qmp_within(ANSWER_WITHIN).await?;
    if domain.state_by(&qmp, ANSWER_WITHIN).await? == RunState::Created {
        return Err(not_begun());
    }
    if Domain::agent_listens_by(&qmp, ANSWER_WITHIN).await? {
        let mode = match what {
            GuestRequest::Shutdown => "powerdown",
            GuestRequest::Reboot => "reboot",
        };
        match agent::shutdown(domain, mode).await {
            Ok(()) => return Ok(()),
            Err(error) => tracing::debug!(vm = %domain.vm, %error, "the agent failed"),
        }
    }
    press(domain).await
}

/// Presses the power button repeatedly until the guest has ended. An agent that ignored the first
/// request would ignore the next.
pub(super) async fn until_ended(domain: Arc<Domain>) {
    loop {
        tokio::select! {
            _ = domain.wait_end() => return,
            () = tokio::time::sleep(ASK_AGAIN) => {}
        }
        if let Err(error) = press(&domain).await {
            tracing::debug!(vm = %domain.vm, %error, "the power button cannot be pressed");
        }
    }
}

async fn press(domain: &Domain) -> Result<(), HvError> {
    domain.execute("system_powerdown", Value::Null).await.map(drop)
}
