//! Layers of a served disk are merged while its guest runs.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common::sectors::{connect, read, write};
use crate::common::*;
use serde_json::{Value, json};
use testkit::raw::Guest;

const MIB: u64 = 1 << 20;

/// Content and times of a guest's requests.
struct Load {
    guest: Guest,
    written: BTreeMap<u64, u8>,
    /// Times without a copy, and beside one.
    times: [Vec<Duration>; 2],
}

/// Reads and writes until told to stop.
fn load(mut guest: Guest, sectors: u64, (stop, copies): (&AtomicBool, &AtomicBool)) -> Load {
    let (mut written, mut number) = (BTreeMap::new(), 0_u64);
    let mut times = [Vec::new(), Vec::new()];
    while !stop.load(Ordering::Relaxed) {
        number += 1;
        let (sector, value) = (number * 7919 % sectors, number as u8);
        let is_beside = copies.load(Ordering::Relaxed);
        let began = Instant::now();
        write(&mut guest, sector, value);
        written.insert(sector, value);
        let other = number * 31 % sectors;
        assert_eq!(read(&mut guest, other), written.get(&other).copied().unwrap_or(7));
        times[usize::from(is_beside)].push(began.elapsed());
    }
    Load { guest, written, times }
}

/// Returns median and 99th percentile in microseconds.
fn percentiles(times: &mut [Duration]) -> [u128; 2] {
    times.sort_unstable();
    let at = |part: usize| times.get(times.len() * part / 100).map_or(0, Duration::as_micros);
    [at(50), at(99)]
}

#[test]
fn a_guest_under_load_goes_on_while_layers_are_merged() {
    let mut io = Io::start();
    let bytes = testkit::rounds(8, 1024) as u64 * MIB;
    let path = |name: &str| io.folder.path().join(name);
    std::fs::write(path("base.raw"), vec![7; bytes as usize]).unwrap();
    let base = json!({"file": path("base.raw")});
    let over = |name: &str, below: &Value| json!({"qcow2": {"file": path(name), "backing": below}});
    let mut caller = io.caller();
    // A copy that makes way is slow beside other programs.
    caller.stream().set_read_timeout(Some(6 * testkit::process::PROCESS_DEADLINE)).unwrap();
    caller.disk("disk.attach", io.spec("d", base.clone()));
    let guest = connect(&io.socket("d"));
    let (stop, copies) = (AtomicBool::new(false), AtomicBool::new(false));
    let mut load = std::thread::scope(|scope| {
        let load = scope.spawn(|| load(guest, bytes / 512, (&stop, &copies)));
        let ended = Ended(&stop);
        for name in ["1.qcow2", "2.qcow2"] {
            std::thread::sleep(Duration::from_millis(testkit::rounds(200, 10_000) as u64));
            let disks = json!({"disks": [{"id": "d", "file": path(name)}]});
            caller.call("disk.snapshot", disks).unwrap();
        }
        copies.store(true, Ordering::Relaxed);
        let lower = over("1.qcow2", &base);
        let params = json!({"source": lower, "path": path("m.raw"), "format": "raw", "layers": 2,
            "background": true});
        caller.call("image.convert", params).unwrap();
        copies.store(false, Ordering::Relaxed);
        let merged = over("2.qcow2", &json!({"file": path("m.raw")}));
        let params = json!({"id": "d", "backend": merged, "expect": over("2.qcow2", &lower)});
        caller.call("disk.replace", params).unwrap();
        std::fs::remove_file(path("1.qcow2")).unwrap();
        std::fs::remove_file(path("base.raw")).unwrap();
        std::thread::sleep(Duration::from_millis(100));
        drop(ended);
        load.join().unwrap()
    });
    let [alone, beside] = &mut load.times;
    let counts = [alone.len(), beside.len()];
    println!(
        "read and write in us, median and p99: alone {:?}, beside a copy {:?}; {counts:?} pairs",
        percentiles(alone),
        percentiles(beside),
    );
    assert!(counts.iter().all(|count| *count > 0));
    for (sector, value) in load.written {
        assert_eq!(read(&mut load.guest, sector), value);
    }
    assert!(io.process.terminate().unwrap().success(), "{}", io.process.stderr());
}
