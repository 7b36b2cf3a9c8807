use proptest::prelude::*;

use super::*;
use crate::id::Uuid;

fn uuid(n: u8) -> Uuid {
    Uuid::from_random([n; 16])
}

fn vm(n: u8) -> VmId {
    VmId(uuid(n))
}

fn on(sr: u8) -> Slots {
    Slots::Device { sr: SrId(uuid(sr)) }
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

const NOW: Duration = Duration::ZERO;

/// Makes `count` new steps ready, with keys from `first` on.
fn flood(admission: &mut Admission, first: u64, count: u64, machine: u8, slots: Slots) {
    for key in first..first + count {
        admission.ready(StepKey(key), vm(machine), slots, false);
    }
}

#[test]
fn a_machine_has_ten_an_sr_twelve_and_the_host_sixteen() {
    let mut one = Admission::default();
    flood(&mut one, 0, 255, 1, on(1));
    assert_eq!(one.next(NOW).len(), 10);
    flood(&mut one, 300, 50, 2, on(1));
    assert_eq!(one.next(NOW).len(), 2);
    // The reserve: two slots for each SR that comes after a busy one.
    flood(&mut one, 400, 50, 3, on(2));
    assert_eq!(one.next(NOW).len(), 2);
    flood(&mut one, 500, 50, 4, on(3));
    assert_eq!(one.next(NOW).len(), 2);
    flood(&mut one, 600, 50, 5, on(4));
    assert_eq!(one.next(NOW), []);
    let slot_usage = one.marks();
    assert_eq!((slot_usage.host, slot_usage.host_high), (16, 16));
    assert_eq!((slot_usage.machine_high, slot_usage.lane_high), (10, 12));
    let first = slot_usage.lanes[&FaultDomain::Sr(SrId(uuid(1)))];
    assert_eq!(first, FaultDomainUsage { running: 12, stuck: 0, waiting: 293 });
}

#[test]
fn a_third_sr_finds_room_whoever_came_first() {
    for order in [[1, 2], [2, 1]] {
        for at_once in [true, false] {
            let mut one = Admission::default();
            for (place, sr) in order.into_iter().enumerate() {
                for machine in 0..20 {
                    let key = 100 * u64::from(sr) + u64::from(machine);
                    one.ready(StepKey(key), vm(100 * sr + machine), on(sr), false);
                }
                if !at_once || place == 1 {
                    one.next(NOW);
                }
            }
            flood(&mut one, 1000, 8, 9, on(3));
            assert_eq!(one.next(NOW).len(), 2);
            // The SR answers and may take all free slots.
            one.done(StepKey(1000), NOW);
            one.done(StepKey(1001), NOW);
            let more = one.next(NOW);
            assert_eq!(more.len(), if at_once { 4 } else { 2 });
            more.into_iter().for_each(|key| one.done(key, NOW));
            // Two seconds later it has the whole host: stuck steps use only slots of their SR.
            one.next(ms(2000));
            assert_eq!(one.marks().lanes[&FaultDomain::Sr(SrId(uuid(3)))].waiting, 0);
            assert_eq!(one.marks().host, if at_once { 2 } else { 4 });
            assert_eq!(one.marks().lanes[&FaultDomain::Sr(SrId(uuid(1)))].waiting, 8);
        }
    }
}

#[test]
fn srs_that_answer_share_the_whole_host() {
    let mut one = Admission::default();
    for sr in 1..4 {
        flood(&mut one, 100 * u64::from(sr), 50, sr, on(sr));
    }
    let first = one.next(NOW);
    assert_eq!(first.len(), 12);
    first.into_iter().for_each(|key| one.done(key, NOW));
    assert_eq!(one.next(NOW).len(), 16);
}

#[test]
fn what_is_stuck_gives_its_place_back_and_keeps_its_sr() {
    let mut one = Admission::default();
    flood(&mut one, 0, 30, 1, on(1));
    assert_eq!(one.next(NOW).len(), 10);
    assert_eq!(one.wake_at(), Some(ms(2000)));
    assert_eq!(one.next(ms(1999)), []);
    assert_eq!(one.next(ms(2000)).len(), 2);
    let slot_usage = one.marks();
    assert_eq!(slot_usage.host, 0, "new steps of a hung SR take no host slot");
    assert_eq!(one.next(ms(9000)), [], "twelve hang, and no more");
    assert_eq!(one.wake_at(), None);
    // The SR recovers: everything is as before.
    for key in 0..12 {
        one.done(StepKey(key), NOW);
    }
    assert_eq!(one.next(ms(9000)).len(), 10);
    assert_eq!(one.marks().host, 10);
    for key in 12..30 {
        one.done(StepKey(key), NOW);
    }
    assert_eq!(one.marks().lanes.len(), 0);
    assert_eq!(one.marks().host, 0);
}

#[test]
fn a_lane_hangs_from_its_last_end_on_and_one_that_is_busy_does_not() {
    let mut one = Admission::default();
    flood(&mut one, 0, 30, 1, on(1));
    flood(&mut one, 100, 1, 2, on(2));
    flood(&mut one, 200, 1, 2, Slots::None);
    one.next(NOW);
    let since = |one: &Admission| [0, 29, 100, 200, 999].map(|key| one.hung_since(StepKey(key)));
    assert_eq!(since(&one), [None; 5], "a full lane is busy");
    one.done(StepKey(100), ms(1000));
    flood(&mut one, 100, 1, 2, on(2));
    one.next(ms(2000));
    assert_eq!(since(&one), [Some(NOW), Some(NOW), None, None, None]);
    // One step ends, and the SR hangs again at another disk.
    one.done(StepKey(1), ms(5000));
    assert_eq!(since(&one)[..2], [Some(ms(5000)); 2]);
    (2..10).for_each(|key| one.done(StepKey(key), ms(6000)));
    one.done(StepKey(0), ms(7000));
    assert_eq!(one.hung_since(StepKey(29)), None);
}

#[test]
fn begun_chains_go_first() {
    let mut one = Admission::new(StepLimits { machine: 1, ..StepLimits::default() });
    flood(&mut one, 0, 3, 1, on(1));
    assert_eq!(one.next(NOW), [StepKey(0)]);
    one.done(StepKey(0), NOW);
    one.ready(StepKey(9), vm(1), on(1), true);
    assert_eq!(one.next(NOW), [StepKey(9)]);
    one.done(StepKey(9), NOW);
    assert_eq!(one.next(NOW), [StepKey(1)]);
}

#[test]
fn srs_take_turns_and_machines_of_an_sr_do() {
    let mut one = Admission::new(StepLimits { host: 1, ..StepLimits::default() });
    flood(&mut one, 0, 4, 1, on(1));
    flood(&mut one, 10, 4, 2, on(1));
    flood(&mut one, 20, 4, 3, on(2));
    let mut order = Vec::new();
    while let [key] = one.next(NOW)[..] {
        one.done(key, NOW);
        order.push(key.0 / 10);
    }
    let second = order.iter().position(|which| *which == 2).unwrap();
    assert!(second < 2, "{order:?}");
    let first: Vec<_> = order.into_iter().filter(|which| *which < 2).collect();
    assert!(first == [0, 1, 0, 1, 0, 1, 0, 1] || first == [1, 0, 1, 0, 1, 0, 1, 0], "{first:?}");
}

#[test]
fn what_needs_no_slot_begins_at_once() {
    let mut one = Admission::new(StepLimits { host: 1, ..StepLimits::default() });
    flood(&mut one, 0, 2, 1, on(1));
    flood(&mut one, 5, 2, 1, Slots::None);
    assert_eq!(one.next(NOW), [StepKey(5), StepKey(6), StepKey(0)]);
    flood(&mut one, 7, 1, 1, Slots::None);
    one.done(StepKey(7), NOW);
    assert_eq!(one.next(NOW), [], "cancelled before it began");
    assert_eq!(one.marks().host_high, 1);
}

#[test]
fn who_waits_may_go() {
    let mut one = Admission::new(StepLimits { host: 1, ..StepLimits::default() });
    flood(&mut one, 0, 3, 1, on(1));
    assert_eq!(one.next(NOW), [StepKey(0)]);
    one.done(StepKey(1), NOW);
    one.done(StepKey(77), NOW);
    one.done(StepKey(0), NOW);
    one.done(StepKey(0), NOW);
    assert_eq!(one.next(NOW), [StepKey(2)]);
    assert_eq!(one.marks().host, 1);
}

#[test]
fn limits_change_while_steps_run() {
    let mut one = Admission::default();
    flood(&mut one, 0, 60, 1, on(1));
    one.next(NOW);
    let more = StepLimits { host: 64, machine: 40, sr: 40, ..StepLimits::default() };
    one.set(more);
    assert_eq!(one.next(NOW).len(), 30);
    one.set(StepLimits { machine: 2, ..more });
    for key in 0..38 {
        one.done(StepKey(key), NOW);
        assert_eq!(one.next(NOW), []);
    }
    one.done(StepKey(38), NOW);
    assert_eq!(one.next(NOW), [StepKey(40)]);
    // A step that is too old for the new limit is stuck at once.
    one.set(StepLimits { stuck: ms(500), ..more });
    assert_eq!(one.next(ms(700)).len(), 19);
    assert_eq!(one.marks().host, 0);
}

#[test]
fn limits_that_stop_everything_are_refused() {
    let good = StepLimits::default();
    assert_eq!(good.validate(), Ok(()));
    assert_eq!(StepLimits { reserve: 0, ..good }.validate(), Ok(()));
    for (bad, field) in [
        (StepLimits { host: 0, ..good }, "limits.host"),
        (StepLimits { machine: 0, ..good }, "limits.machine"),
        (StepLimits { sr: MAX_STEPS + 1, ..good }, "limits.sr"),
        (StepLimits { reserve: MAX_STEPS + 1, ..good }, "limits.reserve"),
        (StepLimits { stuck: ms(99), ..good }, "limits.stuck"),
        (StepLimits { stuck: ms(60_001), ..good }, "limits.stuck"),
    ] {
        assert_eq!(bad.validate().unwrap_err().field, field);
    }
    // The default reserve does not block a small pool.
    for host in 1..=16 {
        let mut one = Admission::new(StepLimits { host, ..good });
        flood(&mut one, 0, 50, 1, on(1));
        assert!(one.next(NOW).len() * 4 >= usize::from(host) * 2, "{host}");
    }
}

/// Second implementation of the rules, which counts a list of steps anew.
struct Ledger {
    limits: StepLimits,
    alive: BTreeSet<FaultDomain>,
    steps: Vec<Entry>,
}

struct Entry {
    key: StepKey,
    vm: VmId,
    fault_domain: FaultDomain,
    begun: bool,
    runs: Option<Run>,
}

struct Run {
    since: Duration,
    host: bool,
    stuck: bool,
}

impl Ledger {
    fn count(&self, which: impl Fn(&Entry, &Run) -> bool) -> u16 {
        let runs = |step: &&Entry| step.runs.as_ref().is_some_and(|run| which(step, run));
        u16::try_from(self.steps.iter().filter(runs).count()).unwrap()
    }

    fn may_begin(&self, step: &Entry) -> bool {
        let StepLimits { host, machine, sr, .. } = self.limits;
        let lane = |one: &Entry| one.fault_domain == step.fault_domain;
        let all = self.count(|_, run| run.host && !run.stuck);
        let kept = self.limits.reserve.min(host / 4);
        let of_lane = self.count(|one, run| lane(one) && run.host && !run.stuck);
        let room = if all < host.saturating_sub(kept) {
            true
        } else {
            all < host && (of_lane < kept.div_ceil(2) || self.alive.contains(&step.fault_domain))
        };
        self.count(|one, run| one.vm == step.vm && !run.stuck) < machine
            && self.count(|one, _| lane(one)) < sr
            && (room || self.count(|one, run| lane(one) && run.stuck) > 0)
    }

    fn grow_old(&mut self, now: Duration) {
        for step in &mut self.steps {
            if let Some(run) = step.runs.as_mut()
                && !run.stuck
                && now - run.since >= self.limits.stuck
            {
                run.stuck = true;
                self.alive.remove(&step.fault_domain);
            }
        }
    }

    fn end(&mut self, at: usize) -> StepKey {
        let step = self.steps.remove(at);
        if step.runs.is_some_and(|run| !run.stuck) {
            self.alive.insert(step.fault_domain);
        }
        if !self.steps.iter().any(|one| one.fault_domain == step.fault_domain) {
            self.alive.remove(&step.fault_domain);
        }
        step.key
    }

    fn begin(&mut self, key: StepKey, now: Duration) {
        let at = self.steps.iter().position(|step| step.key == key).unwrap();
        let step = &self.steps[at];
        assert!(step.runs.is_none(), "{key:?} began twice");
        assert!(self.may_begin(step), "{key:?} passes a limit");
        let before = |one: &&Entry| one.vm == step.vm && one.fault_domain == step.fault_domain;
        let first = self.steps.iter().filter(before).find(|one| one.runs.is_none() && one.begun);
        assert!(step.begun || first.is_none(), "{key:?} is new, and a begun one waits");
        let host = self.count(|one, run| one.fault_domain == step.fault_domain && run.stuck) == 0;
        self.steps[at].runs = Some(Run { since: now, host, stuck: false });
    }
}

#[derive(Clone, Debug)]
enum Event {
    Ready { vm: u8, lane: u8, begun: bool },
    Done(prop::sample::Index),
    Pass(u64),
    Set(StepLimits),
}

fn limits() -> impl Strategy<Value = StepLimits> {
    (1..24_u16, 1..12_u16, 1..14_u16, 0..8_u16, 100..3000_u64).prop_map(
        |(host, machine, sr, reserve, stuck)| StepLimits {
            host,
            machine,
            sr,
            reserve,
            stuck: ms(stuck),
            ..StepLimits::default()
        },
    )
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        8 => (0..5_u8, 0..4_u8, any::<bool>())
            .prop_map(|(vm, lane, begun)| Event::Ready { vm, lane, begun }),
        6 => any::<prop::sample::Index>().prop_map(Event::Done),
        2 => (0..2500_u64).prop_map(Event::Pass),
        1 => limits().prop_map(Event::Set),
    ]
}

