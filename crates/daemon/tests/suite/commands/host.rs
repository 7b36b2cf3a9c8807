//! Host, pool and field-only classes.

use std::time::Duration;

use testkit::process::Process;
use xenapi::client::{Address, Client, ClientError};
use xenapi::envelope::Encoding;

use super::{Typed, to};

/// Longer than any wait here.
const PATIENCE: Duration = Duration::from_secs(120);

#[test]
fn a_host_that_is_emptied_takes_no_machine() {
    let typed = Typed::new();
    typed.machine("m");
    let host = typed.only("host", &[]);
    let allows = |op: &str| typed.get("host", &host, "allowed-operations").contains(op);
    assert!(allows("vm_start") && allows("evacuate"));
    typed.does(&["host-disable"]);
    assert!(!allows("vm_start") && allows("evacuate"));
    let refused = typed.fails(&["vm-start", "vm=m"]);
    assert!(refused.contains("Enable it first"), "{refused}");
    typed.does(&["host-evacuate"]);
    typed.does(&["host-enable"]);
    let free: u64 = typed.prints(&["host-compute-free-memory"]).parse().unwrap();
    assert!(free > 0);
    typed.does(&["vm-start", "vm=m"]);
    // No other host could take the running VMs.
    typed.does(&["host-disable"]);
    let refused = typed.fails(&["host-evacuate"]);
    assert!(refused.contains("There is no other host"), "{refused}");
    typed.does(&["host-enable"]);
    let shown = typed.prints(&["host-cpu-info"]);
    assert!(shown.contains("cpu_count"), "{shown}");
}

/// As XenServer's toolstack does.
#[test]
fn a_restart_of_the_daemon_enables_the_host() {
    let mut typed = Typed::new();
    typed.does(&["host-disable"]);
    typed.daemon.stop().unwrap();
    typed.daemon.start_again().unwrap();
    let host = typed.only("host", &[]);
    assert_eq!(typed.get("host", &host, "enabled"), "true");
    let bytes = |field: &str| typed.get("host", &host, field).parse::<u64>().unwrap();
    assert!(bytes("memory-free") <= bytes("memory-total"));
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

#[test]
fn the_password_is_another_one_from_then_on() {
    let mut typed = Typed::new();
    let first = typed.daemon.password().unwrap();
    let url = typed.daemon.url().unwrap();
    let port = url.rsplit_once(':').unwrap().1;
    let login = |password: &str| {
        let place = Address::Plain("127.0.0.1".to_owned(), port.parse().unwrap());
        Client::connect(place, Encoding::Json).unwrap().login("root", password, "test")
    };
    let refused = |password: &str| match login(password) {
        Err(ClientError::Api(error)) => assert_eq!(error.code, "SESSION_AUTHENTICATION_FAILED"),
        other => panic!("{other:?}"),
    };
    typed.does(&["user-password-change", "new=second"]);
    login("second").unwrap();
    refused(&first);
    // A client on the network must give the old password.
    let far = |password: &str, old: &str| {
        let words = ["-s", "127.0.0.1", "-p", port, "-u", "root", "-pw", password];
        let change = ["user-password-change", "new=third"];
        let output = typed.daemon.xe_output(&[&words[..], &change, &[&to("old", old)]].concat());
        let output = output.unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, why) = far("second", "guess");
    assert_eq!(code, Some(1), "{why}");
    login("second").unwrap();
    assert_eq!(far("second", "second"), (Some(0), String::new()));
    login("third").unwrap();
    refused("second");
}

/// Chosen VMs start after a boot of the host, but not after a restart of only the daemon.
#[test]
fn machines_that_are_chosen_start_with_their_host() {
    let mut typed = Typed::new();
    let (chosen, other) = (typed.machine("chosen"), typed.machine("other"));
    let (pool, host) = (typed.only("pool", &[]), typed.only("host", &[]));
    let (chosen_is, host_is) = (to("uuid", &chosen), to("uuid", &host));
    let on = "other-config:auto_poweron=true";
    typed.does(&["pool-param-set", &to("uuid", &pool), on]);
    typed.does(&["vm-param-set", &chosen_is, on]);
    typed.daemon.stop().unwrap();
    typed.daemon.start_again().unwrap();
    typed.does(&["vm-start", "vm=other"]);
    typed.does(&["vm-shutdown", "vm=other", "--force"]);
    assert_eq!(typed.get("vm", &chosen, "power-state"), "halted");
    // Simulates that the daemon last started at another boot.
    typed.does(&["host-param-set", &host_is, "other-config:boot_id=another"]);
    typed.daemon.stop().unwrap();
    typed.daemon.start_again().unwrap();
    let wait = ["event-wait", "class=vm", &chosen_is, "power-state=running"];
    let waited = Process::start(&mut typed.daemon.xe(&wait).unwrap()).unwrap().wait(PATIENCE);
    assert!(waited.unwrap().success());
    assert_eq!(typed.get("vm", &other, "power-state"), "halted");
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let known = ["host-param-get", &host_is, "param-name=other-config", "param-key=boot_id"];
    assert_eq!(typed.prints(&known), boot.trim(), "the one to compare with next time");
}

#[test]
fn the_database_is_dumped_to_a_new_file() {
    let typed = Typed::new();
    typed.machine("kept");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("dump");
    let to_file = to("file-name", path.to_str().unwrap());
    typed.does(&["pool-dump-database", &to_file]);
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(text.starts_with("{\"schema\":") && text.contains("kept"), "{text:.200}");
    let refused = typed.fails(&["pool-dump-database", &to_file]);
    assert!(refused.contains("name a new file"), "{refused}");
}
