//! The host, the pool and what else is kept.

use xenapi::client::{Address, Client, ClientError};
use xenapi::envelope::Encoding;

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
    assert!(refused.contains("host"), "{refused}");
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
    // Who comes over the network knows the one before.
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
