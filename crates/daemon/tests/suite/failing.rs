//! Guests and QEMU processes that really fail, and what follows for their VMs.
#![allow(clippy::unwrap_used)] // A failed helper is a failed test.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use tempfile::NamedTempFile;
use testkit::guest::boot_config;
use testkit::ringwayd::Ringwayd;
use xenapi::Value;
use xenapi::client::ClientError;

/// Longest wait for a guest. Without KVM it boots in some seconds, on a busy host in many.
const PATIENCE: Duration = Duration::from_secs(300);
/// Output of the guest when its shell is ready.
const PROMPT: &str = "/tmp #";

/// Waits for a shell on the serial console and makes the kernel panic.
fn panic_in(daemon: &Ringwayd, uuid: &str) {
    let socket = daemon.dir().join("run/vm").join(uuid).join("console.sock");
    let mut line = UnixStream::connect(socket).unwrap();
    line.set_read_timeout(Some(PATIENCE)).unwrap();
    let (mut output, mut chunk) = (Vec::new(), [0; 4096]);
    while !String::from_utf8_lossy(&output).contains(PROMPT) {
        let n = line.read(&mut chunk).unwrap();
        assert!(n > 0, "{}", String::from_utf8_lossy(&output));
        output.extend_from_slice(&chunk[..n]);
    }
    line.write_all(b"echo c >/proc/sysrq-trigger\n").unwrap();
    // The domain ends, whatever the configured action.
    while line.read(&mut chunk).is_ok_and(|n| n > 0) {}
}

/// Returns the QEMU process of the guest.
fn emulator(daemon: &Ringwayd, uuid: &str) -> Pid {
    let pid = std::fs::read_to_string(daemon.dir().join("run/vm").join(uuid).join("pid")).unwrap();
    Pid::from_raw(pid.trim().parse().unwrap()).unwrap()
}

/// Waits until the VM matches.
fn wait(daemon: &Ringwayd, uuid: &str, like: &str) {
    let xe = daemon.xe(&["event-wait", "class=vm", &format!("uuid={uuid}"), like]).unwrap();
    let mut command = Command::new("timeout");
    command.arg(PATIENCE.as_secs().to_string()).arg(xe.get_program()).args(xe.get_args());
    let status = command.env("HOME", daemon.dir()).status().unwrap();
    assert!(status.success(), "{like} did not come");
}

/// Starts a daemon with a VM of this name. Returns the VM's UUID and the configuration file.
fn with_machine(name: &str) -> (Ringwayd, String, NamedTempFile) {
    let config = boot_config().unwrap();
    let path = config.path().display().to_string();
    let daemon = Ringwayd::start(&["--hypervisor", "qemu", "--config", &path]).unwrap();
    let name = format!("new-name-label={name}");
    let uuid = daemon.xe_prints(&["vm-install", "template=Ringway test guest", &name]).unwrap();
    (daemon, uuid, config)
}

#[test]
fn a_machine_that_crashes_is_started_again_or_halted_as_it_is_set() {
    let (daemon, uuid, _config) = with_machine("crashing");
    let xe = |words: &[&str]| daemon.xe_prints(words).unwrap();
    let of = format!("uuid={uuid}");
    let domid = || xe(&["vm-param-get", &of, "param-name=dom-id"]);
    let crashes = || xe(&["message-list", "name=VM_CRASHED", "--minimal"]);

    xe(&["vm-start", "vm=crashing"]);
    let first = domid();
    panic_in(&daemon, &uuid);
    wait(&daemon, &uuid, &format!("dom-id=/={first}"));
    // Between two domains the VM is running and has none.
    wait(&daemon, &uuid, "dom-id=/=-1");
    wait(&daemon, &uuid, "power-state=running");
    assert_ne!(domid(), first);
    assert_eq!(crashes().split(',').count(), 1, "{}", crashes());

    xe(&["vm-param-set", &of, "actions-after-crash=destroy"]);
    panic_in(&daemon, &uuid);
    wait(&daemon, &uuid, "power-state=halted");
    assert_eq!(crashes().split(',').count(), 2, "{}", crashes());
    assert!(!daemon.processes().iter().any(|one| one.contains("qemu")), "no process is left");
}

