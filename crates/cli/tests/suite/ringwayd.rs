//! Tests of `xe` against a real `ringwayd` with simulated machines.
#![allow(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

use testkit::ringwayd::Ringwayd;

/// A machine with a disk, created only with `xe`.
struct Machine {
    uuid: String,
    disk: String,
    device: String,
}

impl Machine {
    fn make(daemon: &Ringwayd, name: &str) -> Self {
        let xe = |words: &[&str]| daemon.xe_prints(words).unwrap();
        let name = format!("new-name-label={name}");
        let uuid = xe(&["vm-install", "template=Other install media", &name]);
        let storage = xe(&["pool-list", "params=default-SR", "--minimal"]);
        let disk = xe(&[
            "vdi-create",
            &format!("sr-uuid={storage}"),
            "name-label=disk",
            "virtual-size=16MiB",
        ]);
        let device = xe(&[
            "vbd-create",
            &format!("vm-uuid={uuid}"),
            &format!("vdi-uuid={disk}"),
            "device=1",
        ]);
        Self { uuid, disk, device }
    }
}

#[test]
fn the_life_of_a_machine() {
    let daemon = Ringwayd::simulator(&[]).unwrap();
    let xe = |words: &[&str]| daemon.xe_prints(words).unwrap();
    let control = xe(&["vm-list", "is-control-domain=true", "params=power-state", "--minimal"]);
    assert_eq!(control, "running");
    let machine = Machine::make(&daemon, "a");
    let uuid = format!("uuid={}", machine.uuid);
    let state = || xe(&["vm-param-get", &uuid, "param-name=power-state"]);
    let plugged = || {
        let device = format!("uuid={}", machine.device);
        xe(&["vbd-param-get", &device, "param-name=currently-attached"])
    };
    assert_eq!((state().as_str(), plugged().as_str()), ("halted", "false"));
    xe(&["vm-start", "vm=a"]);
    assert_eq!((state().as_str(), plugged().as_str()), ("running", "true"));
    xe(&["event-wait", "class=vm", &uuid, "power-state=running"]);
    xe(&["vm-pause", "vm=a"]);
    assert_eq!(state(), "paused");
    xe(&["vm-unpause", "vm=a"]);
    xe(&["vm-shutdown", "vm=a"]);
    assert_eq!((state().as_str(), plugged().as_str()), ("halted", "false"));
    xe(&["vm-start", "vm=a"]);
    xe(&["vm-reboot", "vm=a", "--force"]);
    assert_eq!((state().as_str(), plugged().as_str()), ("running", "true"));
    xe(&["vm-shutdown", "vm=a", "--force"]);
    assert_eq!((state().as_str(), plugged().as_str()), ("halted", "false"));
    assert_eq!(xe(&["task-list", "--minimal"]), "", "tasks are forgotten when they have ended");
    xe(&["vm-uninstall", "vm=a", "--force"]);
    assert_eq!(xe(&["vm-list", &uuid, "--minimal"]), "");
    assert_eq!(xe(&["vdi-list", &format!("uuid={}", machine.disk), "--minimal"]), "");
}

