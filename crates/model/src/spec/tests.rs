//! Tests of valid and invalid specs on the wire.

use super::*;

fn spec() -> DiskSpec {
    DiskSpec::new("d1", "/run/x/d1.sock", Backend::Null(1 << 20))
}

#[test]
fn attach_parameters_of_the_manual_parse() {
    let text = r#"{"id":"d1","socket":"/run/x/d1.sock","backend":{"file":"/img/a.raw"},
        "queues":4,"read_only":false,"serial":"A1"}"#;
    let parsed: DiskSpec = serde_json::from_str(text).unwrap();
    let mut expected = DiskSpec::new("d1", "/run/x/d1.sock", Backend::File("/img/a.raw".into()));
    expected.queues = 4;
    expected.serial = Some("A1".into());
    assert_eq!(parsed, expected);
    assert_eq!(parsed.validate(), Ok(()));
}

#[test]
fn a_spec_has_a_socket_on_the_wire_if_the_disk_has_one() {
    // Every version reads and writes this text.
    let text = r#"{"id":"d1","socket":"/run/x/d1.sock","backend":{"null":1048576},"queues":1,"read_only":false,"cache":"none","on_full":"wait","stop_deadline_ms":30000,"activate":true,"record":true}"#;
    assert_eq!(serde_json::to_string(&spec()).unwrap(), text);
    assert_eq!(serde_json::from_str::<DiskSpec>(text).unwrap(), spec());
    assert!(spec().activates());
    assert!(!DiskSpec { activate: false, ..spec() }.activates());

    let without = DiskSpec::without_socket("d1", Backend::Null(1 << 20));
    let text = text.replace(r#""socket":"/run/x/d1.sock","#, "");
    assert_eq!(serde_json::to_string(&without).unwrap(), text);
    assert_eq!(serde_json::from_str::<DiskSpec>(&text).unwrap(), without);
    assert_eq!(without.validate(), Ok(()));
    assert!(!without.activates(), "also if it asks for that");
}

#[test]
fn polling_is_there_only_when_it_was_asked_for() {
    let plain = serde_json::to_value(spec()).unwrap();
    assert!(plain.as_object().unwrap().keys().all(|key| !key.starts_with("poll")), "{plain}");
    // A former version did not write the other two fields.
    let text = r#"{"id":"d1","socket":"/s","backend":{"null":512},"poll":"off"}"#;
    let parsed: DiskSpec = serde_json::from_str(text).unwrap();
    assert_eq!(parsed.polling().resolve().mode, PollMode::Off);
    let polling = PollSpec { poll_max_us: Some(9), ..parsed.polling() };
    let again = serde_json::to_value(parsed.with_polling(polling)).unwrap();
    assert_eq!((again["poll"].as_str(), again["poll_max_us"].as_u64()), (Some("off"), Some(9)));
    let error = serde_json::from_str::<DiskSpec>(&text.replace("\"off\"", "\"on\"")).unwrap_err();
    assert!(error.to_string().contains("\"always\""), "{error}");
}

#[test]
fn a_block_size_is_a_number_or_that_of_the_storage() {
    let parse = |value: &str| {
        let text =
            format!(r#"{{"id":"d","socket":"/s","backend":{{"null":4096}},"block_size":{value}}}"#);
        serde_json::from_str::<DiskSpec>(&text)
    };
    for (value, size, bytes) in [
        ("4096", Some(BlockSize::Bytes(4096)), Some(4096)),
        ("\"storage\"", Some(BlockSize::Storage), None),
        ("null", None, Some(512)),
    ] {
        let spec = parse(value).unwrap();
        assert_eq!((spec.block_size, spec.block_bytes()), (size, bytes), "{value}");
        let again = serde_json::to_string(&spec).unwrap();
        assert_eq!(serde_json::from_str::<DiskSpec>(&again).unwrap(), spec, "{again}");
        assert_eq!(again.contains(&format!("\"block_size\":{value}")), size.is_some(), "{again}");
    }
    for bad in ["\"large\"", "-1", "4294967296", "[512]", "{}"] {
        assert!(parse(bad).is_err(), "{bad}");
    }
    assert_eq!("storage".parse(), Ok(BlockSize::Storage));
    assert_eq!("1024".parse(), Ok(BlockSize::Bytes(1024)));
    assert_eq!("1K".parse::<BlockSize>().unwrap_err().field, "block_size");
}

#[test]
fn unknown_fields_are_refused() {
    let text = r#"{"id":"d","socket":"/s","backend":{"null":512},"cash":"none"}"#;
    let error = serde_json::from_str::<DiskSpec>(text).unwrap_err().to_string();
    assert!(error.contains("cash"), "{error}");
}

#[test]
fn each_bad_field_is_named() {
    type Break = fn(&mut DiskSpec);
    let cases: [(&str, Break); 17] = [
        ("id", |s| s.id = "a/b".into()),
        ("id", |s| s.id = "-a".into()),
        ("socket", |s| s.socket = Some("/".repeat(108).into())),
        ("socket", |s| s.socket = Some("".into())),
        ("socket_mode", |s| (s.socket, s.socket_mode) = (None, Some(0o660))),
        ("socket_group", |s| (s.socket, s.socket_group) = (None, Some("kvm".into()))),
        ("queues", |s| s.queues = 0),
        ("queues", |s| s.queues = MAX_QUEUES + 1),
        ("serial", |s| s.serial = Some("x".repeat(21))),
        ("block_size", |s| s.block_size = Some(BlockSize::Bytes(513))),
        ("caps.iops", |s| s.caps = Some(Caps { iops: Some(0), ..Caps::default() })),
        ("poll_max_us", |s| s.poll_max_us = Some(10_001)),
        ("poll_idle_threshold", |s| s.poll_idle_threshold = Some(101)),
        ("stop_deadline_ms", |s| s.stop_deadline_ms = 0),
        ("stop_deadline_ms", |s| s.stop_deadline_ms = u64::MAX),
        ("backend", |s| s.backend = Backend::Null(0)),
        ("backend", |s| s.backend = Backend::Memory(513)),
    ];
    for (field, break_it) in cases {
        let mut broken = spec();
        break_it(&mut broken);
        assert_eq!(broken.validate().unwrap_err().field, field);
    }
    assert_eq!(spec().validate(), Ok(()));
}

#[test]
fn sizes() {
    assert_eq!(parse_size("512"), Ok(512));
    assert_eq!(parse_size("8G"), Ok(8 << 30));
    assert_eq!(parse_size("1 MiB"), Ok(1 << 20));
    for bad in ["", "G", "-1", "1.5G", "12X", "99999999999T"] {
        assert_eq!(parse_size(bad).unwrap_err().field, "size", "{bad}");
    }
}

#[test]
fn times() {
    assert_eq!(parse_time_ms("30"), Ok(30_000));
    assert_eq!(parse_time_ms("30s"), Ok(30_000));
    assert_eq!(parse_time_ms("250ms"), Ok(250));
    assert_eq!(parse_time_ms("2m"), Ok(120_000));
    for bad in ["", "s", "-1", "1.5s", "1h", "99999999999999999999", "18446744073709551615"] {
        assert_eq!(parse_time_ms(bad).unwrap_err().field, "time", "{bad}");
    }
}

proptest::proptest! {
    /// Any text gives a checked value or an error, never a panic.
    #[test]
    fn any_text_is_a_size_or_an_error(text in ".{0,24}", digits in "[0-9]{1,30}[kKmMgGtT]?") {
        for text in [text, digits] {
            if let Ok(bytes) = parse_size(&text) {
                proptest::prop_assert!(bytes <= MAX_DISK_BYTES);
            }
        }
    }

    /// A valid spec satisfies all assumptions of the datapath.
    #[test]
    fn what_validates_is_in_bounds(
        id in ".{0,70}", queues: u16, size: u64, block: u32, serial in ".{0,24}",
    ) {
        let mut any = DiskSpec::new(id, "/s", Backend::Null(size));
        (any.queues, any.block_size, any.serial) = (queues, Some(BlockSize::Bytes(block)), Some(serial));
        if any.validate().is_ok() {
            proptest::prop_assert!(any.queues >= 1 && any.queues <= MAX_QUEUES);
            proptest::prop_assert!(size.is_multiple_of(u64::from(block)) && size > 0);
            proptest::prop_assert!(any.serial.is_none_or(|s| s.len() <= MAX_SERIAL_BYTES));
            proptest::prop_assert!(!any.id.contains('/'));
        }
    }
}
