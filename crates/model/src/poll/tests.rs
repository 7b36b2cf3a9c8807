//! Tests of valid and invalid polling settings on the wire.

use super::*;
use serde_json::json;

#[test]
fn what_is_not_set_is_inherited() {
    let nothing = PollSpec::default();
    assert_eq!(nothing.resolve(), EffectivePolling::default());
    assert_eq!(serde_json::to_value(nothing).unwrap(), json!({}));
    let process = PollSpec { poll_max_us: Some(50), poll: Some(PollMode::Off), ..nothing };
    let disk = PollSpec { poll: Some(PollMode::Auto), ..nothing };
    let expected = EffectivePolling { mode: PollMode::Auto, max_us: 50, idle_threshold: 75 };
    assert_eq!(disk.or(process).resolve(), expected);
}

#[test]
fn what_is_out_of_range_or_no_number_is_told_the_range() {
    let parse = |field: &str, value: Value| {
        serde_json::from_value::<PollSpec>(json!({ field: value })).map_err(|e| e.to_string())
    };
    for value in [json!(10_001), json!(-1), json!(1.5), json!("50"), json!(1e30), json!([1])] {
        let error = parse("poll_max_us", value).unwrap_err();
        assert!(error.contains("poll_max_us") && error.contains("0 to 10000"), "{error}");
    }
    for value in [json!(101), json!(-1), json!(true), json!({}), json!(u64::MAX)] {
        let error = parse("poll_idle_threshold", value).unwrap_err();
        assert!(error.contains("poll_idle_threshold") && error.contains("0 to 100 "), "{error}");
    }
    for value in [json!("maybe"), json!(1), json!("Auto")] {
        let error = parse("poll", value).unwrap_err();
        assert!(error.contains("\"auto\", \"off\" or \"always\""), "{error}");
    }
    for (field, value) in [("poll_max_us", 0), ("poll_max_us", 10_000)] {
        assert_eq!(parse(field, json!(value)).unwrap().poll_max_us, Some(value));
    }
    assert_eq!(parse("poll_idle_threshold", json!(100)).unwrap().poll_idle_threshold, Some(100));
    assert_eq!(parse("poll", Value::Null), Ok(PollSpec::default()));
    let broken = PollSpec { poll_max_us: Some(MAX_POLL_US + 1), ..PollSpec::default() };
    assert_eq!(broken.validate().unwrap_err().field, "poll_max_us");
    let broken = PollSpec { poll_idle_threshold: Some(101), ..PollSpec::default() };
    assert_eq!(broken.validate().unwrap_err().field, "poll_idle_threshold");
}

#[test]
fn a_change_leaves_what_it_does_not_name() {
    let was =
        PollSpec { poll: Some(PollMode::Off), poll_max_us: Some(7), poll_idle_threshold: Some(50) };
    assert_eq!(PollChange::default().apply(was), was);
    let change =
        PollChange { poll: Some(None), poll_max_us: Some(Some(0)), ..PollChange::default() };
    let expected = PollSpec { poll: None, poll_max_us: Some(0), ..was };
    assert_eq!(change.apply(was), expected);
}