#[test]
fn refusals_are_told_as_xenserver_does() {
    let daemon = Ringwayd::simulator(&[]).unwrap();
    let machine = Machine::make(&daemon, "a");
    daemon.xe_prints(&["vm-start", "vm=a"]).unwrap();
    let fails = |words: &[&str]| {
        let output = daemon.xe_output(words).unwrap();
        assert_eq!(output.status.code(), Some(1), "{words:?}: {output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    assert_eq!(
        fails(&["vm-start", "vm=a"]),
        format!(
            "The machine is in a state in which this cannot be done.\nvm: {} (a)\n\
             expected: halted\nactual: running\n",
            machine.uuid
        )
    );
    let error = fails(&["vdi-destroy", &format!("uuid={}", machine.disk)]);
    assert!(error.starts_with("The disk is in use.\n"), "{error}");
    assert!(error.contains(&format!("vdi: {} (disk)\n", machine.disk)), "{error}");
    let error = fails(&["vbd-plug", &format!("uuid={}", machine.device)]);
    assert!(error.starts_with("The machine has this device already.\n"), "{error}");
    let error = fails(&["vm-checkpoint", "vm=a", "new-name-label=b"]);
    assert!(error.starts_with("The call is known and this server does not do it.\n"), "{error}");
}

#[test]
fn the_life_of_a_snapshot() {
    let daemon = Ringwayd::simulator(&[]).unwrap();
    let xe = |words: &[&str]| daemon.xe_prints(words).unwrap();
    let machine = Machine::make(&daemon, "a");
    xe(&["vm-start", "vm=a"]);
    let snapshot = xe(&["vm-snapshot", "vm=a", "new-name-label=before"]);
    let uuid = format!("snapshot-uuid={snapshot}");
    assert_eq!(xe(&["snapshot-list", "name-label=before", "--minimal"]), snapshot);
    let disks = || xe(&["vdi-list", "--minimal"]).split(',').count();
    let before = disks();
    xe(&["snapshot-revert", &uuid]);
    let state = ["vm-list", "name-label=a", "params=power-state", "--minimal"];
    assert_eq!((xe(&state).as_str(), disks()), ("halted", before));
    let gone = daemon.xe_output(&["vdi-destroy", &format!("uuid={}", machine.disk)]).unwrap();
    assert!(!gone.status.success(), "a clone has its place");
    let listed = xe(&["snapshot-disk-list", &uuid]);
    assert!(listed.matches("Disk 0 VDI").count() == 1, "{listed}");
    let copied = xe(&["snapshot-copy", &uuid, "new-name-label=copied"]);
    assert_eq!(disks(), before + 2);
    xe(&["template-uninstall", &format!("template-uuid={copied}"), "--force"]);
    let template = xe(&["snapshot-clone", &uuid, "new-name-label=t"]);
    let install = ["vm-install", "template=t", "new-name-label=b"];
    let made = xe(&install);
    // Each machine has the disk of its template and another one.
    assert_eq!(disks(), before + 4);
    xe(&["vm-start", "vm=b"]);
    xe(&["vm-uninstall", &format!("uuid={made}"), "--force"]);
    xe(&["template-uninstall", &format!("template-uuid={template}"), "--force"]);
    let machine = daemon.xe_output(&["snapshot-uninstall", &format!("uuid={}", machine.uuid)]);
    let error = String::from_utf8(machine.unwrap().stderr).unwrap();
    assert!(error.contains("this is no snapshot"), "{error}");
    xe(&["snapshot-uninstall", &uuid, "--force"]);
    assert_eq!(disks(), before - 2);
    let copied = xe(&["vm-copy", "vm=a", "new-name-label=c"]);
    assert_eq!((xe(&["vm-list", "name-label=c", "--minimal"]), disks()), (copied, before));
}

#[test]
fn several_machines_at_once() {
    let daemon = Ringwayd::simulator(&[]).unwrap();
    for name in ["a", "b", "c"] {
        Machine::make(&daemon, name);
    }
    let halted = ["vm-list", "power-state=halted", "params=name-label", "--minimal"];
    let count = || daemon.xe_prints(&halted).unwrap().split(',').filter(|n| !n.is_empty()).count();
    assert_eq!(count(), 3);
    daemon.xe_prints(&["vm-start", "power-state=halted", "--multiple"]).unwrap();
    assert_eq!(count(), 0);
    daemon.xe_prints(&["vm-shutdown", "--force", "--multiple"]).unwrap();
    assert_eq!(count(), 3);
}

#[test]
fn every_list_is_served() {
    let daemon = Ringwayd::simulator(&[]).unwrap();
    let all = daemon.xe_prints(&["help", "--minimal", "--all"]).unwrap();
    let lists = all.split(',').filter(|name| name.ends_with("-list"));
    // These need a machine.
    let lists = lists.filter(|name| !name.starts_with("vm-") && !name.ends_with("-disk-list"));
    let lists: Vec<_> = lists.filter(|name| !name.ends_with("-param-list")).collect();
    assert!(lists.len() > 15, "{lists:?}");
    for name in lists.into_iter().chain(["vm-list"]) {
        daemon.xe_prints(&[name, "params=all"]).unwrap();
    }
    let control = daemon.xe_prints(&["vm-list", "--minimal"]).unwrap();
    let all = daemon.xe_prints(&["vm-param-list", &format!("uuid={control}")]).unwrap();
    for line in ["is-control-domain ( RO): true", "power-state ( RO): running"] {
        assert!(all.contains(line), "{all}");
    }
}
