//! Runs of one or two plans with a scripted step runner.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use model::admission::FaultDomain;
use model::domain::{Boot, DomainSpec};
use model::id::{Domid, SrId, Uuid, VbdId, VdiId, VmId};
use model::plan::{Deadlines, DiskState, DomainState, MachineOp, MachineState, Medium, Plan, plan};
use model::vbd::VbdKind;
use model::vdi::automaton::{Access, VolumeState};
use model::vm::PowerState;
use model::vm::exits::{ExitPolicy, OnCrash, OnExit};
use tokio::time::{Instant, sleep};

use super::*;

const START: MachineOp = MachineOp::Start { paused: false };

fn uuid(kind: u8, n: u8) -> Uuid {
    let mut bytes = [0; 16];
    (bytes[0], bytes[15]) = (kind, n);
    Uuid::from_random(bytes)
}

fn sr(n: u8) -> SrId {
    SrId(uuid(3, n))
}

fn vm(n: u8) -> VmId {
    VmId(uuid(9, n))
}

fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

/// Returns a halted machine with `disks` disks on SR `on`.
fn machine(disks: u8, on: u8) -> MachineState {
    let disk = |n| DiskState {
        vbd: VbdId(uuid(1, n)),
        kind: VbdKind::Disk,
        userdevice: n,
        medium: Some(Medium { vdi: VdiId(uuid(4, n)), sr: sr(on) }),
        access: Access::Rw,
        resets: false,
        volume: VolumeState::Detached,
        plugged: false,
        took: Duration::ZERO,
    };
    let boot = Boot::Firmware(Vec::new());
    let (shutdown, reboot) = (OnExit::Destroy, OnExit::Restart);
    MachineState {
        power: PowerState::Halted,
        domain: DomainState::Absent,
        fresh: Domid(7),
        spec: DomainSpec { memory_bytes: 256 << 20, vcpus: 1, boot, cds: Vec::new() },
        disks: (0..disks).map(disk).collect(),
        vifs: Vec::new(),
        after: ExitPolicy { shutdown, reboot, crash: OnCrash::Restart },
        deadlines: Deadlines::default(),
    }
}

fn start(disks: u8, on: u8) -> Plan {
    plan(&START, &machine(disks, on)).unwrap()
}

fn clean_shutdown(disks: u8, on: u8) -> Plan {
    let mut state = machine(disks, on);
    state.power = PowerState::Running;
    let run = model::plan::RunState::Running;
    state.domain = DomainState::Present { domid: Domid(3), run };
    plan(&MachineOp::CleanShutdown, &state).unwrap()
}

/// Duration of a step, and whether it succeeds.
type Script = Box<dyn Fn(StepAction) -> (Duration, bool) + Send + Sync>;

/// Scripted step runner that records its calls.
struct Doer {
    script: Script,
    began: Instant,
    begun: Mutex<Vec<(StepAction, Duration)>>,
    ended: Mutex<Vec<StepAction>>,
    effects: Mutex<Vec<Effect>>,
    progress: Mutex<Vec<f64>>,
    /// Time at which it received [`Progress::Committed`].
    committed: Mutex<Option<Duration>>,
    dropped: AtomicUsize,
}

/// Counter of calls that are dropped before they end.
struct Call<'a>(&'a Doer, bool);

impl Drop for Call<'_> {
    fn drop(&mut self) {
        self.0.dropped.fetch_add(usize::from(!self.1), Ordering::Relaxed);
    }
}

