//! Commands that are known but not supported say so and do nothing.

use super::{Typed, to};

/// Asserts that the help of a command says that it is refused.
fn helps(typed: &Typed, command: &str) {
    let help = typed.prints(&["help", command]);
    assert!(help.contains("do not support it yet"), "{help}");
}

#[test]
fn what_is_not_done_here_says_so() {
    let typed = Typed::new();
    let vm = typed.machine("m");
    let (of, disk) = (to("uuid", &vm), typed.only("vdi", &[]));
    let disk = to("uuid", &disk);
    let before = typed.prints(&["vm-param-list", &of]);
    for words in [
        &["vm-memory-target-set", "vm=m", "target=1GiB"][..],
        &["vdi-enable-cbt", &disk],
        &["host-reboot"],
        &["host-shutdown"],
    ] {
        let refused = typed.fails(words);
        let says = ["does not do", "is not implemented"];
        assert!(says.iter().any(|it| refused.contains(it)), "{words:?}: {refused}");
        helps(&typed, words[0]);
    }
    typed.does(&["vm-start", "vm=m"]);
    for words in [
        &["vm-suspend", "vm=m"][..],
        &["vm-checkpoint", "vm=m", "new-name-label=n"],
        &["vm-vcpu-hotplug", "vm=m", "new-vcpus=2"],
    ] {
        let refused = typed.fails(words);
        assert!(refused.contains("does not do"), "{words:?}: {refused}");
        helps(&typed, words[0]);
    }
    typed.does(&["vm-shutdown", "vm=m", "--force"]);
    let states = |text: &str| {
        let kept =
            |line: &&str| ["name-label", "VCPUs-max", "memory"].iter().any(|it| line.contains(it));
        text.lines().filter(kept).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(states(&typed.prints(&["vm-param-list", &of])), states(&before));
}

/// A part of a value, or another name, does not get lost.
#[test]
fn what_is_no_parameter_is_named() {
    let typed = Typed::new();
    let sr = to("sr-uuid", &typed.only("sr", &["type=dir"]));
    for (words, says) in [
        (&["vdi-create", &sr, "name-label=d", "virtual-size=1", "GiB"][..], "what is 'GiB'?"),
        (&["network-create", "name-label=my", "network"], "what is 'network'?"),
        (&["vbd-create", "vm-uuid=x", "userdevice=1"], "not found: device, and 'userdevice'"),
        (&["pool-dump-database", "filename=x"], "not found: file-name, and 'filename'"),
    ] {
        let refused = typed.fails(words);
        assert!(refused.contains(says), "{words:?}: {refused}");
    }
    assert_eq!(typed.list("vdi", &[]), Vec::<String>::new());
}

/// Options without an equivalent here are refused. The text names the alternatives.
#[test]
fn what_asks_for_something_else_is_told_what_is_there() {
    let typed = Typed::new();
    let vm = typed.machine("m");
    let [disk, sr, host] = [("vdi", &[][..]), ("sr", &["type=dir"]), ("host", &[])]
        .map(|(class, words)| typed.only(class, words));
    let (disk_is, vm_is, at) = (to("uuid", &disk), to("uuid", &vm), to("sr-uuid", &sr));
    let (of_vm, of_host) = (to("vm-uuid", &vm), to("host-uuid", &host));
    let (snapshot, plugin) = (to("snapshot-uuid", &vm), ["plugin=p", "fn=f", "args:a=b"]);
    let vm_plugin = [&["vm-call-plugin", &*of_vm], &plugin[..]].concat();
    let host_plugin = [&["host-call-plugin", &*of_host], &plugin[..]].concat();
    let migrate = ["vm-migrate", "vm=m", &of_host, "live=true"];
    let nobody = "00000000-0000-4000-8000-000000000000";
    let refuses = |words: &[&str], says: &[&str]| {
        let refused = typed.fails(words);
        assert!(says.iter().all(|it| refused.contains(it)), "{words:?}: {refused}");
    };
    for words in [
        &["vdi-pool-migrate", &*disk_is, &at][..],
        &["vdi-data-destroy", &disk_is],
        &["vdi-disable-cbt", &disk_is],
    ] {
        refuses(words, &["does not do", "method: VDI."]);
        helps(&typed, words[0]);
    }
    refuses(&host_plugin, &["no such plugin", "name: p"]);
    refuses(&["snapshot-destroy", &to("uuid", nobody)], &["class: VM", nobody]);
    for (power, words, says) in [
        ("halted", &migrate[..], &["expected: running", "actual: halted"]),
        ("halted", &["vm-resume", "vm=m"], &["expected: suspended", "actual: halted"]),
        ("halted", &["snapshot-revert", &snapshot], &["this is no snapshot", "snapshot-list"]),
        ("halted", &vm_plugin, &["expected: running", "actual: halted"]),
        ("running", &migrate, &["does not do", "VM.pool_migrate"]),
        ("running", &["vm-resume", "vm=m"], &["expected: suspended", "actual: running"]),
        ("running", &["snapshot-destroy", &vm_is], &["expected: halted", "actual: running"]),
        ("running", &vm_plugin, &["does not do", "VM.call_plugin"]),
    ] {
        if typed.get("vm", &vm, "power-state") != power {
            typed.does(&["vm-start", "vm=m"]);
        }
        refuses(words, says);
        assert_eq!(typed.get("vm", &vm, "power-state"), power, "{words:?}");
    }
    assert_eq!(
        (typed.only("vdi", &[]), typed.only("vbd", &["type=Disk", "params=vdi-uuid"])),
        (disk.clone(), disk)
    );
}
