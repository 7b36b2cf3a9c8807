//! The host, the pool and what else is kept.

use super::{Typed, to};

#[test]
fn a_host_that_is_emptied_takes_no_machine() {
    let typed = Typed::new();
    typed.machine("m");
    typed.does(&["host-disable"]);
    let refused = typed.fails(&["vm-start", "vm=m"]);
    assert!(refused.contains("Enable it first"), "{refused}");
    typed.does(&["host-evacuate"]);
    typed.does(&["host-enable"]);
    let free: u64 = typed.prints(&["host-compute-free-memory"]).parse().unwrap();
    assert!(free > 0);
    typed.does(&["vm-start", "vm=m"]);
    // There is no other host that would take what runs.
    typed.does(&["host-disable"]);
    let refused = typed.fails(&["host-evacuate"]);
    assert!(refused.contains("There is no other host"), "{refused}");
    typed.does(&["host-enable"]);
    let shown = typed.prints(&["host-cpu-info"]);
    assert!(shown.contains("cpu_count"), "{shown}");
}

#[test]
fn what_is_kept_can_be_destroyed() {
    let typed = Typed::new();
    typed.does(&["pool-sync-database"]);
    let host = typed.only("host", &[]);
    let words = ["name=hello", "priority=3", "body=text", &to("host-uuid", &host)];
    typed.does(&[&["message-create"], &words[..]].concat());
    let message = typed.only("message", &["name=hello"]);
    assert_eq!(typed.get("message", &message, "obj-uuid"), host);
    typed.does(&["message-destroy", &to("uuid", &message)]);
    assert_eq!(typed.list("message", &["name=hello"]), Vec::<String>::new());

    let secret = typed.prints(&["secret-create", "value=hidden"]);
    assert_eq!(typed.get("secret", &secret, "value"), "hidden");
    typed.does(&["secret-destroy", &to("uuid", &secret)]);
    assert_eq!(typed.list("secret", &[]), Vec::<String>::new());
}