proptest! {
    /// No sequence of events exceeds a limit, and every step that may run does.
    #[test]
    fn limits_hold_and_nobody_idles(start in limits(), events in prop::collection::vec(event(), 1..200)) {
        let mut admission = Admission::new(start);
        let mut ledger = Ledger { limits: start, alive: BTreeSet::new(), steps: Vec::new() };
        let mut now = Duration::ZERO;
        for (number, event) in (0..).zip(events) {
            match event {
                Event::Ready { vm: machine, lane, begun } => {
                    let slots = if lane == 0 { Slots::Network } else { on(lane) };
                    admission.ready(StepKey(number), vm(machine), slots, begun);
                    let (key, vm) = (StepKey(number), vm(machine));
                    let fault_domain = slots.lane().unwrap();
                    ledger.steps.push(Entry { key, vm, fault_domain, begun, runs: None });
                }
                Event::Done(which) if !ledger.steps.is_empty() => {
                    let at = which.index(ledger.steps.len());
                    admission.done(ledger.end(at), now);
                }
                Event::Done(_) => {}
                Event::Pass(more) => now += ms(more),
                Event::Set(limits) => {
                    admission.set(limits);
                    ledger.limits = limits;
                }
            }
            ledger.grow_old(now);
            for key in admission.next(now) {
                ledger.begin(key, now);
            }
            for step in ledger.steps.iter().filter(|step| step.runs.is_none()) {
                prop_assert!(!ledger.may_begin(step), "{:?} waits for nothing", step.key);
            }
            prop_assert_eq!(admission.marks().host, ledger.count(|_, run| run.host && !run.stuck));
            let young = ledger.steps.iter().filter_map(|step| step.runs.as_ref());
            let oldest = young.filter(|run| !run.stuck).map(|run| run.since).min();
            prop_assert_eq!(admission.wake_at(), oldest.map(|since| since + ledger.limits.stuck));
        }
        for step in std::mem::take(&mut ledger.steps) {
            admission.done(step.key, now);
        }
        prop_assert_eq!(admission.marks().host, 0);
        prop_assert!(admission.marks().lanes.is_empty() && admission.machines.is_empty());
    }

    /// A machine that asks once gets its turn among machines that always ask.
    #[test]
    fn nobody_starves(
        greedy in 1..20_u8, lanes in 1..4_u8, chain in 1..4_u64,
        comes in 0..100_usize, lane in 0..4_u8, pick in prop::collection::vec(any::<u16>(), 1..64),
    ) {
        let mut admission = Admission::default();
        let (mut keys, mut runs) = (0, Vec::new());
        let mut fresh = |admission: &mut Admission, machine: u8, step: u64| {
            keys += 1;
            let slots = on(machine % lanes);
            admission.ready(StepKey(keys << 16 | u64::from(machine) << 8 | step), vm(machine), slots, step > 0);
        };
        for machine in 0..greedy {
            for _ in 0..20 {
                fresh(&mut admission, machine, 0);
            }
        }
        let newcomer = StepKey(0);
        let mut waited = 0;
        for turn in 0.. {
            if turn == comes {
                admission.ready(newcomer, vm(200), on(lane), false);
            }
            let begun = admission.next(NOW);
            if begun.contains(&newcomer) {
                break;
            }
            waited += if turn >= comes { begun.len() } else { 0 };
            runs.extend(begun);
            // One of the oldest steps ends; no step runs forever.
            let any = usize::from(pick[turn % pick.len()]) % runs.len().min(4);
            let StepKey(key) = runs.remove(if turn % 3 == 0 { 0 } else { any });
            admission.done(StepKey(key), NOW);
            let (machine, step) = (u8::try_from(key >> 8 & 0xff).unwrap(), key & 0xff);
            // The machine continues its chain, or begins another one.
            fresh(&mut admission, machine, (step + 1) % chain);
            // Begun chains finish first; then each machine of each fault domain has a turn.
            let turns = u64::from(lanes + 1) * (u64::from(greedy) + 16) * chain;
            prop_assert!(waited as u64 <= turns, "{waited} others began before it");
        }
    }
}
