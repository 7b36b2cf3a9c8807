//! Traces of waits that drive a window as a reactor does.

use super::{PollWindow, WaitSample, WindowSettings, WindowVerdict};

/// Cost of a wake-up in these traces: a wait that was slept through ends that much later.
const WAKE_NS: u64 = 30_000;

/// xorshift64*: the traces are the same in every run.
struct Random(u64);

impl Random {
    fn unit(&mut self) -> f64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        ((self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) as f64 + 1.0) / (1u64 << 53) as f64
    }

    fn exponential(&mut self, mean_ns: f64) -> u64 {
        (-self.unit().ln() * mean_ns) as u64
    }
}

/// Result of a trace.
#[derive(Debug, Default)]
struct Outcome {
    waits: u64,
    hits: u64,
    spun_ns: u64,
    time_ns: u64,
}

impl Outcome {
    fn hit_share(&self) -> f64 {
        self.hits as f64 / self.waits as f64
    }

    /// Returns the share of a CPU that was spent spinning.
    fn burnt(&self) -> f64 {
        self.spun_ns as f64 / self.time_ns as f64
    }
}

fn drive(window: &mut PollWindow, gaps: impl Iterator<Item = u64>) -> Outcome {
    let mut outcome = Outcome::default();
    for gap in gaps {
        let spin = window.spin_ns();
        let hit = gap <= spin;
        let took_ns = if hit { gap } else { gap + WAKE_NS };
        let spun_ns = if hit { gap.max(1) } else { spin };
        window.ended(WaitSample { took_ns, spun_ns, woken_ns: WAKE_NS });
        outcome.waits += 1;
        outcome.hits += u64::from(hit);
        outcome.spun_ns += gap.min(spin);
        outcome.time_ns += took_ns;
    }
    outcome
}

fn fresh() -> PollWindow {
    PollWindow::new(WindowSettings::default())
}

#[test]
fn steady_waits_are_spun_through() {
    for gap in [0, 200, 1_000, 10_000, 50_000, 80_000] {
        let mut window = fresh();
        let outcome = drive(&mut window, std::iter::repeat_n(gap, 10_000));
        assert!(outcome.hit_share() > 0.99, "{gap}: {outcome:?}");
        assert_eq!(window.verdict(), WindowVerdict::Pays);
    }
}

#[test]
fn waits_that_vary_around_a_mean_are_too() {
    let mut random = Random(1);
    let gaps = (0..10_000).map(|_| 30_000 + random.exponential(20_000.0));
    let outcome = drive(&mut fresh(), gaps);
    assert!(outcome.hit_share() > 0.9, "{outcome:?}");
}

#[test]
fn long_waits_cost_next_to_nothing() {
    for gap in [150_000, 1_000_000, 10_000_000] {
        let mut window = fresh();
        let outcome = drive(&mut window, std::iter::repeat_n(gap, 20_000));
        assert_eq!(outcome.hits, 0);
        assert!(outcome.burnt() < 0.01, "{gap}: {outcome:?}");
    }
}

#[test]
fn arrivals_at_random_are_spun_for_when_they_come_often() {
    let mut random = Random(2);
    let outcome = drive(&mut fresh(), (0..50_000).map(|_| random.exponential(20_000.0)));
    assert!(outcome.hit_share() > 0.95, "{outcome:?}");
}

#[test]
fn arrivals_at_random_are_slept_for_when_they_come_seldom() {
    for seed in 1..20 {
        let mut random = Random(seed);
        let outcome = drive(&mut fresh(), (0..50_000).map(|_| random.exponential(200_000.0)));
        assert!(outcome.burnt() < 0.005, "{seed}: {outcome:?}");
        // The probes until then cost little.
        let begin = drive(&mut fresh(), (0..2_000).map(|_| random.exponential(200_000.0)));
        assert!(begin.burnt() < 0.01, "{seed}: {begin:?}");
    }
}

