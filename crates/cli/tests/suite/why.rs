//! Tests of `ringway why`: the sentence for a user whose machine is slow.
#![allow(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

use std::time::{Duration, Instant};

use crate::served::Served;
use serde_json::{Value, json};
use testkit::raw::guest::WaitEvent;
use testkit::raw::request::Request;
use testkit::storage::{Hanging, Stalling};

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap()
}

#[test]
fn states_are_told_in_a_sentence() {
    let io = Served::start(&[]);
    io.attach("d1", json!({"null": 1 << 20}), json!({}));
    io.attach("d2", json!({"null": 1 << 20}), json!({"activate": false}));
    let text = io.stdout(&["why", "d1", "--seconds", "0.1"]);
    assert!(first_line(&text).contains("has no front-end"), "{text}");
    let text = io.stdout(&["why", "d2", "--seconds", "0.1"]);
    assert!(first_line(&text).contains("not active") && text.contains("disk.activate id=d2"));
    let attached = io.stdout(&["io", "disk.attach", "id=d3", "backend.null=1M"]);
    assert!(attached.contains("\"state\":\"attached\""), "{attached}");
    let text = io.stdout(&["why", "d3", "--seconds", "0.1"]);
    assert!(first_line(&text).contains("d3 has no socket, so no guest uses it"), "{text}");
    assert!(text.contains("disk.detach id=d3"), "{text}");

    let mut guest = io.guest("d1");
    for at in 0..20 {
        guest.run(0, &Request::read(at, 512)).unwrap();
    }
    guest.run(0, &Request::flush()).unwrap();
    let text = io.stdout(&["why", "d1", "--seconds", "0.1"]);
    assert!(first_line(&text).contains("d1 is idle"), "{text}");
    let rows: Vec<_> = text.lines().filter(|line| line.contains("read")).collect();
    assert!(rows.iter().any(|row| row.contains("device") && row.contains("20")), "{text}");
    assert!(text.contains("flush"), "{text}");

    io.stdout(&["io", "disk.pause", "id=d1"]);
    let report: Value =
        serde_json::from_str(&io.stdout(&["why", "d1", "--seconds", "0.1", "--format", "json"]))
            .unwrap();
    assert_eq!(report["verdict"]["cause"], "paused");
    assert_eq!(report["disk"]["id"], "d1");
}

