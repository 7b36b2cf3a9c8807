//! Content of a scrape, and its syntax.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;

use crate::common::*;
use rustix::process::Signal;
use serde_json::{Value, json};
use testkit::openmetrics::{Page, ask, read, scrape, value};
use testkit::process::eventually;
use testkit::process::{PROCESS_DEADLINE, Port};
use testkit::raw::request::Request;
use testkit::raw::{Guest, Setup};

/// Starts a process with a disk on which every kind of request has been done, and two NICs, of
/// which one has sent a frame.
fn used(options: &[&str]) -> (Io, Guest) {
    let io = Io::start_with(options);
    let mut caller = io.caller();
    ["a", "b"].into_iter().for_each(|id| frames::attach(&io, id, "lan", 1));
    let mut a = frames::guest(&io.socket("a"), 1);
    frames::send(&mut a, &frames::frame(2, 1, "nobody is there"));
    caller.disk("disk.attach", io.spec("d1", json!({"memory": 1 << 20})));
    caller.disk("disk.attach", io.spec("d2", json!({"null": 1 << 20})));
    let mut guest = Guest::start(&io.socket("d1"), &Setup::default()).unwrap();
    for _ in 0..3 {
        guest.run(0, &Request::read(0, 4096)).unwrap();
    }
    guest.run(0, &Request::write(8, &[1; 512])).unwrap();
    guest.run(0, &Request::flush()).unwrap();
    (io, guest)
}

#[test]
fn a_scrape_over_a_unix_socket_tells_what_was_done() {
    let folder = folder();
    let socket = folder.path().join("metrics");
    let address = format!("unix:{}", socket.display());
    let (io, mut guest) = used(&["--metrics", &address, "--poll", "always"]);
    // Wait for the poll: a front-end that replies before the queue is polled leaves no wait to
    // count.
    let mut caller = io.caller();
    let polling = |caller: &mut Caller| caller.stats().disks[0].polling.unwrap();
    eventually("it looks", || polling(&mut caller).queues.polling);
    guest.run(0, &Request::flush()).unwrap();
    let d1 = ("disk", "d1");
    let hits = |page: &Page| value(page, "ringway_disk_poll_hits", "_total", &[d1]);
    let mut page = Page::new();
    // The guest sees a completion before the end of the wait is counted.
    eventually("the wait is counted", || {
        page = scrape(UnixStream::connect(&socket).unwrap());
        hits(&page) >= 1.0
    });
    assert_eq!(value(&page, "ringway_disk_read_bytes", "_total", &[d1]), 3.0 * 4096.0);
    assert_eq!(value(&page, "ringway_disk_written_bytes", "_total", &[d1]), 512.0);
    assert_eq!(value(&page, "ringway_disk_requests", "_total", &[d1, ("op", "flush")]), 2.0);
    assert_eq!(
        value(&page, "ringway_disk_state", "", &[d1, ("ringway_disk_state", "active")]),
        1.0
    );
    let labels = [d1, ("op", "read"), ("stage", "total")];
    let durations = "ringway_disk_request_duration_seconds";
    assert_eq!(value(&page, durations, "_count", &labels), 3.0);
    assert!(value(&page, durations, "_sum", &labels) > 0.0);
    assert!(value(&page, "ringway_disk_busy_seconds", "_total", &[d1]) > 0.0);
    assert_eq!(value(&page, "ringway_disk_poll_misses", "_total", &[d1]), 0.0);
    for reason in ["too_long", "no_free_cpu", "cpu_wanted", "budget_used", "quota_used"] {
        let labels = [d1, ("reason", reason)];
        assert_eq!(value(&page, "ringway_disk_poll_denied", "_total", &labels), 0.0);
    }
    let armed = value(&page, "ringway_disk_poll_active", "", &[d1]);
    assert!(armed == 0.0 || armed == 1.0);
    let spun = value(&page, "ringway_disk_poll_busy_seconds", "_total", &[d1]);
    assert!(spun >= 0.0);
    assert!(
        value(&page, "ringway_reactor_poll_busy_seconds", "_total", &[("reactor", "0")]) >= 0.0
    );
    let reason = |name| [d1, ("ringway_disk_poll_reason", name)];
    assert_eq!(value(&page, "ringway_disk_poll_reason", "", &reason("off")), 0.0);
    // The call returns the same, except for values that grow.
    let reply = io.caller().call("metrics", Value::Null).unwrap();
    let reported = read(reply["openmetrics"].as_str().unwrap()).unwrap();
    let names = |page: &Page| page.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&reported), names(&page));
}

