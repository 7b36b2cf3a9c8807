//! Memory, threads and descriptors of qcow2 disks.
#![allow(clippy::unwrap_used, clippy::panic)]
#![allow(clippy::print_stdout, reason = "a test reports what it measured")]

use std::path::Path;

use crate::common::*;
use image::qcow2::{CreateOptions, create_file};
use serde_json::{Value, json};
use testkit::raw::request::{Request, status};
use testkit::raw::{Guest, Setup};
use testkit::reconnecting::Random;

const TIB: u64 = 1 << 40;
/// Bytes of a disk that one page of a map covers.
const PAGE_COVERS: u64 = 32 << 20;
/// Bytes of all pages: those of the pool.
const POOL_BYTES: u64 = 64 << 20;

/// Returns a field of `/proc/PID/status`.
fn process_status(pid: u32, field: &str) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(field)).unwrap();
    line.trim_start_matches(':').split_whitespace().next().unwrap().parse().unwrap()
}

fn resident_bytes(io: &Io) -> u64 {
    process_status(io.process.worker().unwrap().unwrap().id(), "VmRSS") << 10
}

fn create(dir: &Path, name: &str, size: u64) -> String {
    let path = dir.join(format!("{name}.qcow2"));
    create_file(&path, &CreateOptions::new(size)).unwrap();
    path.to_str().unwrap().to_owned()
}

fn attach(io: &Io, id: &str, backend: Value) -> Guest {
    let mut spec = io.spec(id, backend);
    spec["cache"] = json!("writeback");
    io.caller().disk("disk.attach", spec);
    Guest::start(&io.socket(id), &Setup::default()).unwrap()
}

/// Runs requests, some at a time.
fn run_all(guest: &mut Guest, requests: &[Request]) {
    for some in requests.chunks(32) {
        // Memory of a guest is small, and is used from its start by each connection.
        let pending = guest.submit_all(0, some).unwrap();
        guest.kick(0).unwrap();
        let done = guest.finish_all(0, &pending).unwrap();
        assert!(done.iter().all(|done| done.status == status::OK));
    }
}

#[test]
fn a_guest_that_touches_a_huge_disk_everywhere_stays_in_the_budget() {
    let mut io = Io::start();
    let huge = create(io.folder.path(), "huge", TIB);
    let other = create(io.folder.path(), "other", TIB);
    let mut guest = attach(&io, "huge", json!({"qcow2": {"file": huge}}));
    let mut small = attach(&io, "small", json!({"qcow2": {"file": other}}));
    run_all(&mut small, &[Request::write(8, &[1; 4096])]);
    let before = resident_bytes(&io);
    let pages = TIB / PAGE_COVERS;
    // An odd factor visits each page once, in an order that looks random.
    let sector = |at: u64| (at * 20_047 + 7) % pages * PAGE_COVERS / 512;
    let mut random = Random::new(1);
    let reads: Vec<_> =
        (0..pages).map(|at| Request::read(sector(at) + random.below(60_000), 512)).collect();
    run_all(&mut guest, &reads);
    let after_reads = resident_bytes(&io);
    let writes: Vec<_> = (0..600).map(|at| Request::write(sector(at), &[2; 512])).collect();
    run_all(&mut guest, &writes);
    let (after, touched) = (resident_bytes(&io), pages * 4096);
    println!(
        "{pages} pages of {touched} bytes touched: {before} bytes resident, {after_reads} after \
         reads, {after} after writes"
    );
    assert!(touched > POOL_BYTES + (32 << 20), "more than the budget and its tolerance");
    assert!(after - before < POOL_BYTES + (16 << 20), "{before} before, {after} after");
    // The neighbour has what it needs.
    run_all(&mut small, &[Request::read(8, 512), Request::write(1 << 30, &[3; 4096])]);
    assert_eq!(small.run(0, &Request::read(8, 512)).unwrap().data, [1; 512]);
    assert_eq!(guest.run(0, &Request::read(sector(3), 512)).unwrap().data, [2; 512]);
    drop((guest, small));
    assert!(io.process.terminate().unwrap().success(), "{}", io.process.stderr());
}

/// Layers of each disk.
const LAYERS: usize = 10;

#[test]
fn many_disks_of_many_layers_need_bounded_threads_and_known_descriptors() {
    let mut io = Io::start();
    let disks = testkit::rounds(30, 1000);
    let size = 64 << 20;
    let base = image(&io.folder, "base.raw", size);
    let shared: Vec<_> =
        (2..LAYERS).map(|at| create(io.folder.path(), &format!("shared{at}"), size)).collect();
    let below = shared.iter().fold(
        json!({"file": base}),
        |backing, file| json!({"qcow2": {"file": file, "backing": backing}}),
    );
    let before = (open_files(&io.process).len(), resident_bytes(&io));
    let mut most_threads = 0;
    for number in 0..disks {
        let id = format!("d{number}");
        let top = create(io.folder.path(), &id, size);
        let mut guest = attach(&io, &id, json!({"qcow2": {"file": top, "backing": below}}));
        // Each layer's owner is asked.
        run_all(&mut guest, &[Request::read(1 << 10, 512), Request::write(8, &[1; 4096])]);
        let worker = io.process.worker().unwrap().unwrap().id();
        most_threads = most_threads.max(process_status(worker, "Threads"));
    }
    let worker = io.process.worker().unwrap().unwrap().id();
    let files = std::fs::read_dir(format!("/proc/{worker}/fd")).unwrap().count();
    let after = resident_bytes(&io);
    println!(
        "{disks} disks of {LAYERS} layers: {files} descriptors in the worker, at most \
         {most_threads} threads, {} bytes resident a disk; before: {before:?}",
        (after - before.1) / disks as u64
    );
    // A descriptor a layer, and some for journal, listener, session and alike.
    assert!(files < 100 + disks * (LAYERS + 8), "{files} descriptors");
    assert!(most_threads < 256 + 2 * disks as u64 + 40, "{most_threads} threads");
    assert!(io.process.terminate().unwrap().success(), "{}", io.process.stderr());
}
