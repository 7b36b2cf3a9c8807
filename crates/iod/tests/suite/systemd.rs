//! The protocol with a service manager, against a fake one; and the units for a real one.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::common::*;
use rustix::io::retry_on_intr;
use rustix::net::{RecvFlags, recv};
use rustix::process::Signal;
use serde_json::json;
use testkit::process::eventually;
use testkit::process::{PROCESS_DEADLINE, Process};

/// Time after which a service manager considers a silent process dead.
const LIMIT: Duration = Duration::from_secs(4);

fn manager(address: &SocketAddr) -> UnixDatagram {
    let manager = UnixDatagram::bind_addr(address).unwrap();
    manager.set_read_timeout(Some(PROCESS_DEADLINE)).unwrap();
    manager
}

fn hear(manager: &UnixDatagram) -> String {
    let mut bytes = [0; 256];
    // A process that is stopped and goes on is interrupted.
    let got = retry_on_intr(|| Ok(recv(manager, &mut bytes, RecvFlags::empty())?.0)).unwrap();
    String::from_utf8(bytes[..got].to_vec()).unwrap()
}

#[test]
fn it_tells_that_it_is_ready_that_it_is_well_and_that_it_ends() {
    let folder = folder();
    let (control, path) = (folder.path().join("control"), folder.path().join("notify"));
    let manager = manager(&SocketAddr::from_pathname(&path).unwrap());
    let mut command = Command::new(IO);
    command.arg("--control").arg(&control);
    command.env("NOTIFY_SOCKET", &path).env("WATCHDOG_USEC", LIMIT.as_micros().to_string());
    let mut process = Process::start(&mut command).unwrap();
    assert_eq!(hear(&manager), "READY=1");
    assert_eq!([hear(&manager), hear(&manager)], ["WATCHDOG=1", "WATCHDOG=1"]);
    let mut well = Instant::now();
    // The keeper reports for a worker that answers, not for itself. A worker that does not is
    // replaced.
    let worker = process.worker().unwrap().unwrap();
    worker.signal(Signal::STOP).unwrap();
    loop {
        // Any later, and the service manager would have killed the keeper too.
        let replaced = process.stderr().contains("; restarting");
        assert_eq!(hear(&manager), "WATCHDOG=1");
        assert!(well.elapsed() < LIMIT, "{:?}: {}", well.elapsed(), process.stderr());
        well = Instant::now();
        if replaced {
            break;
        }
    }
    eventually("it says why", || process.stderr().contains("it does not answer"));
    process.next_worker(Some(worker.id())).unwrap();
    process.signal(Signal::TERM).unwrap();
    assert!(process.wait(PROCESS_DEADLINE).unwrap().success(), "{}", process.stderr());
    let last = std::iter::repeat_with(|| hear(&manager)).find(|message| message != "WATCHDOG=1");
    assert_eq!(last.unwrap(), "STOPPING=1");
}

#[test]
fn the_disk_program_tells_too_and_a_watchdog_of_another_process_is_none() {
    let folder = folder();
    let name = format!("ringway-test-{}", std::process::id());
    let manager = manager(&SocketAddr::from_abstract_name(&name).unwrap());
    let mut command = Command::new(BLK);
    command.arg("--socket-path").arg(folder.path().join("s")).args(["--null", "1M", "--supervise"]);
    command.env("NOTIFY_SOCKET", format!("@{name}"));
    command.env("WATCHDOG_USEC", "20000").env("WATCHDOG_PID", "1");
    let mut process = Process::start(&mut command).unwrap();
    assert_eq!(hear(&manager), "READY=1");
    manager.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    assert!(manager.recv(&mut [0; 64]).is_err(), "nothing more to tell");
    assert!(process.terminate().unwrap().success());
    assert_eq!(hear(&manager), "STOPPING=1");
}

/// Starts `ringway-io` with `listener` as descriptor 3, as a service manager does.
fn activated(listener: &UnixListener, control: &Path) -> Process {
    let script = format!(
        "exec 3<&1 1>/dev/null; LISTEN_PID=$$ LISTEN_FDS=1 exec {IO} --control {}",
        control.display()
    );
    let mut command = Command::new("sh");
    command.args(["-c", &script]).stdout(OwnedFd::from(listener.try_clone().unwrap()));
    Process::start(&mut command).unwrap()
}

