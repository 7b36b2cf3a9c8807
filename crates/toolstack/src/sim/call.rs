//! Simulated calls and their results.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use model::id::{SrId, Uuid, VmId};
use serde::Deserialize;
use tokio::time::sleep;

use super::{Sim, State};

/// Call of a driver, or action of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs)] // Each is the method of that name.
pub enum CallKind {
    Create,
    PlugDisk,
    UnplugDisk,
    PlugNic,
    UnplugNic,
    Disc,
    Run,
    Pause,
    Ask,
    /// Reaction of a guest to a request. Its time is the guest's, and if it hangs the guest never
    /// reacts.
    Guest,
    /// Answer of the guest's agent.
    Agent,
    Kill,
    Forget,
    Find,
    SrCreate,
    SrDestroy,
    Probe,
    SrAttach,
    SrDetach,
    Scan,
    CreateVolume,
    DestroyVolume,
    ResizeVolume,
    PrepareLayer,
    SettleLayer,
    AddSnapshot,
    AddClone,
    PrepareCopy,
    PrepareImport,
    SettleImport,
    AbandonImport,
    SwitchMerge,
    AttachVolume,
    ActivateVolume,
    DeactivateVolume,
    DetachVolume,
    AttachedVolumes,
    Attach,
    Activate,
    Deactivate,
    Detach,
    Snapshot,
    CreateLayer,
    /// Freeze the file systems of a guest.
    Freeze,
    /// Thaw them.
    Thaw,
    /// Set the content to which a volume goes back.
    SetResetPoint,
    /// Reset a volume.
    PrepareReset,
    Convert,
    Export,
    Import,
    Stats,
    CreateBridge,
    RemoveBridge,
    CreateTap,
    RemoveTap,
    Join,
    Leave,
    AttachNic,
    LimitNic,
    DetachNic,
}

/// Call of a driver.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// Kind of the call.
    pub call_kind: CallKind,
    /// Machine of the call, if the driver knows it.
    pub vm: Option<VmId>,
    /// SR of the call.
    pub sr: Option<SrId>,
    /// Disk, slot or interface of the call.
    pub device: Option<Uuid>,
    /// Number of the call, from 0 on. Calls without effects and actions of guests are not counted
    /// and have `u64::MAX`.
    pub number: u64,
}

impl Call {
    pub(crate) fn new(call_kind: CallKind) -> Self {
        Self { call_kind, vm: None, sr: None, device: None, number: 0 }
    }

    pub(crate) fn vm(self, vm: VmId) -> Self {
        Self { vm: Some(vm), ..self }
    }

    pub(crate) fn sr(self, sr: SrId) -> Self {
        Self { sr: Some(sr), ..self }
    }

    /// Writes the changed state to the journal. Networks are named only by their driver, which
    /// writes them itself.
    fn keep(&self, state: &mut State) {
        if self.call_kind == CallKind::Scan || !is_counted(self.call_kind) {
            return;
        }
        if let Some(vm) = self.vm {
            state.keep_domain(vm);
        }
        match (self.sr, self.device, self.call_kind) {
            (
                Some(_),
                Some(vbd),
                CallKind::Attach | CallKind::Activate | CallKind::Deactivate | CallKind::Detach,
            ) => state.keep_disk(&vbd.to_string()),
            (Some(sr), Some(vdi), _) => state.keep_volume(sr, vdi),
            (Some(sr), None, _) => state.keep_sr(sr),
            (None, ..) => {}
        }
    }
}

/// Result of a simulated call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SimResult {
    /// The call takes effect and succeeds.
    #[default]
    Well,
    /// The call fails without an effect.
    Fails,
    /// The call takes effect, but fails.
    FailsDone,
    /// The call hangs without an effect, until the rule is replaced.
    Hangs,
    /// The call takes effect, but hangs until the rule is replaced.
    HangsDone,
}

/// Behaviour of a simulated call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SimBehaviour {
    /// Delay before the result.
    pub after: Duration,
    /// Result of the call.
    pub sim_result: SimResult,
}

impl SimBehaviour {
    /// Returns the behaviour of a call that succeeds after a delay.
    pub fn takes(after: Duration) -> Self {
        Self { after, sim_result: SimResult::Well }
    }

