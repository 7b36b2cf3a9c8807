//! Handover record of a NIC's session.

use std::os::fd::{BorrowedFd, OwnedFd};

use anyhow::Context;
use net::Mac;
use net::control::{ADDRESSES_MAX, Command, ControlSettings};
use reactor::{Stopped, clock_ns};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use vhost_user::{ListenerParts, SessionHandle, SessionState, StateError};

use super::quiesce::{FrozenSession, QuiescedNic};
use super::session_backend::NicSessionBackend;
use super::{ServedNic, ring_kind};
use crate::handover::BrokenRingState;

/// Reason why a NIC cannot be handed over.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WriteError {
    /// Error of its session.
    #[error(transparent)]
    State(#[from] StateError),
    /// A reactor has ended.
    #[error(transparent)]
    Stopped(#[from] Stopped),
    /// No descriptors are left.
    #[error("no descriptors are left")]
    Os(#[from] std::io::Error),
}

/// Handover record of a session.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NicSessionState {
    state: Value,
    /// Control-queue settings of the driver, if it ever started the queue.
    asked: Option<ControlSettingsState>,
}

/// Control-queue settings of a driver.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ControlSettingsState {
    pairs: u16,
    promiscuous: bool,
    all_multicast: bool,
    address: [u8; 6],
    table: Vec<[u8; 6]>,
}

impl QuiescedNic {
    /// Returns the handover record with the session in this format, and the session's descriptors.
    ///
    /// # Errors
    /// The format is unknown.
    pub(crate) fn written(
        &self,
        format: u32,
    ) -> Result<(Option<NicSessionState>, Vec<BorrowedFd<'_>>), WriteError> {
        let Some(FrozenSession { state, control_settings, .. }) = &self.frozen else {
            return Ok((None, Vec::new()));
        };
        let (state, fds) = state.encode(format)?;
        let asked = control_settings.as_ref().map(written);
        Ok((Some(NicSessionState { state, asked }), fds))
    }
}

/// NIC of another process. This process owns nothing of it yet, because dropping a listener removes
/// its files.
#[derive(Debug)]
pub(crate) struct IncomingNic {
    frozen: Option<FrozenSession>,
    listener: ListenerParts,
}

impl ServedNic {
    /// Returns the token debt of its rate limit at `now_ns`, in nanoseconds.
    pub(crate) fn owed_ns(&self, now_ns: u64) -> u64 {
        self.allowed().now.rate.as_ref().map_or(0, |rate_limiter| rate_limiter.debt_ns(now_ns))
    }

    /// Returns its broken rings.
    pub(crate) fn broken_rings(&self) -> Vec<BrokenRingState> {
        let all = self.switch_network.fabric.broken_rings(self.spec.port).into_iter();
        all.map(|(queue, kind, one)| BrokenRingState::new(queue, ring_kind::to_report(kind), one))
            .collect()
    }

    /// Sets the broken rings that another process has served.
    pub(crate) fn restore_broken_rings(&self, all: Vec<BrokenRingState>) {
        let fabric = &self.switch_network.fabric;
        for one in all.into_iter().filter(|one| one.queue < self.offered_features.queues()) {
            let queue = one.queue;
            let Some(kind) = ring_kind::from_report(one.kind) else { continue };
            fabric.restore_broken_ring(self.spec.port, queue, kind, one.into_broken_ring());
        }
    }

