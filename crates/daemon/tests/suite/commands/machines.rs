//! VMs.

use std::time::Duration;

use xenapi::Value;
use xenapi::client::ClientError;

use super::{Typed, to};

const MIB: u64 = 1 << 20;
/// Longer than any wait here.
const PATIENCE: Duration = Duration::from_secs(120);

/// Returns the four memory bounds of a VM in MiB, smallest first.
fn memory(typed: &Typed, vm: &str) -> [u64; 4] {
    ["static-min", "dynamic-min", "dynamic-max", "static-max"].map(|bound| {
        let bytes: u64 = typed.get("vm", vm, &format!("memory-{bound}")).parse().unwrap();
        bytes / MIB
    })
}

#[test]
fn memory_is_set_in_every_way() {
    let typed = Typed::new();
    let vm = typed.machine("m");
    let of = to("uuid", &vm);
    let bounds =
        ["static-min=64MiB", "dynamic-min=128MiB", "dynamic-max=192MiB", "static-max=256MiB"];
    typed.does(&[&["vm-memory-limits-set", &of], &bounds[..]].concat());
    assert_eq!(memory(&typed, &vm), [64, 128, 192, 256]);
    typed.does(&["vm-memory-dynamic-range-set", &of, "min=100MiB", "max=200MiB"]);
    assert_eq!(memory(&typed, &vm), [64, 100, 200, 256]);
    typed.does(&["vm-memory-static-range-set", &of, "min=32MiB", "max=1GiB"]);
    assert_eq!(memory(&typed, &vm), [32, 100, 200, 1024]);
    typed.does(&["vm-memory-set", "vm=m", "memory=512MiB"]);
    assert_eq!(memory(&typed, &vm), [32, 512, 512, 512]);
    let overhead: u64 = typed.prints(&["vm-compute-memory-overhead", &of]).parse().unwrap();
    assert!(overhead > 0 && overhead < 512 * MIB, "{overhead}");
    // As in XenServer, a size is rounded up to MiB when it is set.
    typed.does(&["vm-memory-set", "vm=m", "memory=300000000"]);
    assert_eq!(typed.get("vm", &vm, "memory-static-max"), (287 * MIB).to_string());
    typed.does(&["vm-memory-set", "vm=m", "memory=512MiB"]);
    let refused = typed.fails(&["vm-param-set", &of, "VCPUs-at-startup=2"]);
    let rule = "1 <= VCPUs_at_startup <= VCPUs_max";
    assert!(refused.contains(rule), "{refused}");
    let refused = typed.fails(&["vm-memory-dynamic-range-set", &of, "min=2GiB", "max=2GiB"]);
    assert!(refused.contains("bounds of a machine's memory must not cross"), "{refused}");
    assert_eq!(memory(&typed, &vm), [32, 512, 512, 512]);
}

#[test]
fn machines_change_their_state_and_go() {
    let typed = Typed::new();
    let vm = typed.machine("m");
    let (of, power) = (to("uuid", &vm), || typed.get("vm", &vm, "power-state"));
    for (words, after) in [
        (&["vm-start", "vm=m"][..], "running"),
        (&["vm-pause", "vm=m"], "paused"),
        (&["vm-unpause", "vm=m"], "running"),
        (&["vm-reboot", "vm=m"], "running"),
        (&["vm-reboot", "vm=m", "force=true"], "running"),
        (&["vm-shutdown", "vm=m"], "halted"),
        (&["vm-start", "vm=m", "paused=true"], "paused"),
        (&["vm-reset-powerstate", "vm=m", "--force"], "halted"),
    ] {
        typed.does(words);
        assert_eq!(power(), after, "{words:?}");
    }
    typed.does(&["vm-start", &of]);
    let refused = typed.fails(&["vm-destroy", &of]);
    assert!(refused.contains("expected: halted"), "{refused}");
    typed.does(&["vm-shutdown", &of, "--force"]);
    let disk = typed.only("vbd", &[&to("vm-uuid", &vm), "type=Disk", "params=vdi-uuid"]);
    typed.does(&["vm-destroy", &of]);
    assert_eq!(typed.list("vm", &[&of]), Vec::<String>::new());
    assert_eq!(typed.only("vdi", &[&to("uuid", &disk)]), disk, "disks stay");
}