#[test]
fn nics_are_told_with_their_queues() {
    let folder = folder();
    let socket = folder.path().join("metrics");
    let io = Io::start_with(&["--metrics", &format!("unix:{}", socket.display()), "--poll", "off"]);
    let mut two = frames::spec(&io, "a", "lan", 1);
    two["queues"] = json!(2);
    io.caller().call("nic.attach", two).unwrap();
    frames::attach(&io, "b", "lan", 2);
    let (mut a, mut b) = (frames::guest(&io.socket("a"), 2), frames::guest(&io.socket("b"), 1));
    for _ in 0..3 {
        frames::send(&mut a, &frames::frame(0xff, 1, "to everybody"));
        frames::received(&mut b);
    }
    frames::send(&mut b, &[7; 13]);
    let mut page = Page::new();
    eventually("all of them are timed", || {
        page = scrape(UnixStream::connect(&socket).unwrap());
        let labels = [("nic", "b"), ("queue", "0")];
        value(&page, "ringway_nic_residence_seconds", "_count", &labels) == 3.0
    });
    let (sent, got) = (("direction", "tx"), ("direction", "rx"));
    let (a, b, queue) = (("nic", "a"), ("nic", "b"), ("queue", "0"));
    let total = |name: &str, labels: &[(&str, &str)]| value(&page, name, "_total", labels);
    assert_eq!(total("ringway_nic_frames", &[a, sent]), 3.0);
    assert_eq!(total("ringway_nic_bytes", &[b, got]), 3.0 * 26.0);
    assert_eq!(total("ringway_nic_queue_frames", &[b, queue, got]), 3.0);
    assert_eq!(total("ringway_nic_queue_bytes", &[a, queue, sent]), 3.0 * 26.0);
    assert_eq!(total("ringway_nic_queue_throttled", &[a, queue]), 0.0);
    assert_eq!(total("ringway_nic_queue_backlogged_frames", &[a, queue]), 0.0);
    let lost = [b, sent, ("reason", "short-frame")];
    assert_eq!(total("ringway_nic_dropped_frames", &lost), 1.0);
    assert_eq!(total("ringway_nic_queue_dropped_frames", &[&lost[..], &[queue]].concat()), 1.0);
    let sizes = [a, queue, sent];
    assert_eq!(value(&page, "ringway_nic_frame_size_bytes", "_count", &sizes), 3.0);
    assert_eq!(value(&page, "ringway_nic_frame_size_bytes", "_sum", &sizes), 78.0);
    assert!(value(&page, "ringway_nic_residence_seconds", "_sum", &[b, queue]) > 0.0);
    assert_eq!(value(&page, "ringway_nic_connected", "", &[b]), 1.0);
    assert_eq!(value(&page, "ringway_nic_queues_started", "", &[a]), 2.0);
    let off = ("ringway_nic_poll_reason", "off");
    assert_eq!(value(&page, "ringway_nic_poll_reason", "", &[b, off]), 1.0);
    for name in ["hits", "misses", "busy_seconds", "saved_seconds"] {
        assert_eq!(total(&format!("ringway_nic_poll_{name}"), &[b]), 0.0);
    }
}

/// About one frame in sixteen is sampled, and counts for sixteen.
#[test]
fn the_largest_flows_of_a_nic_are_told() {
    const FRAMES: u64 = 64;
    let io = Io::start_with(&[]);
    [("a", 1), ("b", 2)]
        .into_iter()
        .for_each(|(id, number)| frames::attach(&io, id, "lan", number));
    let (mut a, mut b) = (frames::guest(&io.socket("a"), 1), frames::guest(&io.socket("b"), 1));
    let frame = frames::datagram(1000);
    for _ in 0..FRAMES {
        frames::send(&mut a, &frame);
        b.take_frame(0, frames::SOON).unwrap().expect("no frame came");
    }
    let reply = io.caller().call("metrics", Value::Null).unwrap();
    let page = read(reply["openmetrics"].as_str().unwrap()).unwrap();
    let name = "ringway_nic_flow_recent_bytes";
    let (from, to) = (("from", "10.0.0.1:1000"), ("to", "10.0.0.2:9"));
    let bytes = value(&page, name, "", &[("nic", "a"), from, to, ("protocol", "udp")]);
    // Recent bytes only: half of the count is dropped now and then.
    assert!(bytes > 0.0 && bytes <= (16 * FRAMES * frame.len() as u64) as f64, "{bytes}");
    // No other flow was sent.
    assert_eq!(page[name].samples.len(), 1);
}