#[test]
fn an_emulator_that_is_killed_is_a_crash() {
    let (daemon, uuid, _config) = with_machine("killed");
    let of = format!("uuid={uuid}");
    daemon.xe_prints(&["vm-param-set", &of, "actions-after-crash=destroy"]).unwrap();
    daemon.xe_prints(&["vm-start", "vm=killed"]).unwrap();
    kill_process(emulator(&daemon, &uuid), Signal::KILL).unwrap();
    wait(&daemon, &uuid, "power-state=halted");
    let messages = daemon.xe_prints(&["message-list", "name=VM_CRASHED", "--minimal"]).unwrap();
    assert_eq!(messages.split(',').filter(|one| !one.is_empty()).count(), 1, "{messages}");
    daemon.xe_prints(&["vm-start", "vm=killed"]).unwrap();
    daemon.xe_prints(&["vm-shutdown", "vm=killed", "--force"]).unwrap();
    assert_eq!(daemon.leftovers(), Vec::<String>::new());
}

#[test]
fn a_machine_whose_emulator_hangs_is_seen_by_the_next_daemon_and_ended_by_force() {
    let (mut daemon, uuid, _config) = with_machine("hanging");
    daemon.xe_prints(&["vm-start", "vm=hanging"]).unwrap();
    kill_process(emulator(&daemon, &uuid), Signal::STOP).unwrap();
    daemon.process.kill().unwrap();
    daemon.start_again().unwrap();
    let state = ["vm-param-get", &format!("uuid={uuid}"), "param-name=power-state"];
    assert_eq!(daemon.xe_prints(&state).unwrap(), "running");
    daemon.xe_prints(&["vm-shutdown", "vm=hanging", "--force"]).unwrap();
    assert_eq!(daemon.xe_prints(&state).unwrap(), "halted");
    assert!(!daemon.processes().iter().any(|one| one.contains("qemu")), "no process is left");
}

/// Other calls do not wait for the hung QEMU, and a hard shutdown preempts the clean one.
#[test]
fn a_machine_whose_emulator_hangs_is_ended_by_force_beside_a_clean_shutdown() {
    let (daemon, uuid, _config) = with_machine("hanging");
    let xe = |words: &[&str]| daemon.xe_prints(words).unwrap();
    let mut client = daemon.client().unwrap();
    let machine = client.call("VM.get_by_uuid", &[Value::text(uuid.as_str())]).unwrap();
    xe(&["vm-start", "vm=hanging"]);
    let emulator = emulator(&daemon, &uuid);
    kill_process(emulator, Signal::STOP).unwrap();

    xe(&["vm-install", "template=Ringway test guest", "new-name-label=other"]);
    xe(&["vm-start", "vm=other", "paused=true"]);
    xe(&["vm-shutdown", "vm=other", "--force"]);
    let asked = client.begin("VM.clean_shutdown", &[machine]).unwrap();
    let of = format!("uuid={uuid}");
    xe(&["vm-param-set", &of, "name-description=it hangs"]);
    assert!(xe(&["vm-list", &of, "params=all"]).contains("it hangs"));
    let state = ["vm-param-get", &of, "param-name=power-state"];
    assert_eq!(xe(&state), "running");
    let pending = xe(&["task-list", "status=pending", "params=name-label", "--minimal"]);
    assert_eq!(pending, "Async.VM.clean_shutdown", "nothing else has waited for it");
    xe(&["vm-shutdown", "vm=hanging", "--force"]);
    assert_eq!(xe(&state), "halted");
    assert_eq!(daemon.leftovers(), Vec::<String>::new());
    assert_eq!(test_kill_process(emulator), Err(Errno::SRCH));
    let ClientError::Api(error) = client.end(asked, PATIENCE).unwrap_err() else { panic!() };
    assert_eq!(error.code, "TASK_CANCELLED");
}
