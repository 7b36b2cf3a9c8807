//! Tests of `ringway net`. Tests that change devices run as root in a network namespace of their
//! own.
#![allow(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

use std::path::Path;
use std::process::{Command, Output};

use testkit::in_namespace::in_own_network;

fn net(state: &Path, words: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringway"));
    command.arg("net").arg("--state").arg(state).args(words.split(' ')).output().unwrap()
}

fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn what_no_network_can_be_is_refused_before_anything_is_done() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("networks");
    let cases = [
        ("create LAN", "small letters"),
        ("create abcdefghijkl", "1 to 11"),
        ("create ../lan", "small letters"),
        ("create lan --subnet 10.5.0.1/24", "begins at 10.5.0.0/24"),
        ("create lan --subnet 10.5.0.0", "10.5.0.0/24"),
        ("destroy -x", "unexpected argument"),
        ("create", "<NAME>"),
        ("remove lan", "unrecognized subcommand"),
    ];
    for (words, why) in cases {
        let output = net(&state, words);
        assert_eq!(output.status.code(), Some(2), "{words}: {}", err(&output));
        assert!(err(&output).contains(why), "{words}: {}", err(&output));
    }
    assert!(!state.exists());
    // The second line would become a line of dnsmasq's configuration.
    let line = dir.path().join("a\nuser=root");
    let output = net(&line, "create lan --dhcp");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(err(&output).contains("without control characters"), "{output:?}");
    assert!(!line.exists());
    let output = net(&state, "list");
    assert!(output.status.success() && out(&output).contains("network"), "{output:?}");
}

#[test]
fn a_network_is_made_shown_and_removed() {
    in_own_network(concat!(module_path!(), "::a_network_is_made_shown_and_removed"), || {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("networks");
        let made = net(&state, "create lan --nat");
        assert!(made.status.success(), "{made:?}");
        for part in
            ["rw-lan", "rwt-lan", "10.213.0.1/24", "10.213.0.2 to 10.213.0.254, set by hand"]
        {
            assert!(out(&made).contains(part), "{part}: {made:?}");
        }
        assert!(err(&made).contains("IPv4 forwarding was off"), "{made:?}");
        let again = net(&state, "create lan --nat");
        assert!(again.status.success() && again.stderr.is_empty(), "{again:?}");
        let other = net(&state, "create lan");
        assert_eq!(other.status.code(), Some(1));
        assert!(err(&other).contains("destroy it first"), "{other:?}");

        let list = net(&state, "list");
        assert!(list.status.success() && out(&list).contains(" up "), "{list:?}");
        let shown = net(&state, "list --format json");
        let shown: serde_json::Value = serde_json::from_slice(&shown.stdout).unwrap();
        assert_eq!(shown[0]["name"], "lan");
        assert_eq!(shown[0]["gateway"], "10.213.0.1");
        assert_eq!(shown[0]["problems"], serde_json::json!([]));
        let removed = Command::new("ip").args(["link", "del", "dev", "rwt-lan"]).status().unwrap();
        assert!(removed.success());
        let list = net(&state, "list");
        assert_eq!(list.status.code(), Some(1));
        assert!(out(&list).contains("lan: device rwt-lan is missing"), "{list:?}");

        assert!(net(&state, "destroy lan").status.success());
        assert_eq!(out(&net(&state, "list --format json")), "[]\n");
        let gone = net(&state, "destroy lan");
        assert!(
            gone.status.success() && err(&gone).contains("there is no network lan"),
            "{gone:?}"
        );
    })
    .unwrap();
}