impl Doer {
    fn new(script: impl Fn(StepAction) -> (Duration, bool) + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self {
            script: Box::new(script),
            began: Instant::now(),
            begun: Mutex::default(),
            ended: Mutex::default(),
            effects: Mutex::default(),
            progress: Mutex::default(),
            committed: Mutex::default(),
            dropped: AtomicUsize::default(),
        })
    }

    fn begun(&self) -> Vec<(StepAction, Duration)> {
        self.begun.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the time at which it received [`Progress::Committed`].
    fn committed(&self) -> Option<Duration> {
        *self.committed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the start of the first step for which `is` returns true.
    fn at(&self, is: impl Fn(&StepAction) -> bool) -> Option<Duration> {
        self.begun().iter().find(|(verb, _)| is(verb)).map(|(_, at)| *at)
    }
}

/// Error of a scripted step.
#[derive(Debug)]
enum StepError {
    Late(StepTimeout),
    Scripted,
}

impl From<StepTimeout> for StepError {
    fn from(timeout: StepTimeout) -> Self {
        Self::Late(timeout)
    }
}

impl StepRunner for Doer {
    type Error = StepError;

    fn run_step(&self, verb: StepAction) -> BoxFuture<'_, Result<(), StepError>> {
        Box::pin(async move {
            self.begun.lock().unwrap().push((verb, self.began.elapsed()));
            let mut call = Call(self, false);
            let (takes, works) = (self.script)(verb);
            sleep(takes).await;
            call.1 = true;
            self.ended.lock().unwrap().push(verb);
            if works { Ok(()) } else { Err(StepError::Scripted) }
        })
    }

    fn abandon_step(&self, verb: StepAction) -> bool {
        matches!(verb, StepAction::VbdAttach(..))
    }

    fn record_effects(&self, effects: &[Effect]) {
        self.effects.lock().unwrap().extend_from_slice(effects);
    }

    fn progress(&self, now: Progress) {
        match now {
            Progress::Part(part) => self.progress.lock().unwrap().push(part),
            Progress::Committed => {
                let was = self.committed.lock().unwrap().replace(self.began.elapsed());
                assert_eq!(was, None, "told twice");
            }
        }
    }
}

fn is_attach(verb: &StepAction) -> bool {
    matches!(verb, StepAction::VbdAttach(..))
}

#[tokio::test(start_paused = true)]
async fn every_step_begins_when_those_before_it_have_ended_and_no_later() {
    let plan = start(5, 1);
    let takes = |verb: StepAction| match verb {
        StepAction::VbdAttach(VbdId(disk), _) => secs(u64::from(disk.bytes()[15]) % 2),
        StepAction::DomainCreate(_) => Duration::from_millis(300),
        _ => Duration::from_millis(1),
    };
    let doer = Doer::new(move |verb| (takes(verb), true));
    let executor = Executor::new(StepLimits::default());
    let plan_outcome = executor.run(plan.clone(), vm(1), doer.clone(), &CancelToken::new()).await;
    assert!(plan_outcome.failed.is_none() && !plan_outcome.cut);
    let began: BTreeMap<_, _> =
        doer.begun().into_iter().map(|(verb, at)| (format!("{verb:?}"), at)).collect();
    assert_eq!(began.len(), plan.steps().len());
    for step in plan.steps() {
        let before = step.after.iter().map(|id| plan.steps()[id.index()].verb);
        let ready = before.map(|verb| began[&format!("{verb:?}")] + takes(verb)).max();
        assert_eq!(began[&format!("{:?}", step.verb)], ready.unwrap_or_default(), "{step:?}");
    }
    let effects = doer.effects.lock().unwrap();
    let all: usize = plan.steps().iter().map(|step| step.then.len()).sum();
    assert_eq!(effects.len(), all);
    let progress = doer.progress.lock().unwrap();
    assert!(progress.is_sorted() && progress.last() == Some(&1.0), "{progress:?}");
    assert_eq!(executor.marks().lanes, BTreeMap::new());
}

