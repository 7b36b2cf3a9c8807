//! What is called, and what becomes of it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use model::id::{SrId, Uuid, VmId};
use serde::Deserialize;
use tokio::time::sleep;

use super::{Sim, State};

/// A call of a driver, or what a guest does.
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
    /// How long a guest takes until it has done what it was asked for; one that hangs never does.
    Guest,
    /// What the guest's agent tells.
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
    AttachVolume,
    ActivateVolume,
    DeactivateVolume,
    DetachVolume,
    AttachedVolumes,
    Attach,
    Activate,
    Deactivate,
    Detach,
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

/// One call.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// What is called.
    pub call_kind: CallKind,
    /// For which machine, if the driver is told.
    pub vm: Option<VmId>,
    /// On which SR.
    pub sr: Option<SrId>,
    /// For which disk, slot or interface.
    pub device: Option<Uuid>,
    /// Which of all calls it is, from 0 on; `u64::MAX` for those that change nothing, which are
    /// not counted, and for what a guest does.
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

    /// Keeps what it may have changed. Names of networks are known to their driver alone.
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

/// How a call ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SimResult {
    /// It is done, and says so.
    #[default]
    Well,
    /// Nothing is done, and it fails.
    Fails,
    /// It is done, and fails all the same.
    FailsDone,
    /// Nothing is done and nothing is answered until another rule is set.
    Hangs,
    /// It is done, and nothing is answered until another rule is set.
    HangsDone,
}

/// What becomes of a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SimBehaviour {
    /// After so long.
    pub after: Duration,
    /// How it ends.
    pub sim_result: SimResult,
}

impl SimBehaviour {
    /// It works, and takes so long.
    pub fn takes(after: Duration) -> Self {
        Self { after, sim_result: SimResult::Well }
    }

    /// It ends like this, at once.
    pub fn ends(sim_result: SimResult) -> Self {
        Self { after: Duration::ZERO, sim_result }
    }
}

/// Says what becomes of each call.
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

/// How many calls there were.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SimMarks {
    /// Calls in all.
    pub calls: u64,
    /// Most calls for volumes and disks at once.
    pub storage_high: usize,
    /// Most of them at once on each SR.
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

/// Whether the call could change something; what a guest does is no call.
fn is_counted(call_kind: CallKind) -> bool {
    use CallKind::{Agent, AttachedVolumes, Find, Guest, Stats};
    !matches!(call_kind, Find | Stats | AttachedVolumes | Guest | Agent)
}

/// Whether the call is part of a step that takes slots.
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

/// A call that runs.
struct Running<'a>(&'a Sim, Call);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.counts().ends(&self.1);
    }
}

impl Sim {
    /// Carries out a call as its fate is. `refuse` makes the error of one that is to fail.
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
                // The sender is in `self`, so this cannot fail.
                SimResult::Hangs => drop(rules.changed().await),
            }
        }
    }
}
