//! What is known and not done here says so, and does nothing.

use super::{Typed, to};

#[test]
fn what_is_not_done_here_says_so() {
    let typed = Typed::new();
    let vm = typed.machine("m");
    let (of, disk) = (to("uuid", &vm), typed.only("vdi", &[]));
    let disk = to("uuid", &disk);
    let before = typed.prints(&["vm-param-list", &of]);
    for words in [
        &["vm-copy", "vm=m", "new-name-label=n"][..],
        &["vm-memory-target-set", "vm=m", "target=1GiB"],
        &["vdi-clone", &disk],
        &["vdi-snapshot", &disk],
        &["vdi-enable-cbt", &disk],
        &["host-reboot"],
        &["host-shutdown"],
    ] {
        let refused = typed.fails(words);
        let says = ["does not do", "is not implemented"];
        assert!(says.iter().any(|it| refused.contains(it)), "{words:?}: {refused}");
    }
    typed.does(&["vm-start", "vm=m"]);
    for words in [
        &["vm-suspend", "vm=m"][..],
        &["vm-checkpoint", "vm=m", "new-name-label=n"],
        &["vm-snapshot", "vm=m", "new-name-label=n"],
        &["vm-vcpu-hotplug", "vm=m", "new-vcpus=2"],
    ] {
        let refused = typed.fails(words);
        assert!(refused.contains("does not do"), "{words:?}: {refused}");
    }
    typed.does(&["vm-shutdown", "vm=m", "--force"]);
    let states = |text: &str| {
        let kept =
            |line: &&str| ["name-label", "VCPUs-max", "memory"].iter().any(|it| line.contains(it));
        text.lines().filter(kept).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(states(&typed.prints(&["vm-param-list", &of])), states(&before));
}
