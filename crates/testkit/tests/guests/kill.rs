//! The serving process is killed under load, many times, and the guest sees only pauses.
#![allow(clippy::unwrap_used)] // A failed helper is a failed test.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::victims::{RingwayBlk, RingwayIo, Supervised, Victim};
use testkit::is_soak;
use testkit::reconnecting::{End, Random, ReconnectingGuest, Shape};

/// Longest life of a process, in microseconds: long enough for many batches, short enough for many
/// lives.
const LIFE_US_MAX: u64 = 12_000;
/// One in this number of lives ends during the front-end's handshake, after at most this number of
/// microseconds.
const YOUNG: u64 = 8;
const YOUNG_US_MAX: u64 = 3_000;
/// Deadline for a guest to detect that its backend is dead.
const DEAD_AT: Duration = Duration::from_secs(20);

static ALONE: Mutex<()> = Mutex::new(());

/// Returns the number of deaths in all, divided among the shapes of load.
fn deaths() -> usize {
    testkit::rounds(200, 10_000)
}

/// Returns a seed. It is the same in each run, except for `make soak`.
fn seed(number: u64) -> u64 {
    if !is_soak() {
        return number;
    }
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    now.as_nanos() as u64 ^ number
}

fn percentile(times: &[Duration], share: f64) -> Duration {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    let at = (sorted.len() as f64 * share) as usize;
    sorted.get(at.min(sorted.len().saturating_sub(1))).copied().unwrap_or_default()
}

fn report(name: &str, guest: &ReconnectingGuest) {
    let tally = guest.tally();
    let times = |name, times: &[Duration]| {
        let [p50, p99, max] = [0.5, 0.99, 1.0].map(|share| percentile(times, share));
        format!("{name} p50 {p50:.1?} p99 {p99:.1?} max {max:.1?}")
    };
    let (pauses, outages) = (times("pause", &tally.pauses), times("outage", &tally.outages));
    println!(
        "{name}: {} requests, {} reads compared, {} were out at a death; {pauses}; {outages}",
        tally.completed, tally.compared, tally.survived,
    );
}

/// Runs the guest until `until`, with the process that serves.
fn work(guest: &mut ReconnectingGuest, victim: &mut dyn Victim, until: Instant) -> End {
    let end = guest.run(until);
    end.unwrap_or_else(|error| panic!("{error}; {}", victim.log()))
}

fn connect(guest: &mut ReconnectingGuest, victim: &mut dyn Victim) {
    let until = Instant::now() + DEAD_AT;
    while let Err(error) = guest.reconnect() {
        // The guest may have reached a process that was about to die.
        assert!(error.is_hang_up() && Instant::now() < until, "{error}; {}", victim.log());
    }
}

/// Runs the guest over one life of the process, and connects to the next.
fn one_life(guest: &mut ReconnectingGuest, victim: &mut dyn Victim, random: &mut Random) {
    let life = Duration::from_micros(random.below(LIFE_US_MAX));
    while work(guest, victim, Instant::now() + life) == End::Closed {
        connect(guest, victim);
    }
    if random.below(2) == 0 {
        // Kill the process while it handles completions.
        guest.run_to_completion(Instant::now() + life).unwrap();
    }
    victim.hunt().shoot();
    // The guest does not know yet, and continues.
    assert_eq!(work(guest, victim, Instant::now() + DEAD_AT), End::Closed);
    guest.offer().unwrap();
    victim.revive();
    if random.below(YOUNG) > 0 {
        return connect(guest, victim);
    }
    let (hunter, life) = (victim.hunt(), Duration::from_micros(random.below(YOUNG_US_MAX)));
    let connected = std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(life);
            hunter.shoot();
        });
        guest.reconnect()
    });
    if let Err(error) = connected {
        assert!(error.is_hang_up(), "{error}; {}", victim.log());
    }
    hunter.wait();
    victim.revive();
    // The guest may be connected to the old or the new process. Each serves one connection only.
    guest.hang_up();
    connect(guest, victim);
}

fn kill_under_load(name: &str, victim: &mut dyn Victim, deaths: usize, shape: Shape) {
    // One test at a time, because the load of another would change the measurement.
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    println!("{name}: seed {}", shape.seed);
    let mut random = Random::new(shape.seed);
    let mut guest = ReconnectingGuest::connect(victim.socket(), shape).unwrap();
    for _ in 0..deaths {
        one_life(&mut guest, victim, &mut random);
    }
    guest.finish().unwrap_or_else(|error| panic!("{name}, at the end: {error}"));
    report(name, &guest);
}

fn shape(queues: u16, depth: u16, number: u64) -> Shape {
    Shape { queues, depth, seed: seed(number), ..Shape::default() }
}

#[test]
fn a_file_disk_of_ringway_blk_is_killed_under_load() {
    let deaths = deaths() / 8;
    let mut victim = RingwayBlk::start(4, "none");
    kill_under_load("blk, 4 queues of 128, direct", &mut victim, deaths, shape(4, 128, 1));
    let mut victim = RingwayBlk::start(2, "writeback");
    kill_under_load("blk, 2 queues of 32, cached", &mut victim, deaths, shape(2, 32, 2));
    let mut victim = RingwayBlk::start(1, "none");
    let flags = Shape { event_idx: false, ..shape(1, 8, 3) };
    kill_under_load("blk, 1 queue of 8, no event index", &mut victim, deaths, flags);
    let mut victim = RingwayBlk::start(1, "writeback");
    let one = Shape { queue_size: 4, ..shape(1, 1, 4) };
    kill_under_load("blk, 1 queue of 1, cached", &mut victim, deaths, one);
}

#[test]
fn a_worker_is_killed_under_load_and_its_keeper_starts_another() {
    let deaths = deaths() / 8;
    let mut victim = RingwayIo::memory(4);
    kill_under_load("io, memory, 4 queues of 128", &mut victim, deaths, shape(4, 128, 5));
    let mut victim = RingwayIo::file(4, "none");
    kill_under_load("io, 4 queues of 64, direct", &mut victim, deaths, shape(4, 64, 6));
    let mut victim = RingwayIo::file(2, "writeback");
    kill_under_load("io, 2 queues of 32, cached", &mut victim, deaths, shape(2, 32, 7));
    let mut victim = Supervised::memory(1);
    let flags = Shape { event_idx: false, queue_size: 8, ..shape(1, 4, 8) };
    kill_under_load("blk --supervise, memory, 1 queue of 4", &mut victim, deaths, flags);
}