    /// Returns the behaviour of a call with this result and no delay.
    pub fn ends(sim_result: SimResult) -> Self {
        Self { after: Duration::ZERO, sim_result }
    }
}

/// Rule that decides the behaviour of each call.
pub struct Rule(Box<dyn Fn(&Call) -> SimBehaviour + Send + Sync>);

impl Rule {
    pub(super) fn new(rule: impl Fn(&Call) -> SimBehaviour + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self(Box::new(rule)))
    }

    pub(super) fn fate(&self, call: &Call) -> SimBehaviour {
        (self.0)(call)
    }
}

impl fmt::Debug for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Rule")
    }
}

/// Counters of calls.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SimMarks {
    /// Number of calls.
    pub calls: u64,
    /// Most parallel calls for volumes and disks.
    pub storage_high: usize,
    /// Most of these parallel calls for each SR.
    pub sr_high: BTreeMap<SrId, usize>,
}

#[derive(Debug, Default)]
pub(super) struct Counts {
    marks: SimMarks,
    storage: usize,
    srs: BTreeMap<SrId, usize>,
}

impl Counts {
    pub(super) fn marks(&self) -> SimMarks {
        self.marks.clone()
    }

    fn begins(&mut self, call: &Call) -> u64 {
        let counts = is_counted(call.call_kind);
        let number = if counts { self.marks.calls } else { u64::MAX };
        self.marks.calls += u64::from(counts);
        if let Some(sr) = call.sr.filter(|_| is_step(call.call_kind)) {
            self.storage += 1;
            self.marks.storage_high = self.marks.storage_high.max(self.storage);
            let now = self.srs.entry(sr).or_default();
            *now += 1;
            let high = self.marks.sr_high.entry(sr).or_default();
            *high = (*high).max(*now);
        }
        number
    }

    fn ends(&mut self, call: &Call) {
        if let Some(sr) = call.sr.filter(|_| is_step(call.call_kind)) {
            self.storage = self.storage.saturating_sub(1);
            if let Some(now) = self.srs.get_mut(&sr) {
                *now = now.saturating_sub(1);
            }
        }
    }
}

/// Returns whether the call can have an effect. Actions of guests are no calls.
fn is_counted(call_kind: CallKind) -> bool {
    use CallKind::{Agent, AttachedVolumes, Find, Guest, Stats};
    !matches!(call_kind, Find | Stats | AttachedVolumes | Guest | Agent)
}

/// Returns whether the call is part of a step that takes slots.
fn is_step(call_kind: CallKind) -> bool {
    matches!(
        call_kind,
        CallKind::AttachVolume
            | CallKind::ActivateVolume
            | CallKind::DeactivateVolume
            | CallKind::DetachVolume
            | CallKind::Attach
            | CallKind::Activate
            | CallKind::Deactivate
            | CallKind::Detach
    )
}

/// Running call.
struct Running<'a>(&'a Sim, Call);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.counts().ends(&self.1);
    }
}

impl Sim {
    /// Executes a call with the behaviour that the rule decides. `refuse` creates the error of a
    /// failing call.
    pub(crate) async fn call<T, E>(
        &self,
        call: Call,
        work: impl FnOnce(&mut State) -> Result<T, E>,
        refuse: impl FnOnce(String) -> E,
    ) -> Result<T, E> {
        let work = |state: &mut State| {
            let outcome = work(state);
            call.keep(state);
            outcome
        };
        let number = self.counts().begins(&call);
        let running = Running(self, Call { number, ..call });
        let mut rules = self.rule.subscribe();
        loop {
            let rule = Arc::clone(&rules.borrow_and_update());
            let sim_behaviour = rule.fate(&running.1);
            if !sim_behaviour.after.is_zero() {
                sleep(sim_behaviour.after).await;
            }
            let why = format!("{:?} was to fail", call.call_kind);
            match sim_behaviour.sim_result {
                SimResult::Well => return work(&mut self.state()),
                SimResult::Fails => return Err(refuse(why)),
                SimResult::FailsDone => return work(&mut self.state()).and(Err(refuse(why))),
                SimResult::HangsDone => {
                    let outcome = work(&mut self.state());
                    let _ = rules.changed().await;
                    return outcome;
                }
                // `self` owns the sender, so this cannot fail.
                SimResult::Hangs => drop(rules.changed().await),
            }
        }
    }
}
