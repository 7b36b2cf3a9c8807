//! Both kinds of guest boot, run a script, return its result, and leave no process or file.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::Path;
use std::time::Duration;

use base64::prelude::{BASE64_STANDARD, Engine};
use serde_json::json;
use testkit::guest::{Guest, Image, Kind, Machine};
use testkit::process::eventually;

/// Far longer than any boot, also when several guests share two busy cores.
const DEADLINE: Duration = Duration::from_secs(180);

/// Returns whether a process has this directory in its arguments. Zombies have none.
fn in_use(dir: &Path) -> bool {
    let dir = dir.to_str().unwrap().as_bytes();
    let processes = fs::read_dir("/proc").unwrap();
    processes
        .filter_map(|entry| fs::read(entry.unwrap().path().join("cmdline")).ok())
        .any(|line| line.windows(dir.len()).any(|part| part == dir))
}

/// Checks that a guest ends with all its processes and files.
fn leaves_nothing<T>(guest: Guest, end: impl FnOnce(Guest) -> T) -> T {
    let dir = guest.dir().to_owned();
    assert!(dir.exists());
    let result = end(guest);
    assert!(!dir.exists(), "{} is left", dir.display());
    assert!(!in_use(&dir), "a process of {} is left", dir.display());
    result
}

/// A machine that powers off must not lose the end of its console output.
fn a_script_prints_and_exits(kind: Kind) {
    let script = "echo one; echo ' two  *'; id -u; seq 20000; printf three; exit 3";
    let guest = Guest::start(kind, &Machine::default(), script).unwrap();
    let outcome = leaves_nothing(guest, |guest| guest.finish(DEADLINE)).unwrap();
    let numbers: String = (1..=20_000).map(|number| format!("{number}\n")).collect();
    let output = format!("one\n two  *\n0\n{numbers}three");
    assert!(outcome.code == 3 && outcome.output == output, "{}: {}", outcome.code, outcome.output);
}

fn a_deadline_kills_a_guest_that_hangs(kind: Kind) {
    let script = "echo hanging; trap '' TERM; while :; do sleep 1000; done";
    let mut guest = Guest::start(kind, &Machine::default(), script).unwrap();
    guest.wait_for("hanging\n", DEADLINE).unwrap();
    let error = leaves_nothing(guest, |guest| guest.finish(Duration::from_millis(100)));
    let error = error.unwrap_err().to_string();
    assert!(error.contains("did not power off in 100 ms") && error.contains("hanging"), "{error}");
    let guest = Guest::start(kind, &Machine::default(), script).unwrap();
    let error = leaves_nothing(guest, |guest| guest.finish_script(Duration::from_millis(100)));
    let error = error.unwrap_err().to_string();
    assert!(error.contains("did not end its script in 100 ms"), "{error}");
}

fn a_dropped_guest_is_gone(kind: Kind) {
    let start = || Guest::start(kind, &Machine::default(), "sleep 1000").unwrap();
    let guest = start();
    // While a process executes another program, it has no arguments for a moment.
    eventually("the check for leftovers finds a guest", || in_use(guest.dir()));
    leaves_nothing(guest, drop);
    // A guest that has hardly started is removed as well.
    leaves_nothing(start(), drop);
}

fn a_dead_kernel_is_reported(kind: Kind) {
    let machine = Machine { append: "rdinit=/none init=/none".to_owned(), ..Machine::default() };
    let guest = Guest::start(kind, &machine, "exit 0").unwrap();
    let error = leaves_nothing(guest, |guest| guest.finish(DEADLINE)).unwrap_err().to_string();
    assert!(error.contains("ended before its script did"), "{error}");
}

#[test]
fn qemu_script_prints_and_exits() {
    a_script_prints_and_exits(Kind::Qemu);
}

#[test]
fn uml_script_prints_and_exits() {
    a_script_prints_and_exits(Kind::Uml);
}

#[test]
fn uml_script_ends() {
    let guest = Guest::start(Kind::Uml, &Machine::default(), "echo one; exit 3").unwrap();
    let outcome = leaves_nothing(guest, |guest| guest.finish_script(DEADLINE)).unwrap();
    assert_eq!((outcome.code, outcome.output.as_str()), (3, "one\n"));
}

#[test]
fn qemu_deadline_kills() {
    a_deadline_kills_a_guest_that_hangs(Kind::Qemu);
}

#[test]
fn uml_deadline_kills() {
    a_deadline_kills_a_guest_that_hangs(Kind::Uml);
}

#[test]
fn qemu_dropped_is_gone() {
    a_dropped_guest_is_gone(Kind::Qemu);
}

#[test]
fn uml_dropped_is_gone() {
    a_dropped_guest_is_gone(Kind::Uml);
}

#[test]
fn qemu_dead_kernel_is_reported() {
    a_dead_kernel_is_reported(Kind::Qemu);
}

#[test]
fn uml_dead_kernel_is_reported() {
    a_dead_kernel_is_reported(Kind::Uml);
}

