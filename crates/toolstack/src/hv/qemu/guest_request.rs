//! Asks a guest to go down.

use std::sync::Arc;
use std::time::Duration;

use model::plan::{GuestRequest, RunState};
use serde_json::Value;

use super::agent;
use super::domain::Domain;
use crate::hv::{HvError, not_begun};

/// A guest is asked again after this: one that was just starting has missed the first time.
const ASK_AGAIN: Duration = Duration::from_secs(5);

/// How long a slow QEMU may take to answer each of the questions before: who asks waits for the guest
/// anyway. All of it is bounded by the step's deadline.
const ANSWER_WITHIN: Duration = Duration::from_secs(20);

/// Asks once: by the agent if one listens, else by the power button, which says nothing of a
/// reboot: a guest that goes down is enough then, a new domain comes anyway. One that has not begun
/// to run hears nothing, and of one that just ends nobody is left to be asked.
pub(super) async fn once(domain: &Domain, what: GuestRequest) -> Result<(), HvError> {
    match ask(domain, what).await {
        Err(_) if domain.wait_process_exit().await => Err(HvError::Absent),
        asked => asked,
    }
}

async fn ask(domain: &Domain, what: GuestRequest) -> Result<(), HvError> {
    let qmp = domain.qmp_within(ANSWER_WITHIN).await?;
    if domain.state_by(&qmp, ANSWER_WITHIN).await? == RunState::Fresh {
        return Err(not_begun());
    }
    if Domain::agent_listens_by(&qmp, ANSWER_WITHIN).await? {
        let mode = match what {
            GuestRequest::Shutdown => "powerdown",
            GuestRequest::Reboot => "reboot",
        };
        match agent::shutdown(domain, mode).await {
            Ok(()) => return Ok(()),
            Err(error) => tracing::debug!(vm = %domain.vm, %error, "the agent does not help"),
        }
    }
    press(domain).await
}

/// Presses the button again and again until the guest has ended. An agent that was told and did
/// nothing would do nothing again.
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
