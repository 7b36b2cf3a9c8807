//! Observed addresses of guests whose agent or record is late.

use std::collections::BTreeSet;
use std::time::Duration;

use model::id::VifId;
use tokio::sync::mpsc::{self, Receiver};
use tokio::time::timeout;
use toolstack::hv::GuestInfo;
use toolstack::sim::{CallKind, SimBehaviour, SimResult};
use xenapi::table::{vif, vm_guest_metrics};

use super::interfaces::device;
use super::simulated_host::*;
use crate::records::fields::pairs;

const FIRST: &str = "10.0.0.1";
const SECOND: &str = "10.0.0.2";
/// Longer than any wait here.
const SOON: Duration = Duration::from_secs(60);
/// More calls than any test waits for.
const CALLS: usize = 16;

/// A VM with a VIF whose agent or start is slow.
pub(super) struct Slow {
    pub(super) sim_host: SimulatedHost,
    pub(super) machine: Ref,
    pub(super) vm: VmId,
    vif: VifId,
}

impl Slow {
    pub(super) async fn new() -> Self {
        let sim_host = SimulatedHost::new().await;
        let machine = sim_host.machine().await;
        let net = record([("name_label", Value::text("n")), ("other_config", none())]);
        let net = sim_host.made("network.create", [net]).await;
        let device = sim_host.made("VIF.create", [device(&machine, &net, "")]).await;
        let db = &sim_host.test_app.app.db;
        let vm = VmId(db.read(|view| uuid(view, &machine, vm::Field::uuid)).unwrap());
        let vif = VifId(db.read(|view| uuid(view, &device, vif::Field::uuid)).unwrap());
        Self { sim_host, machine, vm, vif }
    }

    pub(super) fn claims(&self, address: &str) {
        self.sim_host.sim.claim(self.vif, address.parse().unwrap());
    }

    /// Makes the agent report these addresses from now on.
    fn reports(&self, addresses: &[&str]) {
        let networks = addresses.iter().enumerate();
        let networks =
            networks.map(|(n, address)| (format!("0/ipv4/{n}"), (*address).to_owned())).collect();
        self.sim_host.sim.agent(self.vm, GuestInfo { networks, ..GuestInfo::default() });
    }

    /// Waits until exactly these addresses of the guest are recorded.
    pub(super) async fn until(&self, addresses: &[&str]) {
        let wanted: BTreeSet<_> = addresses.iter().map(|one| (*one).to_owned()).collect();
        let is =
            |sim_host: &SimulatedHost| recorded(sim_host, &self.machine).as_ref() == Some(&wanted);
        let seen = timeout(SOON, self.sim_host.until(is)).await;
        assert!(seen.is_ok(), "{wanted:?}: {:?}", recorded(&self.sim_host, &self.machine));
    }

    /// Gives calls of these kinds these results and reports each call.
    fn rule<const N: usize>(&self, fates: [(CallKind, SimResult); N]) -> Receiver<CallKind> {
        let (calls_tx, calls_rx) = mpsc::channel(CALLS);
        self.sim_host.sim.rule(move |call| {
            let fate = fates.iter().find(|(call_kind, _)| *call_kind == call.call_kind);
            let Some((call_kind, sim_result)) = fate else { return SimBehaviour::default() };
            let _ = calls_tx.try_send(*call_kind);
            SimBehaviour::ends(*sim_result)
        });
        calls_rx
    }
}

/// Returns the recorded addresses. `None` if the VM has no guest metrics.
fn recorded(sim_host: &SimulatedHost, machine: &Ref) -> Option<BTreeSet<String>> {
    let metrics = Ref::from(text(&sim_host.get(machine, vm::Field::guest_metrics)));
    let field = vm_guest_metrics::Field::networks;
    let networks = sim_host.test_app.app.db.read(|view| pairs(view, &metrics, field));
    networks.ok().map(|networks| networks.into_values().collect())
}

/// A DHCP client uses an address before it is assigned, and its agent may be polled in between.
#[tokio::test]
async fn an_agent_that_does_not_know_yet_is_asked_again() {
    let slow = Slow::new().await;
    slow.sim_host.start(&slow.machine).await;
    slow.reports(&[]);
    slow.claims(FIRST);
    slow.until(&[]).await;
    slow.reports(&[FIRST]);
    slow.until(&[FIRST]).await;
    slow.sim_host.done("VM.hard_shutdown", [slow.machine.value()]).await;
    slow.sim_host.assert_clean();
}

#[tokio::test]
async fn an_agent_that_does_not_answer_is_asked_again() {
    let slow = Slow::new().await;
    slow.sim_host.start(&slow.machine).await;
    slow.reports(&[FIRST]);
    slow.claims(FIRST);
    slow.until(&[FIRST]).await;
    let mut calls = slow.rule([(CallKind::Agent, SimResult::Fails)]);
    slow.reports(&[SECOND]);
    slow.claims(SECOND);
    calls.recv().await.unwrap();
    slow.sim_host.sim.rule(|_| SimBehaviour::default());
    slow.until(&[SECOND]).await;
}

/// Observed addresses are recorded until the agent answers.
#[tokio::test]
async fn an_agent_that_has_never_answered_is_asked_again() {
    let slow = Slow::new().await;
    slow.sim_host.start(&slow.machine).await;
    let _calls = slow.rule([(CallKind::Agent, SimResult::Fails)]);
    slow.reports(&[FIRST, SECOND]);
    slow.claims(FIRST);
    slow.until(&[FIRST]).await;
    slow.sim_host.sim.rule(|_| SimBehaviour::default());
    slow.until(&[FIRST, SECOND]).await;
}

/// The guest runs before the record says so.
#[tokio::test]
async fn what_is_claimed_before_a_start_has_ended_is_told_after_it() {
    for agent in [false, true] {
        let slow = Slow::new().await;
        if agent {
            slow.reports(&[FIRST]);
        }
        let mut calls =
            slow.rule([(CallKind::Run, SimResult::HangsDone), (CallKind::Agent, SimResult::Well)]);
        let claims = async {
            assert_eq!(calls.recv().await, Some(CallKind::Run));
            slow.claims(FIRST);
            // Whether the address is observed before the end of the start or after it.
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
            assert!(calls.try_recv().is_err(), "a guest was asked that is not recorded to run");
            slow.sim_host.sim.rule(|_| SimBehaviour::default());
        };
        tokio::join!(slow.sim_host.start(&slow.machine), claims);
        slow.until(&[FIRST]).await;
    }
}