#[tokio::test(start_paused = true)]
async fn after_a_failure_what_runs_ends_and_nothing_else_begins() {
    let fails = VbdId(uuid(1, 0));
    let doer = Doer::new(move |verb| match verb {
        StepAction::VbdAttach(vbd, _) => (secs(if vbd == fails { 1 } else { 2 }), vbd != fails),
        _ => (Duration::ZERO, true),
    });
    let executor = Executor::new(StepLimits { machine: 3, ..StepLimits::default() });
    let plan_outcome = executor.run(start(5, 1), vm(1), doer.clone(), &CancelToken::new()).await;
    let Some((StepAction::VbdAttach(vbd, _), StepError::Scripted)) = plan_outcome.failed else {
        panic!()
    };
    assert_eq!((vbd, plan_outcome.cut), (fails, false));
    assert_eq!(doer.began.elapsed(), secs(2), "those that ran have ended");
    assert_eq!(doer.begun().iter().filter(|(verb, _)| is_attach(verb)).count(), 3);
    assert_eq!(doer.dropped.load(Ordering::Relaxed), 0);
    assert!(doer.at(|verb| *verb == StepAction::DomainRun).is_none());
    assert!(doer.at(|verb| matches!(verb, StepAction::VbdActivate(_))).is_none());
    let effects = doer.effects.lock().unwrap();
    assert!(effects.contains(&Effect::Volume(fails, VolumeState::Detached)), "{effects:?}");
    let other = Effect::Volume(VbdId(uuid(1, 1)), VolumeState::Attached(Access::Rw));
    assert!(effects.contains(&other), "{effects:?}");
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_left_holds_its_slot_until_it_ends() {
    let doer = Doer::new(|verb| (secs(if is_attach(&verb) { 100 } else { 0 }), true));
    let executor = Executor::new(StepLimits::default());
    let plan_outcome = executor.run(start(1, 1), vm(1), doer.clone(), &CancelToken::new()).await;
    let Some((StepAction::VbdAttach(..), StepError::Late(StepTimeout { after }))) =
        plan_outcome.failed
    else {
        panic!()
    };
    assert_eq!((after, doer.began.elapsed()), (secs(60), secs(60)));
    assert_eq!(doer.dropped.load(Ordering::Relaxed), 0);
    let lane = executor.marks().lanes[&FaultDomain::Sr(sr(1))];
    assert_eq!((lane.running, lane.stuck), (1, 1));
    sleep(secs(41)).await;
    assert!(doer.ended.lock().unwrap().iter().any(is_attach));
    assert_eq!(executor.marks().lanes, BTreeMap::new());
}

#[tokio::test(start_paused = true)]
async fn a_call_that_may_be_dropped_is() {
    let doer = Doer::new(|verb| (secs(if verb == StepAction::DomainRun { 100 } else { 0 }), true));
    let executor = Executor::new(StepLimits::default());
    let plan_outcome = executor.run(start(1, 1), vm(1), doer.clone(), &CancelToken::new()).await;
    assert!(matches!(plan_outcome.failed, Some((StepAction::DomainRun, StepError::Late(_)))));
    assert_eq!(doer.began.elapsed(), secs(30));
    sleep(secs(1)).await;
    assert_eq!(doer.dropped.load(Ordering::Relaxed), 1);
}

#[tokio::test(start_paused = true)]
async fn a_step_that_gets_no_slot_ends_at_its_deadline_too() {
    let executor = Arc::new(Executor::new(StepLimits { sr: 1, ..StepLimits::default() }));
    let hangs = Doer::new(|verb| (secs(if is_attach(&verb) { 3600 } else { 0 }), true));
    let (other, by) = (Arc::clone(&executor), hangs.clone());
    tokio::spawn(async move { other.run(start(1, 1), vm(1), by, &CancelToken::new()).await });
    sleep(secs(10)).await;
    let waits = Doer::new(|_| (Duration::ZERO, true));
    let plan_outcome = executor.run(start(1, 1), vm(2), waits.clone(), &CancelToken::new()).await;
    assert!(matches!(plan_outcome.failed, Some((StepAction::VbdAttach(..), StepError::Late(_)))));
    assert_eq!(waits.began.elapsed(), secs(60));
    assert!(waits.at(is_attach).is_none());
}

#[tokio::test(start_paused = true)]
async fn a_slot_is_looked_at_when_a_step_becomes_stuck() {
    let limits = StepLimits { host: 1, reserve: 0, ..StepLimits::default() };
    let executor = Arc::new(Executor::new(limits));
    let hangs = Doer::new(|verb| (secs(if is_attach(&verb) { 3600 } else { 0 }), true));
    let (other, by) = (Arc::clone(&executor), hangs.clone());
    tokio::spawn(async move { other.run(start(1, 1), vm(1), by, &CancelToken::new()).await });
    tokio::task::yield_now().await;
    sleep(Duration::from_millis(500)).await;
    let waits = Doer::new(|_| (Duration::ZERO, true));
    let plan_outcome = executor.run(start(1, 2), vm(2), waits.clone(), &CancelToken::new()).await;
    assert!(plan_outcome.failed.is_none());
    let waited = waits.at(is_attach).unwrap();
    assert_eq!(waited, limits.stuck - Duration::from_millis(500));
    // With a lower limit, the present age counts at once.
    let early = StepLimits { stuck: Duration::from_millis(100), ..limits };
    let (other, by) = (Arc::clone(&executor), hangs.clone());
    tokio::spawn(async move { other.run(start(1, 3), vm(3), by, &CancelToken::new()).await });
    sleep(Duration::from_millis(200)).await;
    let waits = Doer::new(|_| (Duration::ZERO, true));
    let cancel = CancelToken::new();
    let run = executor.run(start(1, 2), vm(2), waits.clone(), &cancel);
    let lower = async {
        sleep(Duration::from_millis(1)).await;
        executor.set_limits(early);
    };
    assert!(tokio::join!(run, lower).0.failed.is_none());
    assert_eq!(waits.at(is_attach), Some(Duration::from_millis(1)));
}

#[tokio::test(start_paused = true)]
async fn a_cancel_ends_a_wait_for_the_guest_and_lets_the_rest_end() {
    let plan = clean_shutdown(1, 1);
    let doer =
        Doer::new(|verb| (secs(if verb == StepAction::DomainAwaitEnd { 600 } else { 0 }), true));
    let (executor, cancel) = (Executor::new(StepLimits::default()), CancelToken::new());
    let cancelled = async {
        sleep(secs(5)).await;
        cancel.cancel();
    };
    let plan_outcome = tokio::join!(executor.run(plan, vm(1), doer.clone(), &cancel), cancelled).0;
    assert!(plan_outcome.cut && plan_outcome.failed.is_none());
    assert_eq!(doer.began.elapsed(), secs(5));
    assert!(doer.at(|verb| *verb == StepAction::DomainKill).is_none());
    assert_eq!(doer.committed(), None);
    // A cancel after the last cancellable step changes nothing.
    let doer = Doer::new(|verb| (secs(u64::from(verb == StepAction::DomainRun)), true));
    let cancel = CancelToken::new();
    let cancelled = async {
        sleep(Duration::from_millis(500)).await;
        cancel.cancel();
    };
    let run = executor.run(start(1, 1), vm(1), doer.clone(), &cancel);
    let plan_outcome = tokio::join!(run, cancelled).0;
    assert!(!plan_outcome.cut && plan_outcome.failed.is_none());
}

#[tokio::test(start_paused = true)]
async fn it_is_told_from_when_on_a_cancel_changes_nothing() {
    let executor = Executor::new(StepLimits::default());
    let run = async |plan, doer: &Arc<Doer>| {
        executor.run(plan, vm(1), doer.clone(), &CancelToken::new()).await.failed.is_none()
    };
    // The last step of a machine's start runs from this time on.
    let doer = Doer::new(|verb| (secs(if is_attach(&verb) { 3 } else { 1 }), true));
    assert!(run(start(2, 1), &doer).await);
    let last = doer.at(|verb| *verb == StepAction::DomainRun);
    assert!(doer.committed() >= Some(secs(3)) && doer.committed() == last, "{last:?}");
    // The guest has ended at this time.
    let doer =
        Doer::new(|verb| (secs(if verb == StepAction::DomainAwaitEnd { 600 } else { 1 }), true));
    assert!(run(clean_shutdown(2, 1), &doer).await);
    let waited = doer.at(|verb| *verb == StepAction::DomainAwaitEnd).unwrap();
    assert_eq!(doer.committed(), Some(waited + secs(600)));
    assert!(doer.began.elapsed() > waited + secs(600));
    // A failed plan does not report it: its caller may retry in another way.
    let doer = Doer::new(|verb| (secs(1), verb != StepAction::DomainAwaitEnd));
    assert!(!run(clean_shutdown(2, 1), &doer).await);
    assert_eq!(doer.committed(), None);
}

#[tokio::test(start_paused = true)]
async fn what_is_overtaken_is_left_after_a_grace() {
    let doer = Doer::new(|verb| (secs(if is_attach(&verb) { 30 } else { 20 }), true));
    let (executor, cancel) = (Executor::new(StepLimits::default()), CancelToken::new());
    let overtaken = async {
        sleep(secs(25)).await;
        cancel.preempt();
    };
    let run = executor.run(start(1, 1), vm(1), doer.clone(), &cancel);
    let plan_outcome = tokio::join!(run, overtaken).0;
    assert!(plan_outcome.cut);
    assert_eq!(doer.began.elapsed(), secs(25) + PREEMPT_GRACE);
    sleep(secs(60)).await;
    // The attach call continued alone. The domain call, which may be dropped, did not.
    assert!(doer.ended.lock().unwrap().iter().any(is_attach));
    assert_eq!(doer.dropped.load(Ordering::Relaxed), 1);
}
