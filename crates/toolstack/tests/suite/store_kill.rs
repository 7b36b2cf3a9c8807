//! Kills of a process that stores batches: every acknowledged batch must be stored.
#![allow(clippy::unwrap_used)] // A failed helper is a failed test.

use std::io::{BufRead, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use toolstack::store::{Batch, Contents, Key, MemoryStore, RedbStore, Store, StoreError};

/// Environment variable with the child's state file. The child is this program again.
const STATE: &str = "RINGWAY_STORE_KILL_STATE";
/// Name of the test that is the child.
const CHILD: &str = "store_kill::batches_are_stored_in_turn";
/// Number of rows that batches choose from, so that each batch changes rows of earlier ones.
const ROWS: u64 = 97;
/// Most batches that a child stores before it is killed.
const BATCHES_MAX: u64 = 8;
/// Longest time between the child's last awaited answer and its kill, in microseconds: the time of
/// some commits.
const DELAY_US_MAX: u64 = 5_000;

/// Returns batch `number`, counted from 1. Every row in it contains the number of its batch.
fn batch(number: u64) -> Batch {
    let mut batch = Batch { generation: number, ceiling: number + 10, ..Batch::default() };
    for step in 0..9 {
        let key = Key::new("obj/VDI", ((number * 5 + step * step) % ROWS).to_string());
        batch.put(key, number.to_string().repeat(100).into_bytes());
    }
    batch.delete(Key::new("obj/VDI", (number % ROWS).to_string()));
    batch
}

/// Child: stores batches after the existing ones, and prints each number on a line of standard
/// error. As a test of its own it stores three.
#[test]
fn batches_are_stored_in_turn() {
    let dir = tempfile::tempdir().unwrap();
    let given = std::env::var_os(STATE);
    let (is_child, many) = if given.is_some() { (true, u64::MAX) } else { (false, 3) };
    let path = given.map_or_else(|| dir.path().join("state.redb"), Into::into);
    let mut store = RedbStore::open(&path).unwrap();
    let there = store.load().unwrap().generation;
    for number in (there + 1..).take(usize::try_from(many).unwrap()) {
        store.commit(&batch(number)).unwrap();
        if is_child {
            // The test harness does not capture this, unlike `eprintln`.
            writeln!(std::io::stderr(), "{number}").unwrap();
        }
    }
    assert_eq!(store.load().unwrap().generation, there + 3);
}

fn child(state: &Path) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", CHILD, "--nocapture"]).env(STATE, state);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Reproducible pseudorandom numbers.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        // Knuth's constants (MMIX). The upper bits are the good ones.
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

/// Runs one life. Returns the last batch that the child acknowledged.
fn life(state: &Path, random: &mut Random) -> u64 {
    let mut child = child(state);
    let mut output = BufReader::new(child.stderr.take().unwrap()).lines();
    let mut last = 0;
    // Some children die before their first batch, while they open the file.
    for _ in 0..random.below(BATCHES_MAX) {
        let line = output.next().unwrap().unwrap();
        last = line.parse().unwrap_or_else(|_| panic!("{line}"));
    }
    std::thread::sleep(std::time::Duration::from_micros(random.below(DELAY_US_MAX)));
    child.kill().unwrap();
    child.wait().unwrap();
    // Lines printed before the kill count, incomplete ones do not.
    let rest: Vec<_> = output.map_while(Result::ok).collect();
    let numbers = rest.iter().filter_map(|line| line.parse().ok()).filter(|number| *number > last);
    numbers.max().unwrap_or(last)
}

#[test]
fn every_batch_that_was_acknowledged_is_there_and_none_is_torn() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("state.redb");
    let (mut random, mut expected) = (Random(41), MemoryStore::default());
    let (mut applied, mut unacked) = (0, 0);
    for round in 0..testkit::rounds(20, 500) {
        let acked = life(&state, &mut random);
        let there = RedbStore::open(&state).unwrap().load().unwrap();
        let Contents { generation, .. } = there;
        assert!(
            generation >= acked.max(applied),
            "round {round}: {acked} was told, {generation} is"
        );
        // One batch may be stored but not acknowledged yet.
        assert!(generation <= acked.max(applied) + 1, "round {round}: {acked}, {generation}");
        unacked += u32::from(generation > acked.max(applied));
        for number in applied + 1..=generation {
            expected.commit(&batch(number)).unwrap();
        }
        applied = generation;
        assert!(there == expected.load().unwrap(), "round {round}: batch {generation} is torn");
    }
    println!(
        "{applied} batches; {unacked} children died with a batch on disk and before they said so"
    );
    assert!(applied > 0);
}

#[test]
fn a_store_that_another_process_has_open_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("state.redb");
    let mut child = child(&state);
    let mut output = BufReader::new(child.stderr.take().unwrap()).lines();
    assert_eq!(output.next().unwrap().unwrap(), "1");
    let error = RedbStore::open(&state).unwrap_err();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(matches!(error, StoreError::Taken { .. }), "{error:?}");
    let message = error.to_string();
    assert!(message.contains(&format!("process {}", child.id())), "{message}");
    assert!(message.contains(state.to_str().unwrap()), "{message}");
    // The lock is released with the child.
    assert!(RedbStore::open(&state).unwrap().load().unwrap().generation > 0);
}
