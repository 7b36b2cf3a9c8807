//! Metrics of a daemon under calls.
#![allow(clippy::unwrap_used, clippy::panic)] // A failed helper is a failed test.

use std::net::TcpStream;
use std::os::unix::net::UnixStream;

use testkit::openmetrics::{Page, Sample, scrape, value};
use testkit::ringwayd::Ringwayd;
use xenapi::Value;

/// Returns the number of calls with this outcome.
fn answered(page: &Page, method: &str, outcome: &str) -> f64 {
    let is = |one: &&Sample| one.labels["method"] == method && one.labels["outcome"] == outcome;
    page["ringway_calls"].samples.iter().find(is).map_or(0.0, |one| one.value)
}

#[test]
fn calls_are_counted_for_who_scrapes() {
    let mut daemon = Ringwayd::simulator(&[]).unwrap();
    let url = daemon.url().unwrap();
    let port = || TcpStream::connect(url.strip_prefix("http://").unwrap()).unwrap();
    let mut client = daemon.client().unwrap();
    let before = scrape(port());
    let measured = |page: &Page| value(page, "ringway_call_duration_seconds", "_count", &[]);
    let Value::Set(all) = client.call("VM.get_all", &[]).unwrap() else { panic!("no set") };
    client.call("VM.get_all", &[]).unwrap();
    let nobody = [Value::text("00000000-0000-4000-8000-000000000000")];
    for _ in 0..3 {
        client.call("VM.get_by_uuid", &nobody).unwrap_err();
    }
    // Unknown methods share one label. They and waits are not in the latency histogram.
    client.call("VM.fly", &[]).unwrap_err();
    let classes = Value::Set(vec![Value::text("vm")]);
    client.call("event.from", &[classes, Value::text(""), Value::Float(0.0)]).unwrap();
    let after = scrape(port());
    for (method, outcome, count) in [
        ("VM.get_all", "success", 2.0),
        ("VM.get_all", "failure", 0.0),
        ("VM.get_by_uuid", "failure", 3.0),
        ("VM.get_by_uuid", "success", 0.0),
        ("unknown", "failure", 1.0),
        ("event.from", "success", 1.0),
    ] {
        let more = answered(&after, method, outcome) - answered(&before, method, outcome);
        assert!((more - count).abs() < 0.5, "{method} {outcome}: {more}");
    }
    assert!((measured(&after) - measured(&before) - 5.0).abs() < 0.5, "{after:?}");
    assert!(!after["ringway_calls"].samples.iter().any(|one| one.labels["method"] == "VM.fly"));
    let machines = value(&after, "ringway_records", "", &[("class", "VM")]);
    assert!((machines - all.len() as f64).abs() < 0.5 && machines > 0.0, "{machines}");
    // Sessions begin and end. The socket and the port serve the same metrics.
    let sessions = |page: &Page| value(page, "ringway_sessions", "", &[]);
    let begun = daemon.client().unwrap();
    let socket = || UnixStream::connect(daemon.socket()).unwrap();
    assert!((sessions(&scrape(socket())) - sessions(&after) - 1.0).abs() < 0.5);
    let mut begun = begun;
    begun.logout().unwrap();
    let last = scrape(socket());
    assert!((sessions(&last) - sessions(&after)).abs() < 0.5);
    assert!(value(&last, "ringway_pending_calls", "", &[]).abs() < 0.5);
}