#[test]
fn uml_cannot_write_to_the_host() {
    let here = std::env::current_dir().unwrap();
    let script = format!("touch {}/written", here.display());
    let guest = Guest::start(Kind::Uml, &Machine::default(), &script).unwrap();
    let outcome = guest.finish(DEADLINE).unwrap();
    assert_ne!(outcome.code, 0, "{}", outcome.output);
    assert!(!here.join("written").exists());
}

#[test]
fn uml_refuses_what_only_qemu_has() {
    let image = Image { path: "/dev/null".into(), serial: "S".to_owned(), read_only: true };
    let machine = Machine { images: vec![image], ..Machine::default() };
    let error = Guest::start(Kind::Uml, &machine, "").unwrap_err().to_string();
    assert!(error.contains("use a QEMU guest"), "{error}");
}

#[test]
fn qemu_missing_script_is_code_127() {
    let append = "ringway.script=no-such".to_owned();
    let guest = Guest::shell(&Machine { append, ..Machine::default() }).unwrap();
    let outcome = guest.finish(DEADLINE).unwrap();
    assert_eq!(outcome.code, 127);
}

#[test]
fn qemu_power_button_ends_a_script() {
    let mut guest = Guest::start(Kind::Qemu, &Machine::default(), "echo up; sleep 1000").unwrap();
    guest.wait_for("up\n", DEADLINE).unwrap();
    guest.qmp().unwrap().execute("system_powerdown", &json!({})).unwrap();
    let outcome = leaves_nothing(guest, |guest| guest.finish(DEADLINE)).unwrap();
    assert_eq!(outcome.code, 143);
}

#[test]
fn qemu_shell_obeys_ctrl_c_and_powers_off() {
    let mut guest = Guest::shell(&Machine::default()).unwrap();
    guest.wait_for("/tmp #", DEADLINE).unwrap();
    guest.type_in("(echo $((5 * 7)); exec sleep 10000)\n").unwrap();
    guest.wait_for("\n35\n", DEADLINE).unwrap();
    guest.type_in("\x03").unwrap(); // Ctrl-C
    guest.wait_for("/tmp #", DEADLINE).unwrap();
    guest.type_in("echo $((6 * 7))\npoweroff\n").unwrap();
    guest.wait_for("\n42\n", DEADLINE).unwrap();
    assert_eq!(guest.finish(DEADLINE).unwrap().code, 0);
}

/// One boot for all that the guest has and finds, because none of it changes what the next needs.
#[test]
fn qemu_guest_has_network_agent_plain_disks_a_later_cd_and_a_script_on_its_command_line() {
    let dir = tempfile::tempdir().unwrap();
    let (path, disc) = (dir.path().join("a,b.raw"), dir.path().join("disc"));
    fs::write(&path, [b'x'; 1024]).unwrap();
    fs::write(&disc, [b'y'; 2048]).unwrap();
    let image = Image { path, serial: "PLAIN".to_owned(), read_only: false };
    let agent = ["-device", "virtio-serial", "-device"];
    let port = "virtserialport,chardev=agent,name=org.qemu.guest_agent.0";
    let network = ["-netdev", "user,id=net", "-device", "virtio-net-pci,netdev=net"];
    let mut args: Vec<&str> = vec!["-chardev", "null,id=agent"];
    args.extend(agent);
    args.push(port);
    args.extend(network);
    args.extend(["-device", "virtio-scsi-pci,id=scsi"]);
    let args = args.into_iter().map(str::to_owned).collect();
    // A lease that ends takes no address of the script with it.
    let script = "lease eth0; ip addr add 10.9.0.1/24 dev eth0; killall -USR2 udhcpc; \
                  while ip addr | grep -qF 10.0.2.15; do sleep 0.1; done; ip addr | grep -oF 10.9.0.1; \
                  agent && echo agent; head -c 3 $(disk PLAIN); echo; echo up; \
                  until [ -b /dev/sr0 ]; do sleep 0.1; done; head -c 3 /dev/sr0; exit 4";
    let run = format!("ringway.run={}", BASE64_STANDARD.encode(script));
    let machine = Machine { images: vec![image], args, append: run, ..Machine::default() };
    let mut guest = Guest::shell(&machine).unwrap();
    guest.wait_for("up\n", DEADLINE).unwrap();
    let qmp = guest.qmp().unwrap();
    let medium =
        json!({"driver": "file", "node-name": "disc", "read-only": true, "filename": disc});
    qmp.execute("blockdev-add", &medium).unwrap();
    let drive = json!({"driver": "scsi-cd", "id": "cd", "bus": "scsi.0", "drive": "disc"});
    qmp.execute("device_add", &drive).unwrap();
    let outcome = leaves_nothing(guest, |guest| guest.finish_script(DEADLINE)).unwrap();
    let expected = "10.0.2.15\n10.9.0.1\nagent\nxxx\nup\nyyy";
    assert_eq!((outcome.code, outcome.output.as_str()), (4, expected));
}