/// A cancel request takes effect before the next step of the operation.
#[test]
fn a_task_is_cancelled() {
    let typed = Typed::new();
    let vm = typed.machine("m");
    typed.daemon.set_rules("[[rule]]\ncalls = [\"attach-volume\"]\nafter-ms = 5000\n").unwrap();
    let mut client = typed.daemon.client().unwrap();
    let Value::Str(machine) = client.call("VM.get_by_uuid", &[Value::text(&*vm)]).unwrap() else {
        panic!("no reference")
    };
    let start = [Value::text(machine), Value::Bool(false), Value::Bool(false)];
    let pending_call = client.begin("VM.start", &start).unwrap();
    let task = typed.only("task", &["status=pending"]);
    assert_eq!(typed.get("task", &task, "name-label"), "Async.VM.start");
    typed.does(&["task-cancel", &to("uuid", &task)]);
    match client.end(pending_call, PATIENCE) {
        Err(ClientError::Api(error)) => assert_eq!(error.code, "TASK_CANCELLED", "{error}"),
        other => panic!("{other:?}"),
    }
    assert_eq!(typed.get("vm", &vm, "power-state"), "halted");
    typed.daemon.set_rules("").unwrap();
    typed.does(&["vm-start", "vm=m"]);
    goes_to_its_end(&typed);
    let refused = typed.fails(&["task-cancel", "uuid=6d0c3f4e-0000-4000-8000-000000000000"]);
    assert!(refused.contains("6d0c3f4e-0000-4000-8000-000000000000"), "{refused}");
}

/// Asserts that a cancel of a task that cannot be cancelled is refused.
fn goes_to_its_end(typed: &Typed) {
    typed.daemon.set_rules("[[rule]]\ncalls = [\"scan\"]\nend = \"hangs\"\n").unwrap();
    let mut client = typed.daemon.client().unwrap();
    let sr = client.records("SR").unwrap().first().unwrap().0.clone();
    client.begin("SR.scan", &[Value::text(sr)]).unwrap();
    let task = typed.only("task", &["status=pending"]);
    assert_eq!(typed.get("task", &task, "allowed-operations"), "");
    let refused = typed.fails(&["task-cancel", &to("uuid", &task)]);
    assert!(refused.contains("cannot be cancelled"), "{refused}");
}

#[test]
fn templates_and_clones() {
    let typed = Typed::new();
    let vm = typed.prints(&["vm-install", "template=Other install media", "new-name-label=bare"]);
    let disk = typed.only("vbd", &[&to("vm-uuid", &vm), "type=Disk"]);
    typed.does(&["vbd-destroy", &to("uuid", &disk)]);
    // A VM without disks can be cloned, because no disk must be copied.
    let copy = typed.prints(&["vm-clone", "vm=bare", "new-name-label=copy"]);
    assert_eq!(typed.get("vm", &copy, "name-label"), "copy");
    assert_eq!(typed.get("vm", &copy, "power-state"), "halted");
    typed.does(&["vm-param-set", &to("uuid", &copy), "is-a-template=true"]);
    assert_eq!(typed.only("template", &["name-label=copy"]), copy);
    // Without a disk there is nothing to put on the storage that is named.
    let sr = to("sr-uuid", &typed.prints(&["pool-list", "params=default-SR", "--minimal"]));
    let words = ["vm-install", "template=copy", "new-name-label=from-copy", &sr];
    let from_copy = typed.prints(&words);
    assert_eq!(typed.get("vm", &from_copy, "power-state"), "halted");
    assert_eq!(typed.list("vbd", &[&to("vm-uuid", &from_copy), "type=Disk"]), Vec::<String>::new());
    typed.prints(&["template-uninstall", &to("template-uuid", &copy), "--force"]);
    assert_eq!(typed.list("template", &["name-label=copy"]), Vec::<String>::new());
}

#[test]
fn a_boot_order_has_the_letters_of_devices() {
    let typed = Typed::new();
    let vm = typed.machine("m");
    let of = to("uuid", &vm);
    let order = || {
        let words = ["vm-param-get", &of, "param-name=HVM-boot-params", "param-key=order"];
        typed.prints(&words)
    };
    for (letters, is_taken) in [("zz", false), ("cda", false), ("ndc", true), ("c,d", false)] {
        let words = ["vm-param-set", &of, &format!("HVM-boot-params:order={letters}")];
        if is_taken {
            typed.does(&words);
        } else {
            let before = order();
            let refused = typed.fails(&words);
            assert!(refused.contains("HVM_boot_params:order"), "{refused}");
            assert!(refused.contains("d (CD)"), "{refused}");
            assert_eq!(order(), before);
        }
    }
    assert_eq!(order(), "ndc");
}

/// A guest without an agent is asked by its power button, so the wait may be long.
#[test]
fn a_shutdown_says_what_it_waits_for() {
    let typed = Typed::new();
    typed.machine("m");
    for (words, says) in [
        (&["vm-shutdown", "vm=m"][..], true),
        (&["vm-reboot", "vm=m"], true),
        (&["vm-shutdown", "vm=m", "--force"], false),
    ] {
        if typed.get("vm", &typed.only("vm", &["name-label=m"]), "power-state") == "halted" {
            typed.does(&["vm-start", "vm=m"]);
        }
        let output = typed.daemon.xe_output(words).unwrap();
        assert!(output.status.success(), "{output:?}");
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        let told = stderr.contains("m: no guest agent") && stderr.contains("--force");
        assert_eq!(told, says, "{words:?}: {stderr}");
    }
}
