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

#[test]
fn the_database_is_restored_at_the_next_start() {
    let mut typed = Typed::new();
    let vm = typed.machine("kept");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("dump");
    let file = to("file-name", path.to_str().unwrap());
    typed.does(&["pool-dump-database", &file]);
    typed.does(&["vm-param-set", &to("uuid", &vm), "name-label=renamed"]);
    typed.does(&["vm-start", "vm=renamed"]);
    let restore = ["pool-restore-database", &file];
    let refused = typed.fails(&restore);
    assert!(refused.contains("renamed is not halted"), "{refused}");
    typed.does(&["vm-shutdown", "vm=renamed", "--force"]);
    let tried = typed.prints(&[&restore[..], &["--dry-run"]].concat());
    assert!(tried.contains("successful"), "{tried}");
    typed.daemon.stop().unwrap();
    typed.daemon.start_again().unwrap();
    assert_eq!(typed.get("vm", &vm, "name-label"), "renamed", "a dry run changes nothing");
    let other = typed.machine("later");
    let done = typed.prints(&restore);
    assert!(done.contains("starts again"), "{done}");
    assert_eq!(typed.get("vm", &vm, "name-label"), "renamed");
    typed.daemon.stop().unwrap();
    typed.daemon.start_again().unwrap();
    assert_eq!(typed.get("vm", &vm, "name-label"), "kept");
    assert_eq!(typed.list("vm", &[&to("uuid", &other)]), Vec::<String>::new());
    let state = typed.daemon.dir().join("state");
    let former = std::fs::read_to_string(state.join("copies/before-restore")).unwrap();
    assert!(former.contains("renamed"), "{former:.200}");
    // The restore is done once.
    typed.does(&["vm-param-set", &to("uuid", &vm), "name-label=after"]);
    typed.daemon.stop().unwrap();
    typed.daemon.start_again().unwrap();
    assert_eq!(typed.get("vm", &vm, "name-label"), "after");
}

#[test]
fn what_is_no_database_is_not_restored() {
    let typed = Typed::new();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("dump");
    let file = to("file-name", path.to_str().unwrap());
    let missing = typed.fails(&["pool-restore-database", &file]);
    assert!(missing.contains("cannot read"), "{missing}");
    typed.does(&["pool-dump-database", &file]);
    let whole = std::fs::read_to_string(&path).unwrap();
    let (cut, _) = whole.split_at(whole.len() / 2);
    let none = "{\"schema\":1,\"generation\":1,\"ceiling\":2,\"rows\":0}\n";
    for (text, says) in [
        ("", "the export is empty"),
        (cut, "line"),
        (none, "no pool"),
        ("<?xml version=\"1.0\"?><database/>\n", "line 1"),
    ] {
        std::fs::write(&path, text).unwrap();
        for word in ["--dry-run", "dry-run=false"] {
            let refused = typed.fails(&["pool-restore-database", &file, word]);
            assert!(refused.contains(says), "{refused}");
        }
    }
    let state = typed.daemon.dir().join("state");
    let names = std::fs::read_dir(state).unwrap().map(|one| one.unwrap().file_name());
    let left = names.filter(|name| name.to_string_lossy().contains("restore"));
    assert_eq!(left.count(), 0);
}
