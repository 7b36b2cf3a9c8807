//! The process that serves is killed under load, again and again, and the guest sees a pause.
#![allow(clippy::unwrap_used)] // A failed helper is a failed test.

use std::time::{Duration, Instant};

use testkit::lasting::{End, Lasting, Random, Shape};
use testkit::process::Backend;

/// Longest life of a process, in microseconds: long enough for many batches, short enough for
/// many lives.
const LIFE_US_MAX: u64 = 12_000;

/// A restart of a few milliseconds took this long at most, with all CPUs taken by other tests.
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// Deaths of each kind of process, divided among its shapes.
fn deaths() -> usize {
    testkit::rounds(200, 10_000)
}

fn seed(number: u64) -> u64 {
    if std::env::var_os("RINGWAY_SOAK").is_none() {
        return number;
    }
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    now.as_nanos() as u64 ^ number
}

/// One in so many lives ends while its front-end introduces itself, after so many microseconds.
const YOUNG: u64 = 8;
const YOUNG_US_MAX: u64 = 3_000;

fn percentile(times: &[Duration], share: f64) -> Duration {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    let at = (sorted.len() as f64 * share) as usize;
    sorted.get(at.min(sorted.len().saturating_sub(1))).copied().unwrap_or_default()
}

fn report(name: &str, guest: &Lasting) {
    let tally = guest.tally();
    let (pauses, outages) = (&tally.pauses, &tally.outages);
    println!(
        "{name}: {} requests, {} reads compared, {} survived a death; pause p50 {:?} p99 {:?} max {:?}; \
         outage p50 {:?} p99 {:?}",
        tally.completed,
        tally.compared,
        tally.survived,
        percentile(pauses, 0.5),
        percentile(pauses, 0.99),
        percentile(pauses, 1.0),
        percentile(outages, 0.5),
        percentile(outages, 0.99),
    );
    assert!(percentile(pauses, 0.99) < PAUSE_MAX);
}

fn kill_ringway_blk(name: &str, deaths: usize, shape: Shape, options: &[&str]) {
    let image = tempfile::NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    image.as_file().set_len(16 << 20).unwrap();
    let queues = shape.queues.to_string();
    let mut all = vec!["--blk-file", image.path().to_str().unwrap(), "--num-queues", &queues];
    all.extend(options);
    let mut backend = Backend::ringway_blk(&all).unwrap();
    let mut random = Random::new(shape.seed);
    println!("{name}: seed {}", shape.seed);
    let mut guest = Lasting::connect(backend.socket(), shape).unwrap();
    for death in 0..deaths {
        let life = Duration::from_micros(random.below(LIFE_US_MAX));
        let end = guest.run(Instant::now() + life);
        let end = end.unwrap_or_else(|error| panic!("{name}, death {death}: {error}"));
        assert_eq!(end, End::Time, "{}", backend.process.error("left by itself"));
        if death % 2 == 1 {
            guest.run_to_completion(Instant::now() + life).unwrap();
        }
        backend.process.signal(rustix::process::Signal::KILL).unwrap();
        // The guest does not know yet.
        let until = Instant::now() + Duration::from_secs(20);
        let end = guest.run(until);
        let end = end.unwrap_or_else(|error| panic!("{name}, death {death}: {error}"));
        assert_eq!(end, End::Closed);
        backend.process.kill().unwrap();
        guest.offer().unwrap();
        backend.start_again().unwrap();
        if random.below(YOUNG) == 0 {
            let life = Duration::from_micros(random.below(YOUNG_US_MAX));
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    std::thread::sleep(life);
                    backend.process.signal(rustix::process::Signal::KILL).unwrap();
                });
                if let Err(error) = guest.reconnect() {
                    assert!(error.is_hang_up(), "{error}");
                }
            });
            backend.process.kill().unwrap();
            backend.start_again().unwrap();
        }
        guest.reconnect().unwrap();
    }
    let end = guest.finish();
    end.unwrap_or_else(|error| panic!("{name}, at the end: {error}"));
    report(name, &guest);
}

#[test]
fn a_file_disk_is_killed_under_load() {
    let deaths = deaths() / 4;
    let deep = Shape { queues: 4, depth: 128, seed: seed(1), ..Shape::default() };
    kill_ringway_blk("4 queues of 128", deaths, deep, &[]);
    let cached = Shape { queues: 2, depth: 32, seed: seed(2), ..Shape::default() };
    kill_ringway_blk("2 queues of 32, cached", deaths, cached, &["--cache", "writeback"]);
    let flags = Shape { depth: 8, event_idx: false, seed: seed(3), ..Shape::default() };
    kill_ringway_blk("1 queue of 8, flags", deaths, flags, &[]);
    let one = Shape { depth: 1, queue_size: 4, seed: seed(4), ..Shape::default() };
    kill_ringway_blk("1 queue of 1", deaths, one, &["--cache", "writeback"]);
}