#[test]
fn the_control_socket_may_be_given() {
    let mut io = Io::start();
    assert!(io.process.terminate().unwrap().success());
    // Callers can connect before the server runs.
    let control = io.socket("control");
    let listener = UnixListener::bind(&control).unwrap();
    let mut caller = io.caller();
    let mut process = activated(&listener, &control);
    caller.disk("disk.attach", io.spec("d", json!({"memory": 4096})));
    let worker = process.worker().unwrap().unwrap();
    worker.kill().unwrap();
    process.next_worker(Some(worker.id())).unwrap();
    assert_eq!(io.caller().stats().disks.len(), 1);
    // A keeper that is killed and restarted by its manager finds its worker.
    let worker = process.worker().unwrap().unwrap();
    process.kill().unwrap();
    let mut process = activated(&listener, &control);
    eventually("it is kept", || {
        io.caller().stats().keeper.is_some_and(|keeper| keeper.pid == process.id())
    });
    assert_eq!(io.caller().stats().pid, worker.id());
    assert!(process.terminate().unwrap().success(), "{}", process.stderr());
    assert_eq!(names(&io.folder), ["control"], "the socket is the manager's");

    let mut wrong = activated(&listener, &io.socket("other"));
    assert!(!wrong.wait(PROCESS_DEADLINE).unwrap().success());
    assert!(wrong.stderr().contains("make them the same"), "{}", wrong.stderr());
}

fn unit(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/systemd").join(name)
}

fn setting(text: &str, key: &str) -> Vec<String> {
    let lines = text.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    lines.flat_map(str::split_whitespace).map(Into::into).collect()
}

#[test]
fn the_units_are_sound() {
    let services = ["ringway-io.service", "ringway-blk@.service"];
    for name in services {
        let text = std::fs::read_to_string(unit(name)).unwrap();
        assert_eq!(setting(&text, "Type"), ["notify"]);
        // The unit of a disk's process must not stop VMs, so no unit may be bound to it.
        for bound in ["Requires", "BindsTo", "PartOf", "RequiredBy"] {
            assert_eq!(setting(&text, bound), [""; 0], "{name}");
        }
        // The system call that duplicates descriptors is not in systemd's group for services.
        assert!(setting(&text, "SystemCallFilter").contains(&"pidfd_getfd".into()), "{name}");
        assert!(setting(&text, "RestrictAddressFamilies").contains(&"AF_UNIX".into()), "{name}");
    }
    testkit::process::find_tool("systemd-analyze", "systemd").unwrap();
    // The tool checks that the programs exist where the units expect them.
    let folder = folder();
    for name in ["ringway-io.service", "ringway-io.socket", "ringway-blk@.service"] {
        let text = std::fs::read_to_string(unit(name)).unwrap();
        let text = ["Start", "Reload"].into_iter().fold(text, |text, key| {
            let [io, blk] = [("ringway-io", IO), ("ringway-blk", BLK)];
            let named = |text: String, (name, path): (&str, &str)| {
                text.replace(&format!("Exec{key}={name} "), &format!("Exec{key}={path} "))
            };
            named(named(text, io), blk)
        });
        assert!(!text.lines().any(|line| line.contains("Exec") && line.contains("=ringway")));
        let text: String = text
            .lines()
            .filter(|line| !line.starts_with("Documentation="))
            .fold(String::new(), |all, line| all + line + "\n");
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    let verify = Command::new("systemd-analyze")
        .args(["verify", "--man=no", "--recursive-errors=no"])
        .args(["ringway-io.service", "ringway-io.socket"].map(|name| folder.path().join(name)))
        .arg(folder.path().join("ringway-blk@d1.service"))
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&verify.stderr);
    let ours: Vec<_> = stderr.lines().filter(|line| line.contains("ringway")).collect();
    assert!(ours.is_empty() && verify.status.success(), "{stderr}");
}
