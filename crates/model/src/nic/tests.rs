//! Tests of NIC specifications on the wire.

use serde_json::{Value, json};

use super::*;

fn spec(change: &[(&str, Value)]) -> Result<NicSpec, String> {
    let mut value =
        json!({"id": "n1", "socket": "/s", "network": "lan", "mac": "02:00:00:00:00:01"});
    for (field, to) in change {
        value[*field] = to.clone();
    }
    let spec: NicSpec = serde_json::from_value(value).map_err(|error| error.to_string())?;
    spec.validate().map(|()| spec).map_err(|error| error.to_string())
}

#[test]
fn what_is_absent_has_defaults() {
    let mac: MacAddress = "02:00:00:00:00:01".parse().unwrap();
    assert_eq!(spec(&[]).unwrap(), NicSpec::new("n1", "/s", "lan", mac));
    let whole = spec(&[
        ("queues", json!(4)),
        ("mq", json!(false)),
        ("mtu", json!(9000)),
        ("vlan", json!(7)),
        ("locked", json!({"ipv4": ["10.0.0.1"], "ipv6": ["fe80::1"]})),
        ("rate", json!({"bytes_per_second": 1_000_000, "bytes_burst": 200_000})),
        ("poll", json!("always")),
        ("poll_max_us", json!(50)),
    ]);
    let whole = whole.unwrap();
    let again: NicSpec = serde_json::from_value(serde_json::to_value(&whole).unwrap()).unwrap();
    assert_eq!(again, whole);
    assert_eq!((whole.queues, whole.mq, whole.mtu, whole.vlan), (4, false, Some(9000), Some(7)));
    assert_eq!((whole.polling().resolve().max_us, spec(&[]).unwrap().polling().poll), (50, None));
    let other = whole.clone().with_polling(Default::default());
    assert_eq!((other.poll, other.poll_max_us, other.queues), (None, None, 4));
}

#[test]
fn what_cannot_be_served_is_named() {
    let many = vec!["10.0.0.1"; MAX_LOCKED + 1];
    for (field, value, says) in [
        ("id", json!("../x"), "id: "),
        ("id", json!("x".repeat(65)), "id: "),
        ("network", json!(""), "network: "),
        ("network", json!("a/b"), "network: "),
        ("socket", json!("x".repeat(200)), "socket: "),
        ("mac", json!("01:00:00:00:00:01"), "mac: "),
        ("mac", json!("00:00:00:00:00:00"), "mac: "),
        ("mac", json!("2:0:0:0:0:1"), "mac: "),
        ("mac", json!("02:00:00:00:00:01:02"), "mac: "),
        ("mac", json!("02:00:00:00:00"), "mac: "),
        ("mac", json!("02:00:00:00:00:+1"), "mac: "),
        ("queues", json!(0), "queues: "),
        ("queues", json!(129), "queues: "),
        ("mtu", json!(67), "mtu: "),
        ("mtu", json!(65536), "u16"),
        ("vlan", json!(0), "vlan: "),
        ("vlan", json!(4095), "vlan: "),
        ("locked", json!({"ipv4": many}), "locked: "),
        ("locked", json!({"ipv4": ["10.0.0.1/8"]}), "IPv4"),
        ("locked", json!({"mac": "x"}), "unknown field"),
        ("rate", json!({"bytes_per_second": 0}), "rate.bytes_per_second: "),
        ("rate", json!({"bytes_per_second": 4096, "bytes_burst": 1}), "rate.bytes_burst: "),
        ("poll", json!("maybe"), "poll: "),
        ("poll_max_us", json!(10_001), "poll_max_us: "),
        ("poll_idle_threshold", json!(101), "poll_idle_threshold: "),
        ("socket_mode", json!(0o1777), "socket_mode: "),
        ("colour", json!(1), "unknown field"),
    ] {
        let error = spec(&[(field, value)]).unwrap_err();
        assert!(error.contains(says), "{field}: {error}");
    }
}

#[test]
fn uplinks_are_devices_of_the_host() {
    let check = |value| serde_json::from_value::<UplinkSpec>(value).unwrap().validate();
    assert_eq!(check(json!({"network": "lan", "tap": "rw-tap.0"})), Ok(()));
    assert_eq!(check(json!({"network": "lan"})), Ok(()));
    for (network, tap) in [
        ("lan", ""),
        ("lan", "a/b"),
        ("lan", ".."),
        ("lan", "-x"),
        ("lan", "x".repeat(16).as_str()),
    ] {
        assert_eq!(check(json!({"network": network, "tap": tap})).unwrap_err().field, "tap");
    }
    assert_eq!(check(json!({"network": "", "tap": "x"})).unwrap_err().field, "network");
}