#[test]
fn a_scrape_over_tcp_and_requests_that_are_none() {
    let held = Port::hold().unwrap();
    let port = held.number();
    let (_io, _guest) = used(&["--metrics", &port.to_string()]);
    let connect = || {
        let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.set_read_timeout(Some(PROCESS_DEADLINE)).unwrap();
        stream
    };
    scrape(connect());
    // Stalled connections do not block others, up to the limit.
    let stalled: Vec<_> = (0..5).map(|_| connect()).collect();
    scrape(connect());
    drop(stalled);
    for (request, status) in [
        ("GET / HTTP/1.1\r\n\r\n".to_owned(), "404"),
        ("PUT /metrics HTTP/1.1\r\n\r\n".to_owned(), "405"),
        ("nonsense\r\n\r\n".to_owned(), "400"),
        (format!("GET /metrics HTTP/1.1\r\nX: {}", "x".repeat(9000)), "431"),
    ] {
        let (head, _) = ask(connect(), &request);
        assert!(head.starts_with(&format!("HTTP/1.1 {status}")), "{request:?}: {head}");
    }
    scrape(connect());
}

#[test]
fn an_address_that_cannot_be_had_is_told_at_the_start() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let folder = folder();
    let control = folder.path().join("c");
    let options = ["--control", control.to_str().unwrap(), "--metrics", &port];
    let (code, stderr) = ends(IO, &options);
    assert!(
        code == 1 && stderr.contains("--metrics") && stderr.contains(&port),
        "{code}: {stderr}"
    );
    let (code, stderr) = ends(IO, &["--control", "/c", "--metrics", "tcp"]);
    assert!(code == 2 && stderr.contains("unix:PATH"), "{stderr}");
}

/// Collects the metric names in the expressions of a dashboard.
fn names_in(dashboard: &Value, out: &mut Vec<String>) {
    match dashboard {
        Value::Object(fields) => {
            for (key, value) in fields {
                match value {
                    Value::String(text)
                        if key == "expr" || key == "query" || key == "definition" =>
                    {
                        let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
                        out.extend(
                            words.filter(|word| word.starts_with("ringway_")).map(Into::into),
                        );
                    }
                    other => names_in(other, out),
                }
            }
        }
        Value::Array(all) => all.iter().for_each(|one| names_in(one, out)),
        _ => {}
    }
}

#[test]
fn the_dashboard_uses_only_what_is_there() {
    let (io, _guest) = used(&[]);
    let reply = io.caller().call("metrics", Value::Null).unwrap();
    let page = read(reply["openmetrics"].as_str().unwrap()).unwrap();
    let mut there: Vec<String> = page
        .values()
        .flat_map(|family| family.samples.iter().map(|sample| sample.name.clone()))
        .collect();
    // The label of a state set has the name of the set.
    let sets = ["ringway_disk_state", "ringway_disk_poll_reason", "ringway_nic_poll_reason"];
    there.extend(sets.map(String::from));
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/grafana/ringway.json");
    let dashboard = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let mut used = Vec::new();
    names_in(&dashboard, &mut used);
    assert!(used.len() > 10, "{used:?}");
    for name in used {
        assert!(there.contains(&name), "the dashboard uses {name}, which is not there");
    }
}

/// Counts the threads of a process with this name that sleep.
fn asleep(pid: u32, name: &str) -> usize {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    let stat = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("stat")).ok());
    stat.filter(|stat| stat.contains(&format!("({name}) S "))).count()
}

/// As by `systemctl freeze`, while a scraper has sent a part of its request.
#[test]
fn a_scrape_goes_on_after_its_process_was_stopped() {
    let folder = folder();
    let socket = folder.path().join("metrics");
    let io = Io::start_with(&["--metrics", &format!("unix:{}", socket.display())]);
    let worker = io.process.worker().unwrap().unwrap();
    let idle = asleep(worker.id(), "metrics");
    let mut scraper = UnixStream::connect(&socket).unwrap();
    scraper.write_all(b"GET /metrics HTTP/1.1\r\n").unwrap();
    eventually("the rest is waited for", || asleep(worker.id(), "metrics") > idle);
    worker.signal(Signal::STOP).unwrap();
    let status = format!("/proc/{}/status", worker.id());
    let is_stopped = || std::fs::read_to_string(&status).unwrap().contains("State:\tT");
    eventually("the process has stopped", is_stopped);
    worker.signal(Signal::CONT).unwrap();
    scraper.write_all(b"Host: x\r\n\r\n").unwrap();
    let mut reply = String::new();
    scraper.read_to_string(&mut reply).unwrap();
    assert!(reply.starts_with("HTTP/1.1 200 OK\r\n"), "{reply}");
}