#[test]
fn whether_a_disk_is_polled_is_told() {
    let io = Served::start(&["--poll-max-us", "100"]);
    io.attach("d1", json!({"null": 1 << 20}), json!({}));
    let text = io.stdout(&["io", "poll.defaults", "poll_idle_threshold=50"]);
    let defaults: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(defaults, json!({"mode": "auto", "max_us": 100, "idle_threshold": 50}));
    io.stdout(&["io", "disk.poll", "id=d1", "poll=off", "poll_max_us=7"]);
    let mut guest = io.guest("d1");
    for at in 0..20 {
        guest.run(0, &Request::read(at, 512)).unwrap();
    }
    let text = io.stdout(&["why", "d1", "--seconds", "0.1"]);
    assert_eq!(text.lines().nth(1), Some("It is not polled: that is turned off."), "{text}");
    assert!(text.contains("Polling is off (up to 7 us, 50% of a CPU free): 0 hits"), "{text}");
    let text = io.stdout(&["top", "--once", "--seconds", "0.1"]);
    let row = text.lines().find(|line| line.contains("d1")).unwrap();
    assert!(text.contains("polled") && row.contains("off"), "{text}");
    // Restore the default of the process, and wait for a known polling state.
    io.stdout(&["io", "disk.poll", "id=d1", "poll=always", "poll_max_us=null"]);
    guest.run(0, &Request::read(0, 512)).unwrap();
    let text = io.stdout(&["why", "d1", "--seconds", "0.1"]);
    assert!(text.contains("It is always polled") && text.contains("up to 100 us"), "{text}");
    let output = io.ringway(&["io", "disk.poll", "id=d1", "poll_max_us=20000"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("0 to 10000"), "{output:?}");
}

#[test]
fn a_disk_that_is_not_there_and_a_bad_number_are_refused() {
    let io = Served::start(&[]);
    let output = io.ringway(&["why", "d9"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("no disk \"d9\""), "{output:?}");
    for number in ["0", "nan", "1e9", "x"] {
        let output = io.ringway(&["why", "d1", "--seconds", number]);
        assert_eq!(output.status.code(), Some(2), "{number}");
    }
}

/// Freezes the file system of one disk. Checks the verdict during and after that.
#[test]
fn storage_that_hangs_is_named_while_it_hangs_and_afterwards() {
    let hanging = Hanging::new().unwrap();
    let path = hanging.image("a", 1 << 20).unwrap();
    let io = Served::start(&["--reactors", "1"]);
    io.attach("d1", json!({"file": path}), json!({"stop_deadline_ms": 300}));
    io.attach("d2", json!({"memory": 1 << 20}), json!({}));
    let (mut slow, mut well) = (io.guest("d1"), io.guest("d2"));
    slow.run(0, &Request::write(0, &[1; 4096])).unwrap();
    hanging.hang().unwrap();
    let pending = slow.submit_all(0, &[Request::write(8, &[2; 4096])]).unwrap();
    slow.kick(0).unwrap();
    // Longer than the limit of a hang.
    assert_eq!(slow.wait(0, Duration::from_millis(700)).unwrap(), WaitEvent::Silent);

    let began = Instant::now();
    let text = io.stdout(&["why", "d1", "--seconds", "0.1"]);
    assert!(began.elapsed() < Duration::from_secs(10), "it waits for the storage");
    let sentence = first_line(&text);
    assert!(sentence.starts_with("d1 waits for its storage: a write of 4 KiB at byte 4096"));
    assert!(sentence.contains("has been with it for"), "{text}");
    assert!(text.contains(path.to_str().unwrap()), "{text}");
    well.run(0, &Request::read(0, 4096)).unwrap();
    let text = io.stdout(&["why", "d2", "--seconds", "0.1"]);
    assert!(first_line(&text).contains("d2 is idle"), "the neighbour is well: {text}");

    hanging.answer().unwrap();
    slow.finish(0, &pending[0]).unwrap();
    let text = io.stdout(&["why", "d1", "--seconds", "0.1", "--format", "json"]);
    let report: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(report["verdict"]["cause"], "idle", "{report}");
    let past = report["verdict"]["past"].as_str().unwrap();
    assert!(past.contains("a write of 4 KiB took") && past.contains("with the storage"), "{past}");
    let record = &report["disk"]["slow"][0];
    assert_eq!((&record["offset"], &record["bytes"]), (&json!(4096), &json!(4096)));
    assert!(record["device_us"].as_f64().unwrap() >= 700_000.0, "{record}");
}

/// Uses a block device that does not answer reads.
#[test]
fn a_read_that_hangs_is_named() {
    let Some(stalling) = Stalling::new(1 << 20, 7).unwrap() else { return };
    let io = Served::start(&[]);
    io.attach("d1", json!({"file": stalling.device()}), json!({}));
    let mut guest = io.guest("d1");
    stalling.enclose(io.process.worker_pid().unwrap().unwrap()).unwrap();
    stalling.hang().unwrap();
    let pending = guest.submit_all(0, &[Request::read(8, 4096)]).unwrap();
    guest.kick(0).unwrap();
    // Longer than the limit of a hang.
    assert_eq!(guest.wait(0, Duration::from_millis(700)).unwrap(), WaitEvent::Silent);
    let text = io.stdout(&["why", "d1", "--seconds", "0.1"]);
    let sentence = first_line(&text);
    assert!(
        sentence.starts_with("d1 waits for its storage: a read of 4 KiB at byte 4096"),
        "{text}"
    );
    assert!(text.contains(stalling.device().to_str().unwrap()), "{text}");
    stalling.answer().unwrap();
    assert_eq!(guest.finish(0, &pending[0]).unwrap().data, [7; 4096]);
}
