//! The serving process is killed under load, many times, and the guest sees only pauses.
#![allow(clippy::unwrap_used)] // A failed helper is a failed test.

use std::os::fd::AsFd;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use testkit::is_soak;
use testkit::process::{PROCESS_DEADLINE, RestartingDisk, RestartingServer, ServerProgram, Target};
use testkit::raw::guest::wait_readable;
use testkit::reconnecting::{End, Random, ReconnectingGuest, Shape};

/// Longest life of a process, in microseconds: long enough for many batches, short enough for many
/// lives.
const LIFE_US_MAX: u64 = 12_000;
/// One in this number of lives ends during the front-end's handshake, after at most this number of
/// microseconds.
const YOUNG: u64 = 8;
const YOUNG_US_MAX: u64 = 3_000;
/// Size of the disk: small enough for a fast comparison, large enough for hundreds of concurrent
/// requests.
const DISK_BYTES: u64 = 16 << 20;
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
fn work(guest: &mut ReconnectingGuest, server: &mut RestartingServer, until: Instant) -> End {
    let end = guest.run(until);
    end.unwrap_or_else(|error| panic!("{error}; {}", server.process().stderr()))
}

fn connect(guest: &mut ReconnectingGuest, server: &mut RestartingServer) {
    let until = Instant::now() + DEAD_AT;
    while let Err(error) = guest.reconnect() {
        // The guest may have reached a process that was about to die.
        assert!(
            error.is_hang_up() && Instant::now() < until,
            "{error}; {}",
            server.process().stderr()
        );
    }
}

/// Runs the guest over one life of the process, and connects to the next.
fn one_life(guest: &mut ReconnectingGuest, server: &mut RestartingServer, random: &mut Random) {
    let life = Duration::from_micros(random.below(LIFE_US_MAX));
    while work(guest, server, Instant::now() + life) == End::Closed {
        connect(guest, server);
    }
    if random.below(2) == 0 {
        // Kill the process while it handles completions.
        guest.run_to_completion(Instant::now() + life).unwrap();
    }
    server.serving().unwrap().signal(Signal::KILL).unwrap();
    // The guest does not know yet, and continues.
    assert_eq!(work(guest, server, Instant::now() + DEAD_AT), End::Closed);
    guest.offer().unwrap();
    server.start_again().unwrap();
    if random.below(YOUNG) > 0 {
        return connect(guest, server);
    }
    let young = server.serving().unwrap();
    let life = Duration::from_micros(random.below(YOUNG_US_MAX));
    let connected = std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(life);
            young.signal(Signal::KILL).unwrap();
        });
        guest.reconnect()
    });
    if let Err(error) = connected {
        assert!(error.is_hang_up(), "{error}; {}", server.process().stderr());
    }
    assert_eq!(wait_readable(&[young.ended().as_fd()], PROCESS_DEADLINE).unwrap(), Some(0));
    server.start_again().unwrap();
    // The guest may be connected to the old or the new process. Each serves one connection only.
    guest.hang_up();
    connect(guest, server);
}

/// Kills the server of a disk under load, as many times as one of ten loads should.
fn kill_under_load(program: ServerProgram, target: Target, cache: &str, shape: Shape) {
    // One test at a time, because the load of another would change the measurement.
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let name = format!("{program:?}, {target:?}, cache {cache}, {shape:?}");
    println!("{name}");
    let disk = RestartingDisk { program, target, queues: shape.queues, cache };
    let mut server = RestartingServer::start(&disk).unwrap();
    let mut random = Random::new(shape.seed);
    let mut guest = ReconnectingGuest::connect(&server.socket(), shape).unwrap();
    for _ in 0..deaths() / 10 {
        one_life(&mut guest, &mut server, &mut random);
    }
    guest.finish().unwrap_or_else(|error| panic!("{name}, at the end: {error}"));
    report(&name, &guest);
}

fn kill_file_under_load(program: ServerProgram, cache: &str, shape: Shape) {
    let image = tempfile::NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    image.as_file().set_len(DISK_BYTES).unwrap();
    kill_under_load(program, Target::File(image.path().to_owned()), cache, shape);
}

fn kill_window_under_load(program: ServerProgram, cache: &str, shape: Shape) {
    let image = tempfile::NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    image.as_file().set_len(2 * DISK_BYTES).unwrap();
    let path = image.path().to_owned();
    let target = Target::Window { path, offset: DISK_BYTES / 2, size: DISK_BYTES };
    kill_under_load(program, target, cache, shape);
}

fn kill_memory_under_load(program: ServerProgram, shape: Shape) {
    kill_under_load(program, Target::Memory(DISK_BYTES), "none", shape);
}

fn shape(queues: u16, depth: u16, number: u64) -> Shape {
    Shape { queues, depth, seed: seed(number), ..Shape::default() }
}

#[test]
fn a_file_disk_of_ringway_blk_is_killed_under_load() {
    kill_file_under_load(ServerProgram::Blk, "none", shape(4, 128, 1));
    kill_file_under_load(ServerProgram::Blk, "writeback", shape(2, 32, 2));
    let flags = Shape { event_idx: false, ..shape(1, 8, 3) };
    kill_file_under_load(ServerProgram::Blk, "none", flags);
    let one = Shape { queue_size: 4, ..shape(1, 1, 4) };
    kill_file_under_load(ServerProgram::Blk, "writeback", one);
}

#[test]
fn a_worker_is_killed_under_load_and_its_keeper_starts_another() {
    kill_memory_under_load(ServerProgram::Io, shape(4, 128, 5));
    kill_file_under_load(ServerProgram::Io, "none", shape(4, 64, 6));
    kill_file_under_load(ServerProgram::Io, "writeback", shape(2, 32, 7));
    let flags = Shape { event_idx: false, queue_size: 8, ..shape(1, 4, 8) };
    kill_memory_under_load(ServerProgram::SupervisedBlk, flags);
}

#[test]
fn a_window_of_an_image_is_killed_under_load() {
    kill_window_under_load(ServerProgram::Io, "none", shape(4, 64, 9));
    kill_window_under_load(ServerProgram::Blk, "writeback", shape(2, 32, 10));
}