    /// Takes the handover record of another process and the preserved socket. Leaves out a session
    /// whose front-end has changed its memory so that it cannot continue.
    ///
    /// # Errors
    /// The data is inconsistent, or does not fit this NIC.
    pub(crate) fn take(
        &self,
        session: Option<NicSessionState>,
        owed_ns: u64,
        fds: Vec<OwnedFd>,
        listener: ListenerParts,
    ) -> anyhow::Result<IncomingNic> {
        // An upgrade must not grant a new burst.
        if let Some(rate_limiter) = &self.allowed().now.rate {
            rate_limiter.charge(owed_ns, clock_ns());
        }
        let Some(NicSessionState { state, asked }) = session else {
            anyhow::ensure!(fds.is_empty(), "descriptors without a session");
            return Ok(IncomingNic { frozen: None, listener });
        };
        let state = match SessionState::decode(state, fds) {
            Ok(state) => Box::new(state),
            Err(error) if error.is_front_end_fault() => {
                // Its connection closes with the other process.
                self.end_frozen(&error);
                return Ok(IncomingNic { frozen: None, listener });
            }
            Err(error) => return Err(error.into()),
        };
        state.check_compatible(&NicSessionBackend::new(self, SessionHandle::default()))?;
        let control_settings = asked.map(|asked| read(asked, self.pairs())).transpose()?;
        Ok(IncomingNic {
            frozen: Some(FrozenSession { state, queues: Vec::new(), control_settings }),
            listener,
        })
    }
}

impl IncomingNic {
    /// Takes ownership, because the other process never serves the NIC again.
    ///
    /// # Errors
    /// Its socket failed.
    pub(crate) fn take_ownership(self) -> Result<QuiescedNic, vhost_user::SocketError> {
        let Self { frozen, listener } = self;
        Ok(QuiescedNic { frozen, listener: vhost_user::Listener::adopt(listener)?.into() })
    }
}

fn written(control_settings: &ControlSettings) -> ControlSettingsState {
    let mut written = ControlSettingsState {
        pairs: control_settings.pairs(),
        promiscuous: false,
        all_multicast: false,
        address: control_settings.address().0,
        table: Vec::new(),
    };
    for command in control_settings.commands() {
        match command {
            Command::Promiscuous(on) => written.promiscuous = on,
            Command::AllMulticast(on) => written.all_multicast = on,
            Command::Table(macs) => written.table = macs.into_iter().map(|mac| mac.0).collect(),
            Command::Pairs(pairs) => written.pairs = pairs,
            Command::Address(mac) => written.address = mac.0,
        }
    }
    written
}

fn read(written: ControlSettingsState, most: u16) -> anyhow::Result<ControlSettings> {
    let ControlSettingsState { pairs, promiscuous, all_multicast, address, table } = written;
    let address = Some(Mac(address)).filter(|mac| mac.is_station());
    let mut control_settings =
        ControlSettings::nothing(address.context("the address is not a station's")?);
    anyhow::ensure!((1..=most).contains(&pairs), "{pairs} pairs of queues are out of range");
    anyhow::ensure!(
        table.len() <= ADDRESSES_MAX,
        "a filter of {} addresses is too long",
        table.len()
    );
    let table = table.into_iter().map(Mac).collect();
    let all = [
        Command::Promiscuous(promiscuous),
        Command::AllMulticast(all_multicast),
        Command::Table(table),
        Command::Pairs(pairs),
    ];
    all.into_iter().for_each(|command| control_settings.apply(command));
    Ok(control_settings)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_driver_asked_for_is_the_same_on_the_other_side() {
        let mut control_settings = ControlSettings::nothing(Mac([2, 0, 0, 0, 0, 1]));
        let group = Mac([0x33, 0x33, 0, 0, 0, 1]);
        let table = Command::Table(vec![group, Mac([2, 0, 0, 0, 0, 9])]);
        for command in [table, Command::Promiscuous(false), Command::Pairs(3)] {
            control_settings.apply(command);
            let text = serde_json::to_string(&written(&control_settings)).unwrap();
            assert_eq!(
                read(serde_json::from_str(&text).unwrap(), 4).unwrap(),
                control_settings,
                "{text}"
            );
        }
        let wrong: [fn(&mut ControlSettingsState); 4] = [
            |it| it.pairs = 0,
            |it| it.pairs = 5,
            |it| it.address = [0xff; 6],
            |it| it.table = vec![[2; 6]; ADDRESSES_MAX + 1],
        ];
        for change in wrong {
            let mut other = written(&control_settings);
            change(&mut other);
            assert!(read(other, 4).is_err());
        }
    }
}