#[test]
fn a_wake_up_that_takes_longer_than_is_known_does_not_hide_what_pays() {
    let mut window = fresh();
    let mut waits = 0;
    while window.verdict() != WindowVerdict::Pays {
        // Each wait of 10 us ends 300 us late, and the window does not know that.
        let spun_ns = window.spin_ns();
        let took_ns = if spun_ns > 0 { 10_000 } else { 310_000 };
        window.ended(WaitSample { took_ns, spun_ns, woken_ns: 0 });
        waits += 1;
        assert!(waits < 2_000);
    }
}

#[test]
fn what_is_seldom_used_is_not_spun_for() {
    // A few requests at a time, seconds apart: an idle disk.
    let gaps = (0..160).map(|at| if at % 16 == 15 { 5_000_000_000 } else { 300_000 });
    assert_eq!(drive(&mut fresh(), gaps).spun_ns, 0);
}

#[test]
fn of_bursts_the_gaps_are_spun_and_the_pauses_are_not() {
    let mut window = fresh();
    let gaps = (0..50_000).map(|i| if i % 20 == 19 { 5_000_000 } else { 4_000 });
    let outcome = drive(&mut window, gaps);
    assert!(outcome.hit_share() > 0.9, "{outcome:?}");
    let per_pause = outcome.spun_ns / (outcome.waits / 20);
    assert!(per_pause < 20 * 4_000 + 20_000, "{per_pause} ns a burst");
}

#[test]
fn a_trace_that_changes_is_followed() {
    let mut window = fresh();
    for _ in 0..3 {
        let idle = drive(&mut window, std::iter::repeat_n(2_000_000, 2_000));
        assert!(idle.burnt() < 0.01, "{idle:?}");
        let busy = drive(&mut window, std::iter::repeat_n(5_000, 20_000));
        assert!(busy.hit_share() > 0.85, "{busy:?}");
    }
}

#[test]
fn settings_rule() {
    let mut window = PollWindow::new(WindowSettings { max_ns: 0 });
    let outcome = drive(&mut window, std::iter::repeat_n(100, 1_000));
    assert_eq!((outcome.spun_ns, window.verdict()), (0, WindowVerdict::Off));
    window.set(WindowSettings { max_ns: 20_000 });
    let short = drive(&mut window, std::iter::repeat_n(10_000, 1_000));
    assert!(short.hit_share() > 0.96, "{short:?}");
    window.set(WindowSettings { max_ns: u64::MAX });
    let long = drive(&mut window, std::iter::repeat_n(10_000_000, 1_000));
    assert!(long.hit_share() > 0.9, "{long:?}");
    window.set(WindowSettings { max_ns: 5_000 });
    assert!(drive(&mut window, std::iter::repeat_n(10_000, 1_000)).hits == 0);
}

#[test]
fn waits_that_no_guard_let_spin_teach_nothing() {
    let mut window = fresh();
    drive(&mut window, std::iter::repeat_n(10_000, 32));
    assert_eq!(window.verdict(), WindowVerdict::Probing);
    for _ in 0..1_000 {
        window.ended(WaitSample { took_ns: 1_000_000, spun_ns: 0, woken_ns: 0 });
    }
    assert_eq!(window.verdict(), WindowVerdict::Probing);
    // A clock that jumps produces a wait of the largest duration.
    window.ended(WaitSample { took_ns: u64::MAX, spun_ns: u64::MAX, woken_ns: u64::MAX });
}

#[test]
fn no_trace_makes_a_hit_dearer_than_it_may_be() {
    // Random mixtures: the allowed cost of the hits, and a little for probes, bounds the time spun.
    for seed in 1..40 {
        let mut random = Random(seed);
        let (short, long) = (random.exponential(40_000.0), random.exponential(2_000_000.0));
        let share = random.unit();
        let gaps: Vec<_> = (0..20_000)
            .map(|_| {
                let mean = if random.unit() < share { short } else { long };
                random.exponential(mean as f64)
            })
            .collect();
        let outcome = drive(&mut fresh(), gaps.into_iter());
        let granted = outcome.hits as f64 * 128_000.0 * 1.1 + outcome.time_ns as f64 * 0.02;
        assert!((outcome.spun_ns as f64) < granted, "{seed} {short} {long} {share}: {outcome:?}");
    }
}
