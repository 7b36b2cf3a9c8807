//! Tests of calls and replies on the wire.

use serde_json::json;

use super::*;
use crate::poll::{PollChange, PollMode};

#[test]
fn calls_parse_into_checked_types() {
    let call = Call::parse("disk.resize", json!({"id":"a","size":512})).unwrap();
    assert_eq!(call, Call::DiskResize(Resize { id: "a".into(), size: Some(512) }));
    assert_eq!(Call::parse("stats", Value::Null).unwrap(), Call::Stats(StatsQuery::default()));
}

/// Callers of earlier versions do not send `force`, and must not be refused.
#[test]
fn a_detach_is_forced_unless_it_says_otherwise() {
    let forces = |params| match Call::parse("disk.detach", params) {
        Ok(Call::DiskDetach(detach)) => detach.force,
        other => panic!("{other:?}"),
    };
    assert!(forces(json!({"id":"a"})));
    assert!(forces(json!({"id":"a","force":true})));
    assert!(!forces(json!({"id":"a","force":false})));
}

#[test]
fn refusals_carry_the_right_code() {
    let cases = [
        ("disk.atach", json!({}), code::METHOD_NOT_FOUND),
        ("disk.detach", json!({}), code::INVALID_PARAMS),
        ("disk.detach", json!([1]), code::INVALID_PARAMS),
        ("disk.detach", json!({"id":"a","force":null}), code::INVALID_PARAMS),
        ("disk.caps", json!({"id":"a","caps":{"iops":0}}), code::INVALID_PARAMS),
        ("disk.poll", json!({}), code::INVALID_PARAMS),
        ("disk.poll", json!({"id":"a","poll":"on"}), code::INVALID_PARAMS),
        ("disk.poll", json!({"id":"a","max_us":1}), code::INVALID_PARAMS),
        ("poll.defaults", json!({"id":"a"}), code::INVALID_PARAMS),
        ("nic.attach", json!({"id":"a","socket":"/s","network":"n"}), code::INVALID_PARAMS),
        ("nic.detach", json!({"id":"a","mac":"x"}), code::INVALID_PARAMS),
        ("nic.poll", json!({"poll":"off"}), code::INVALID_PARAMS),
        ("network.uplink", json!({"network":"n","tap":"a/b"}), code::INVALID_PARAMS),
        ("image.info", json!({"path":"/a"}), code::INVALID_PARAMS),
        ("image.info", json!({"path":"a","format":"raw"}), code::INVALID_PARAMS),
        ("image.info", json!({"path":"/a","format":"vmdk"}), code::INVALID_PARAMS),
        ("image.check", json!({"path":"/a","format":"raw","deadline_s":0}), code::INVALID_PARAMS),
        ("image.map", json!({"path":"/a","format":"raw","limit":10_001}), code::INVALID_PARAMS),
        ("image.create", json!({"path":"/a","format":"qcow2"}), code::INVALID_PARAMS),
        ("poll.defaults", json!({"poll_max_us":10_001}), code::INVALID_PARAMS),
        ("disk.attach", json!({"id":"a","socket":"/s","backend":{"null":0}}), code::INVALID_PARAMS),
    ];
    for (method, params, expected) in cases {
        assert_eq!(Call::parse(method, params).unwrap_err().code, expected, "{method}");
    }
}

#[test]
fn a_reply_holds_a_result_or_an_error() {
    let reply = Response::new(1.into(), Ok(json!({"a":1})));
    assert_eq!(
        serde_json::to_string(&reply).unwrap(),
        r#"{"jsonrpc":"2.0","id":1,"result":{"a":1}}"#
    );
}

#[test]
fn a_change_tells_nothing_from_null() {
    let parse = |params: Value| match Call::parse("disk.poll", params) {
        Ok(Call::DiskPoll(set)) => set.change,
        other => panic!("{other:?}"),
    };
    let nothing = PollChange::default();
    assert_eq!(parse(json!({"id":"a"})), nothing);
    let null = PollChange { poll: Some(None), ..nothing };
    assert_eq!(parse(json!({"id":"a","poll":null})), null);
    let set = PollChange { poll_max_us: Some(Some(0)), ..nothing };
    assert_eq!(parse(json!({"id":"a","poll_max_us":0})), set);
    match Call::parse("poll.defaults", json!({"poll":"off","poll_idle_threshold":null})) {
        Ok(Call::PollDefaults(change)) => {
            assert_eq!(change.poll, Some(Some(PollMode::Off)));
            assert_eq!((change.poll_max_us, change.poll_idle_threshold), (None, Some(None)));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_change_is_of_one_disk_and_has_no_other_fields() {
    for (params, says) in [
        (json!({"poll":"off"}), "missing field `id`"),
        (json!({"id":1}), "id: "),
        (json!({"id":"a","max_us":1}), "max_us"),
        (json!({"id":"a","poll_max_us":-1}), "0 to 10000"),
        (json!(["a"]), "expected a map"),
    ] {
        let error = Call::parse("disk.poll", params).unwrap_err();
        assert_eq!(error.code, code::INVALID_PARAMS);
        assert!(error.message.contains(says), "{}", error.message);
    }
}

/// The parser names the type that it wants, and not the field.
#[test]
fn an_error_of_a_type_names_its_field() {
    let attach = |more: Value| {
        let mut params = json!({"id":"a","socket":"/s","backend":{"null":1 << 20}});
        let fields = params.as_object_mut().unwrap();
        fields.extend(more.as_object().unwrap().clone());
        Call::parse("disk.attach", params).unwrap_err().message
    };
    for (more, says) in [
        (json!({"queues":"two"}), "queues: invalid type: string \"two\""),
        (json!({"caps":{"iops":"many"}}), "caps.iops: invalid type"),
        (json!({"read_only":1}), "read_only: invalid type"),
    ] {
        let message = attach(more);
        assert!(message.starts_with(says), "{message}");
    }
}
