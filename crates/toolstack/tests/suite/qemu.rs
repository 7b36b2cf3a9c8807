//! QEMU driver and trial boot with a real QEMU and the test guest's kernel.
#![allow(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

use std::path::PathBuf;
use std::time::Duration;

use model::machine::{Accel, AccelChoice};
use model::topology::disk_address;
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;
use toolstack::accel::{ProbeCache, ProbeOutcome, Prober, probe};
use toolstack::binaries::{QEMU, in_path};
use toolstack::qemu::qmp::COMMAND_DEADLINE;
use toolstack::qemu::{Engine, Machine, QemuDisk, QemuError, QemuExit, QemuSpec};

/// Far more time than a start under TCG takes on a busy host.
const PATIENCE: Duration = Duration::from_secs(120);

fn qemu() -> PathBuf {
    in_path(QEMU).expect("qemu-system-x86_64 is missing; install it with `make setup`")
}

fn kernel() -> PathBuf {
    testkit::guest::artifacts().unwrap().bzimage
}

fn spec(kernel: PathBuf) -> QemuSpec {
    QemuSpec {
        engine: Engine::TcgInTurns,
        memory_bytes: 192 << 20,
        vcpus: 1,
        kernel,
        initrd: None,
        append: "console=ttyS0 panic=-1 no_timer_check".into(),
        disks: Vec::new(),
    }
}

#[tokio::test]
async fn a_machine_is_driven_from_start_to_end() {
    let mut machine = Machine::spawn(&[], &qemu(), &spec(kernel()), false).unwrap();
    let mut console = machine.take_console().unwrap();
    machine.ready().await.unwrap();
    let qmp = machine.qmp().unwrap();
    let status = qmp.execute("query-status", Value::Null, COMMAND_DEADLINE).await.unwrap();
    assert_eq!(status["running"], true);
    let unknown = qmp.execute("no-such-command", json!({}), COMMAND_DEADLINE).await.unwrap_err();
    assert!(unknown.to_string().contains("no-such-command"), "{unknown}");
    // Without a root file system the kernel panics, and resets because of panic=-1.
    let mut text = String::new();
    let read = tokio::time::timeout(PATIENCE, console.read_to_string(&mut text));
    read.await.unwrap().unwrap();
    assert!(text.contains("Kernel panic"), "{text}");
    assert_eq!(machine.wait().await.unwrap(), QemuExit::Reset);
    assert_eq!(machine.id(), None);
}

#[tokio::test]
async fn quit_ends_a_machine_at_once_and_is_told_apart() {
    let mut machine = Machine::spawn(&[], &qemu(), &spec(kernel()), false).unwrap();
    machine.ready().await.unwrap();
    assert!(machine.quit().await.unwrap().success());
    assert_eq!(machine.wait().await.unwrap(), QemuExit::Asked);
}

#[tokio::test]
async fn a_machine_that_cannot_start_is_told_in_the_words_of_qemu() {
    let empty = tempfile::NamedTempFile::new().unwrap();
    let spec = spec(empty.path().to_owned());
    let mut machine = Machine::spawn(&[], &qemu(), &spec, false).unwrap();
    let error = machine.ready().await.unwrap_err();
    let QemuError::Died { tail, .. } = error else { panic!("{error}") };
    assert!(tail.contains("kernel"), "{tail}");
}

#[tokio::test]
async fn a_backend_that_is_not_there_does_not_keep_a_machine_from_being_ended() {
    let disk = QemuDisk {
        id: "disk0".into(),
        socket: "/nonexistent/disk0.sock".into(),
        queues: 1,
        address: disk_address(0).unwrap(),
    };
    let spec = QemuSpec { disks: vec![disk], ..spec(kernel()) };
    let mut machine = Machine::spawn(&[], &qemu(), &spec, false).unwrap();
    // QEMU waits for the backend, so it never becomes ready and answers no command.
    let ready = tokio::time::timeout(Duration::from_millis(500), machine.ready()).await;
    assert!(ready.is_err());
    assert!(!machine.quit().await.unwrap().success());
}

#[tokio::test]
async fn a_trial_boot_tells_a_kernel_that_runs_from_one_that_hangs() {
    let mut slot = None;
    let kernel = kernel();
    let works = probe(&[], &qemu(), &kernel, Accel::Tcg, PATIENCE, &mut slot).await;
    assert_eq!(works, ProbeOutcome::Works);
    assert!(slot.is_none());
    // As with a hanging KVM, no output arrives in time.
    let short = Duration::from_millis(1);
    let hangs = probe(&[], &qemu(), &kernel, Accel::Tcg, short, &mut slot).await;
    assert!(matches!(&hangs, ProbeOutcome::Fails(why) if why.contains("nothing")), "{hangs:?}");
    assert!(slot.is_none());
}

#[tokio::test]
async fn a_file_that_is_no_kernel_says_nothing_of_the_accelerator() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let verdict = probe(&[], &qemu(), file.path(), Accel::Tcg, PATIENCE, &mut None).await;
    assert!(matches!(verdict, ProbeOutcome::Unknown(_)), "{verdict:?}");
}

#[tokio::test]
async fn the_answer_of_a_trial_is_remembered() {
    let dir = tempfile::tempdir().unwrap();
    let probe_cache = ProbeCache::at(dir.path(), "this boot");
    let (qemu, kernel) = (qemu(), kernel());
    // A device that opens. Whether KVM then works depends on the host, and either result is right.
    let prober = Prober {
        qemu: &qemu,
        launcher: &[],
        kernel: &kernel,
        device: "/dev/null".into(),
        probe_cache: &probe_cache,
    };
    let first = prober.decide(AccelChoice::Auto, &mut None).await.unwrap();
    let again = prober.decide(AccelChoice::Auto, &mut None).await.unwrap();
    assert_eq!(first.accel, again.accel);
    assert!(!first.why.contains("since the host started"), "{first:?}");
    assert!(again.why.contains("since the host started"), "{again:?}");
}
