//! The serving process is killed under load, many times, and the guest sees only pauses.
#![allow(clippy::unwrap_used)] // A failed helper is a failed test.

mod golden;

use std::os::fd::AsFd;
use std::process::{Command, Output};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};
use testkit::is_soak;
use testkit::process::{
    PROCESS_DEADLINE, RestartingDisk, RestartingServer, ServerProgram, Target, find_binary,
};
use testkit::raw::guest::wait_readable;
use testkit::reconnecting::{End, Random, ReconnectingGuest, Shape, stamped};

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
    kill_many_times(program, target, cache, shape, deaths() / 10, |_| {});
}

/// Kills the server of a disk under load. Calls `after_death` after each death. Returns the guest after
/// the server has ended.
fn kill_many_times(
    program: ServerProgram,
    target: Target,
    cache: &str,
    shape: Shape,
    deaths: usize,
    mut after_death: impl FnMut(&mut Random),
) -> ReconnectingGuest {
    // One test at a time, because the load of another would change the measurement.
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let name = format!("{program:?}, {target:?}, cache {cache}, {shape:?}");
    println!("{name}");
    let disk = RestartingDisk { program, target, queues: shape.queues, cache };
    let mut server = RestartingServer::start(&disk).unwrap();
    let mut random = Random::new(shape.seed);
    let mut guest = ReconnectingGuest::connect(&server.socket(), shape).unwrap();
    for _ in 0..deaths {
        one_life(&mut guest, &mut server, &mut random);
        after_death(&mut random);
    }
    guest.finish().unwrap_or_else(|error| panic!("{name}, at the end: {error}"));
    report(&name, &guest);
    let ended = server.process().terminate().unwrap();
    assert!(ended.success() || program == ServerProgram::Blk, "{}", server.process().stderr());
    guest
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

/// Stamp of the sectors of the lowest layer.
const BASE_STAMP: u64 = 1;

/// Layers of images in a folder, top last.
struct Layers {
    folder: tempfile::TempDir,
    /// Options of `qemu-img create` of each image over the raw base.
    images: Vec<&'static str>,
}

impl Layers {
    /// Creates the images. The base has stamps, and each layer but the top some data of its own.
    fn create(images: &[&'static str]) -> Self {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let layers = Self { folder, images: images.to_vec() };
        let base = stamped(DISK_BYTES, BASE_STAMP);
        // What a middle layer covers is different below it.
        let mut hidden = base.clone();
        let covered = images.len().saturating_sub(1) * COVERED;
        hidden[..covered].fill(0xee);
        std::fs::write(layers.path(0), hidden).unwrap();
        for (at, options) in (1..).zip(images) {
            let [below, path] = [at - 1, at].map(|at| layers.path(at).display().to_string());
            let format = if at == 1 { "raw" } else { "qcow2" };
            let words = ["create", "-q", "-f", "qcow2", "-o", options, "-b", &below, "-F", format];
            tool("qemu-img", &[&words[..], &[&path]].concat());
            if at < images.len() {
                let part = layers.folder.path().join("part");
                std::fs::write(&part, &base[(at - 1) * COVERED..at * COVERED]).unwrap();
                let write =
                    format!("write -q -s {} {} {COVERED}", part.display(), (at - 1) * COVERED);
                tool("qemu-io", &["-f", "qcow2", "-c", &write, &path]);
            }
        }
        layers
    }

    fn path(&self, at: usize) -> std::path::PathBuf {
        self.folder.path().join(format!("layer{at}"))
    }

    /// Returns the tree, as `disk.attach` has it.
    fn tree(&self) -> Value {
        let base = json!({"file": self.path(0)});
        (1..=self.images.len())
            .fold(base, |backing, at| json!({"qcow2": {"file": self.path(at), "backing": backing}}))
    }

    /// Kills a server under load, then checks the images and compares each byte.
    fn kill_under_load(&self, program: ServerProgram, cache: &str, shape: Shape) {
        let lower: Vec<_> = (0..self.images.len()).map(|at| std::fs::read(self.path(at))).collect();
        let shape = Shape { first_stamp: BASE_STAMP, ..shape };
        let target = Target::Tree(self.tree());
        let guest = kill_many_times(program, target, cache, shape, deaths() / 10, |_| {});
        let top = self.path(self.images.len()).display().to_string();
        let ringway = find_binary("ringway").unwrap().display().to_string();
        let check = ["image", "check", "--format", "qcow2", &top];
        let code = exit_code(&ringway, &check);
        assert_eq!(exit_code("qemu-img", &["check", "-q", "-f", "qcow2", &top]), code);
        // A round that dies leaks what it had prepared.
        assert!([0, LEAKS].contains(&code), "exit code {code}");
        tool(&ringway, &[&check[..], &["--repair-leaks"]].concat());
        tool("qemu-img", &["check", "-q", "-f", "qcow2", &top]);
        let raw = self.folder.path().join("raw");
        let exported = raw.display().to_string();
        tool("qemu-img", &["convert", "-f", "qcow2", "-O", "raw", &top, &exported]);
        guest.compare_image(&raw).unwrap();
        for (at, before) in lower.into_iter().enumerate() {
            let now = std::fs::read(self.path(at)).unwrap();
            assert!(now == before.unwrap(), "layer {at} has changed");
        }
    }
}

/// Bytes that each middle layer covers: some whole clusters and a part of one.
const COVERED: usize = (1 << 20) + 20 * 1024;

/// Exit code of `qemu-img check` and `ringway image check` for leaked clusters and no errors.
const LEAKS: i32 = 3;

fn output(program: &str, words: &[&str]) -> Output {
    Command::new(program).args(words).env_remove("RINGWAY_CONTROL").output().unwrap()
}

fn exit_code(program: &str, words: &[&str]) -> i32 {
    let output = output(program, words);
    println!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output.status.code().unwrap()
}

fn tool(program: &str, words: &[&str]) {
    let output = output(program, words);
    assert!(output.status.success(), "{program} {words:?}: {output:?}");
}

/// Returns a shape with requests larger than a cluster, so that discards free clusters.
fn large(shape: Shape) -> Shape {
    Shape { blocks_max: 40, ..shape }
}

const EXTENDED: &str = "extended_l2=on,cluster_size=64k";
const PLAIN: &str = "cluster_size=64k";

#[test]
fn a_qcow2_image_with_subclusters_is_killed_under_load() {
    Layers::create(&[EXTENDED]).kill_under_load(ServerProgram::Io, "none", shape(4, 64, 11));
    let silent = Shape { flushes: false, ..large(shape(2, 16, 12)) };
    Layers::create(&[EXTENDED]).kill_under_load(ServerProgram::Io, "writeback", silent);
}

#[test]
fn a_qcow2_image_with_plain_clusters_over_another_is_killed_under_load() {
    let images = [PLAIN, PLAIN];
    let load = large(shape(2, 16, 13));
    Layers::create(&images).kill_under_load(ServerProgram::Io, "none", load);
    let silent = Shape { flushes: false, ..large(shape(4, 16, 14)) };
    Layers::create(&images).kill_under_load(ServerProgram::Io, "writeback", silent);
}

#[test]
fn a_chain_of_three_images_is_killed_under_load() {
    let images = [PLAIN, EXTENDED, EXTENDED];
    Layers::create(&images).kill_under_load(ServerProgram::Io, "writeback", shape(4, 64, 15));
    let images = [EXTENDED, "cluster_size=4k", "cluster_size=4k"];
    let silent = Shape { flushes: false, ..shape(2, 64, 16) };
    Layers::create(&images).kill_under_load(ServerProgram::SupervisedBlk, "none", silent);
}
