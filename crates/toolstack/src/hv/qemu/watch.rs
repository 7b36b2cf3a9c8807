//! Watcher of a domain: events that no call caused.
//!
//! # A guest that resets itself
//! Its domain ends as after a power-off. QEMU stays paused, also while no daemon runs, until a
//! caller creates a new domain with the new settings. The event says which of the two it was. A
//! daemon that starts later reads it in QEMU's trace ([`reset_trace`](super::reset_trace)).

use std::sync::Arc;
use std::time::Duration;

use model::plan::RunState;
use model::vm::exits::DomainExit;
use serde_json::Value;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::backends;
use super::device_ids::{AGENT, Device};
use super::domain::{Domain, END_DEADLINE, QmpLink, connect};
use crate::hv::{DomainEvent, HvError};
use crate::qemu::qmp::{Event, Qmp};

/// Pause after a failed connection. No event announces when it can succeed.
const CONNECT_AGAIN: Duration = Duration::from_secs(1);
/// Deadline of a watcher, which has nothing else to do.
pub(super) const FOREVER: Duration = Duration::MAX;

/// Creates the control connection, recreates it when it breaks, and watches until the process has
/// exited.
///
/// If the domain is `new`, no device can have been released unseen. The discovery of an older
/// domain may have failed to list its devices.
pub(super) async fn watch(domain: Arc<Domain>, new: bool, out: mpsc::Sender<DomainEvent>) {
    let mut is_new = new;
    loop {
        tokio::select! {
            () = domain.process.gone() => break,
            () = run_connection(&domain, is_new, &out) => domain.linked(QmpLink::Coming),
        }
        is_new = false;
        // An exiting process closes its connection first.
        if timeout(END_DEADLINE, domain.process.gone()).await.is_ok() {
            break;
        }
        tracing::warn!(vm = %domain.vm, "lost the control connection to QEMU");
    }
    domain.end(DomainExit::Killed, &out).await;
}

/// Handles one connection from start to end.
async fn run_connection(domain: &Domain, is_new: bool, out: &mpsc::Sender<DomainEvent>) {
    let (qmp, events) = link(domain).await;
    let qmp = Arc::new(qmp);
    if !is_new && let Err(error) = backends::remove_orphans(&qmp).await {
        tracing::debug!(vm = %domain.vm, %error, "cannot remove the backends of removed devices");
    }
    domain.linked(QmpLink::Up(Arc::clone(&qmp)));
    if !is_new {
        may_have_left(domain, out).await;
    }
    follow(domain, &qmp, events, out).await;
}

/// Creates a connection, however long QEMU is silent. A queued client receives the greeting when
/// QEMU answers.
async fn link(domain: &Domain) -> (Qmp, Receiver<Event>) {
    loop {
        let made = async {
            let stream = connect(domain.dir.qmp()).await?;
            domain.linked(QmpLink::Coming);
            Ok::<_, HvError>(Qmp::patient_handshake(stream).await?)
        };
        match made.await {
            Ok(link) => return link,
            Err(error) => {
                tracing::debug!(vm = %domain.vm, %error, "no control connection");
                domain.linked(QmpLink::Refused(error.to_string()));
            }
        }
        tokio::time::sleep(CONNECT_AGAIN).await;
    }
}

/// Processes the events of one connection until it breaks.
async fn follow(
    domain: &Domain,
    qmp: &Qmp,
    mut events: Receiver<Event>,
    out: &mpsc::Sender<DomainEvent>,
) {
    catch_up(domain, qmp, out).await;
    loop {
        let event = tokio::select! {
            biased;
            event = events.recv() => event,
            () = qmp.closed() => return,
        };
        match event {
            Ok(event) => handle_event(domain, qmp, &event, out).await,
            Err(RecvError::Lagged(_)) => {
                catch_up(domain, qmp, out).await;
                may_have_left(domain, out).await;
            }
            Err(RecvError::Closed) => return,
        }
    }
}

/// Checks what happened while no connection existed.
async fn catch_up(domain: &Domain, qmp: &Qmp, out: &mpsc::Sender<DomainEvent>) {
    check_run_state(domain, qmp, out).await;
    match Domain::agent_listens_by(qmp, FOREVER).await {
        Ok(true) => ready(domain, out).await,
        Ok(false) => {}
        Err(error) => tracing::debug!(vm = %domain.vm, %error, "cannot query the guest agent"),
    }
}

/// Checks whether the guest has ended.
async fn check_run_state(domain: &Domain, qmp: &Qmp, out: &mpsc::Sender<DomainEvent>) {
    match domain.state_by(qmp, FOREVER).await {
        Ok(RunState::Ended(exit)) => domain.end(exit, out).await,
        Ok(RunState::Running | RunState::Created | RunState::Paused | RunState::Unresponsive) => {}
        Err(error) => tracing::warn!(vm = %domain.vm, %error, "cannot query the run state"),
    }
}

async fn handle_event(domain: &Domain, qmp: &Qmp, event: &Event, out: &mpsc::Sender<DomainEvent>) {
    let text = |name: &str| event.data.get(name).and_then(Value::as_str);
    let is = |name: &str| event.data.get(name) == Some(&Value::Bool(true));
    match event.name.as_str() {
        "SHUTDOWN" if is("guest") => domain.end(shutdown(text("reason")), out).await,
        "GUEST_PANICKED" => domain.end(DomainExit::Panicked, out).await,
        "DEVICE_DELETED" => {
            if let Some(device) = text("device").and_then(Device::parse) {
                left(domain, qmp, device, out).await;
            }
        }
        // An `internal-error` of the accelerator sends no other event.
        "STOP" => check_run_state(domain, qmp, out).await,
        "VSERPORT_CHANGE" if is("open") => ready(domain, out).await,
        _ => {}
    }
}

/// Translates the reason of a guest's shutdown.
fn shutdown(reason: Option<&str>) -> DomainExit {
    match reason {
        Some("guest-panic") => DomainExit::Panicked,
        Some("guest-reset") => DomainExit::Rebooted,
        _ => DomainExit::PoweredOff,
    }
}

/// Removes the backends of a device that the guest has released.
async fn left(domain: &Domain, qmp: &Qmp, device: Device, out: &mpsc::Sender<DomainEvent>) {
    if domain.is_awaited(device) {
        return;
    }
    backends::remove(qmp, device).await;
    may_have_left(domain, out).await;
}

async fn may_have_left(domain: &Domain, out: &mpsc::Sender<DomainEvent>) {
    let _no_receiver = out.send(DomainEvent::Unplugged { vm: domain.vm }).await;
}

/// Reports that the guest has opened a port. The agent's is the only one.
async fn ready(domain: &Domain, out: &mpsc::Sender<DomainEvent>) {
    tracing::debug!(vm = %domain.vm, port = AGENT, "open");
    let _no_receiver = out.send(DomainEvent::GuestReady { vm: domain.vm }).await;
}

#[cfg(test)]
mod tests;
