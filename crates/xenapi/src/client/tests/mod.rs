mod server;

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, poll};
use tempfile::TempDir;

use self::server::{Answers, MANY, Seen, on_socket, with_tls};
use super::*;
use crate::test_values::map;
use crate::{ApiError, Date, codes, xmlrpc};

/// Response of a test server to a call, given the calls before it.
type Api = fn(&Call, &Seen) -> Result<Value, ApiError>;

/// Test server on a socket, and the calls that it received.
struct World {
    dir: TempDir,
    seen: Seen,
}

impl World {
    fn new(calls: usize, answers: Api) -> Self {
        let (dir, seen) = (tempfile::tempdir().unwrap(), Seen::default());
        let world = Self { dir, seen };
        on_socket(&world.socket(), calls, world.answers(answers));
        world
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("s")
    }

    /// Returns a handler that records each call.
    fn answers(&self, answers: Api) -> Arc<Answers> {
        let seen = self.seen.clone();
        Arc::new(move |call: &Call| {
            seen.note(&call.method);
            answers(call, &seen)
        })
    }

    fn client(&self, encoding: Encoding) -> Client {
        Client::connect(Address::Unix(self.socket()), encoding).unwrap()
    }
}

fn texts(call: &Call) -> Vec<String> {
    let text = |value: &Value| match value {
        Value::Str(text) => text.clone(),
        other => format!("{other:?}"),
    };
    call.params.iter().map(text).collect()
}

/// Handles calls like a real server: rejects calls without a session.
fn api(call: &Call, _: &Seen) -> Result<Value, ApiError> {
    let params = texts(call);
    if call.method == "session.login_with_password" {
        assert_eq!(params, ["root", "secret", "2.5", "test"]);
        return Ok(Value::text("OpaqueRef:s"));
    }
    if params.first().map(String::as_str) != Some("OpaqueRef:s") {
        return Err(codes::session_invalid(params.concat()));
    }
    match call.method.as_str() {
        "session.logout" => Ok(Value::text("")),
        "VM.get_domid" => Ok(Value::Int(7)),
        "VM.get_power_state" => Err(codes::handle_invalid("VM", "OpaqueRef:x")),
        "task.get_all_records" | "task.get_all_records_where" => {
            let record = map([
                ("uuid", Value::text("u")),
                ("created", Value::Date(Date(7))),
                ("later", Value::Bool(true)),
            ]);
            Ok(map([("OpaqueRef:t", record)]))
        }
        other => panic!("{other}"),
    }
}

#[test]
fn a_session_is_put_in_front_and_results_have_their_types() {
    for encoding in [Encoding::Json, Encoding::Xml] {
        let world = World::new(MANY, api);
        let mut client = world.client(encoding);
        let refused = client.call("VM.get_domid", &[Value::text("OpaqueRef:v")]).unwrap_err();
        assert_eq!(refused.code(), Some("SESSION_INVALID"));
        client.login("root", "secret", "test").unwrap();
        assert_eq!(client.session(), Some("OpaqueRef:s"));
        // The number is text in XML and a number in JSON.
        assert_eq!(client.call("VM.get_domid", &[Value::text("v")]).unwrap(), Value::Int(7));
        let refused = client.call("VM.get_power_state", &[Value::text("v")]).unwrap_err();
        let ClientError::Api(refused) = refused else { panic!("{refused}") };
        assert_eq!(refused.details(), ["HANDLE_INVALID", "VM", "OpaqueRef:x"]);
        for records in [client.records("task"), client.records_where("task", "true")] {
            let records = records.unwrap();
            assert_eq!(records[0].0, "OpaqueRef:t");
            assert_eq!((records[0].1.date("created"), records[0].1.text("uuid")), (Date(7), "u"));
        }
        client.logout().unwrap();
        assert_eq!(client.session(), None);
    }
}

#[test]
fn a_connection_is_the_session_where_the_server_lets_it() {
    // A server like the daemon at its socket.
    let world = World::new(MANY, |call, seen| {
        seen.note(format!("{:?}", texts(call)));
        Ok(Value::Int(7))
    });
    let mut client = world.client(Encoding::Json);
    client.use_connection_session("test");
    for _ in 0..2 {
        assert_eq!(client.call("VM.get_domid", &[Value::text("v")]).unwrap(), Value::Int(7));
    }
    client.logout().unwrap();
    assert_eq!(world.seen.all(), ["VM.get_domid", r#"["", "v"]"#].repeat(2));
}

#[test]
fn a_server_that_wants_a_session_gets_one_at_the_first_call() {
    let world = World::new(MANY, |call, _| match call.method.as_str() {
        "session.login_with_password" => Ok(Value::text("OpaqueRef:s")),
        _ if texts(call)[0] != "OpaqueRef:s" => Err(codes::session_invalid("")),
        "session.logout" => Ok(Value::text("")),
        _ => Ok(Value::Int(7)),
    });
    let mut client = world.client(Encoding::Json);
    client.use_connection_session("test");
    assert_eq!(client.call("VM.get_domid", &[Value::text("v")]).unwrap(), Value::Int(7));
    assert_eq!(client.session(), Some("OpaqueRef:s"));
    client.call("VM.get_domid", &[Value::text("v")]).unwrap();
    client.logout().unwrap();
    let login = "session.login_with_password";
    let calls = ["VM.get_domid", login, "VM.get_domid", "VM.get_domid", "session.logout"];
    assert_eq!(world.seen.all(), calls);
}

#[test]
fn a_tunnel_of_root_needs_no_session_but_where_one_is_wanted() {
    let world = World::new(MANY, |call, _| match call.method.as_str() {
        "session.login_with_password" => Ok(Value::text("OpaqueRef:s")),
        other => panic!("{other}"),
    });
    let mut client = world.client(Encoding::Json);
    client.use_connection_session("test");
    client.tunnel("/console").unwrap();
    assert_eq!((client.session(), world.seen.all().len()), (None, 0));
    for _ in 0..2 {
        client.tunnel("/named").unwrap();
        assert_eq!(world.seen.all(), ["session.login_with_password"]);
    }
    // A client without a session of its own does not log in by itself.
    let refused = world.client(Encoding::Json).tunnel("/named").unwrap_err();
    assert!(matches!(&refused, ClientError::Refused { why, .. } if why == "who?"), "{refused}");
}

#[test]
fn root_whose_login_fails_may_try_again() {
    let world = World::new(MANY, |call, seen| match call.method.as_str() {
        "session.login_with_password" if seen.all().len() < 3 => {
            Err(codes::authentication_failed("root", "not yet"))
        }
        "session.login_with_password" => Ok(Value::text("OpaqueRef:s")),
        _ if texts(call)[0] != "OpaqueRef:s" => Err(codes::session_invalid("")),
        _ => Ok(Value::Int(7)),
    });
    let mut client = world.client(Encoding::Json);
    client.use_connection_session("test");
    assert!(client.call("VM.get_domid", &[Value::text("v")]).is_err());
    assert_eq!(client.call("VM.get_domid", &[Value::text("v")]).unwrap(), Value::Int(7));
}

#[test]
fn a_connection_that_was_closed_meanwhile_is_made_anew() {
    let world = World::new(1, api);
    let mut client = world.client(Encoding::Json);
    client.login("root", "secret", "test").unwrap();
    for _ in 0..3 {
        // Waits until the client sees the server's close, as an interactive client would.
        let link = client.link.as_ref().unwrap();
        poll(&mut [PollFd::new(&link.as_fd(), PollFlags::IN)], None).unwrap();
        client.call("VM.get_domid", &[Value::text("v")]).unwrap();
    }
}

#[test]
fn a_call_whose_answer_is_lost_is_not_sent_again() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s");
    let listener = UnixListener::bind(&socket).unwrap();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut request = [0; 16];
        stream.read_exact(&mut request).unwrap();
        drop(stream);
        listener.set_nonblocking(true).unwrap();
        listener
    });
    let mut client = Client::unix(&socket).unwrap();
    let error = client.call("VM.start", &[Value::text("v")]).unwrap_err();
    assert!(matches!(error, ClientError::Lost { .. }), "{error:?}");
    assert!(error.to_string().contains("VM.start: check whether the call was done"), "{error}");
    assert!(server.join().unwrap().accept().is_err(), "it came again");
}

/// Returns the client's error for a fixed response. The server waits for the request, because the
/// client does not use a connection with unexpected data.
fn error_for(answer: &'static [u8]) -> ClientError {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s");
    let listener = UnixListener::bind(&socket).unwrap();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.read_exact(&mut [0]).unwrap();
        stream.write_all(answer).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let _all = stream.read_to_end(&mut Vec::new());
    });
    let error = Client::unix(&socket).unwrap().call("VM.get_all", &[]).unwrap_err();
    server.join().unwrap();
    error
}

#[test]
fn servers_of_something_else() {
    let error = error_for(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n");
    assert!(matches!(error, ClientError::Http { status: 404, .. }), "{error:?}");
    let error = error_for(b"SSH-2.0-OpenSSH\r\n");
    assert!(matches!(error, ClientError::InvalidResponse { .. }), "{error:?}");
    let error = error_for(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}");
    assert!(matches!(error, ClientError::InvalidResponse { .. }), "{error:?}");
    // A valid response, but of another type than the method's result.
    let body = br#"{"jsonrpc":"2.0","result":7,"id":1}"#;
    assert_eq!(body.len(), 35);
    let error = error_for(
        b"HTTP/1.1 200 OK\r\nContent-Length: 35\r\n\r\n{\"jsonrpc\":\"2.0\",\"result\":7,\"id\":1}",
    );
    assert!(error.to_string().contains("VM.get_all"), "{error}");
    let error = error_for(b"");
    assert!(matches!(error, ClientError::Lost { .. }), "{error:?}");
}

#[test]
fn nobody_there_is_told_with_what_to_do() {
    let error = Client::unix("/nonexistent/s").unwrap_err();
    assert!(matches!(error, ClientError::Unreachable { .. }), "{error:?}");
    assert!(error.to_string().contains("/nonexistent/s: is ringwayd running"), "{error}");
    let long = format!("/{}", "s".repeat(200));
    assert!(matches!(Client::unix(long), Err(ClientError::Unreachable { .. })));
}

#[test]
fn an_answer_that_does_not_come_is_late() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s");
    let _listener = UnixListener::bind(&socket).unwrap();
    let mut client = Client::unix(&socket).unwrap();
    let error = client.call_within("VM.get_all", &[], Duration::from_millis(1)).unwrap_err();
    assert!(matches!(error, ClientError::Late { .. }), "{error:?}");
}

/// Handles calls as a server whose tasks end in different ways.
fn tasks(call: &Call, seen: &Seen) -> Result<Value, ApiError> {
    match call.method.as_str() {
        "Async.VM.unpause" => Err(codes::bad_power_state("v", "paused", "running")),
        begun if begun.starts_with("Async.") => Ok(Value::text("OpaqueRef:t")),
        "task.destroy" => Ok(Value::text("")),
        "event.from" => {
            let of = Value::Set(vec![Value::text("task/OpaqueRef:t")]);
            assert_eq!(call.params[1], of);
            match texts(call)[2].as_str() {
                "" => batch("1", vec![event("add", Some(task("pending", "", &[])))]),
                // The wait has timed out without a change.
                "1" => batch("2", vec![]),
                _ => batch("3", vec![ended(seen)]),
            }
        }
        other => panic!("{other}"),
    }
}

fn ended(seen: &Seen) -> Value {
    let begun = seen.all().into_iter().find_map(|one| Some(one.strip_prefix("Async.")?.to_owned()));
    let task = match begun.unwrap().as_str() {
        "VM.start" => task("success", "", &[]),
        "VM.clone" => task("success", &xmlrpc::write_value(&Value::text("OpaqueRef:new")), &[]),
        "VM.pause" => task("cancelled", "", &[]),
        "VM.hard_shutdown" => return event("del", None),
        _ => task("failure", "", &["SR_FULL", "1", "0"]),
    };
    event("mod", Some(task))
}

fn batch(token: &str, events: Vec<Value>) -> Result<Value, ApiError> {
    Ok(map([("token", Value::text(token)), ("events", Value::Set(events))]))
}

fn event(operation: &str, snapshot: Option<Value>) -> Value {
    let Value::Map(mut event) = map([
        ("class", Value::text("task")),
        ("operation", Value::text(operation)),
        ("ref", Value::text("OpaqueRef:t")),
    ]) else {
        unreachable!()
    };
    event.extend(snapshot.map(|snapshot| ("snapshot".to_owned(), snapshot)));
    Value::Map(event)
}

fn task(status: &str, result: &str, error: &[&str]) -> Value {
    map([
        ("status", Value::text(status)),
        ("result", Value::text(result)),
        ("error_info", Value::Set(error.iter().map(|text| Value::text(*text)).collect())),
    ])
}

/// Returns the result of a call, and the calls made for it.
fn ran(method: &str) -> (Result<Value, ClientError>, Vec<String>) {
    let world = World::new(MANY, tasks);
    let mut client = world.client(Encoding::Xml);
    let outcome = client.run(method, &[Value::text("v")], Duration::from_secs(60));
    (outcome, world.seen.all())
}

#[test]
fn a_task_is_waited_for_and_forgotten() {
    let (outcome, seen) = ran("VM.start");
    assert_eq!(outcome.unwrap(), Value::text(""));
    let waits = ["event.from", "event.from", "event.from"];
    assert_eq!(seen[0], "Async.VM.start");
    assert_eq!(seen[1..4], waits);
    assert_eq!(seen[4..], ["task.destroy"]);
    assert_eq!(ran("VM.clone").0.unwrap(), Value::text("OpaqueRef:new"));
}

#[test]
fn a_task_that_fails_is_a_call_that_fails() {
    for (method, details) in [
        ("VDI.create", &["SR_FULL", "1", "0"][..]),
        ("VM.pause", &["TASK_CANCELLED", "OpaqueRef:t"]),
        ("VM.hard_shutdown", &["HANDLE_INVALID", "task", "OpaqueRef:t"]),
        ("VM.unpause", &["VM_BAD_POWER_STATE", "v", "paused", "running"]),
    ] {
        match ran(method).0 {
            Err(ClientError::Api(error)) => assert_eq!(error.details(), details, "{method}"),
            other => panic!("{method}: {other:?}"),
        }
    }
}

#[test]
fn a_deadline_leaves_the_task_where_it_is() {
    let world = World::new(MANY, tasks);
    let mut client = world.client(Encoding::Json);
    let error = client.run("VM.start", &[Value::text("v")], Duration::ZERO).unwrap_err();
    assert!(error.to_string().contains("VM.start (OpaqueRef:t)"), "{error}");
    assert_eq!(world.seen.all(), ["Async.VM.start", "event.from"]);
}

#[test]
fn a_tunnel_goes_both_ways() {
    let world = World::new(MANY, api);
    let mut client = world.client(Encoding::Json);
    let mut tunnel = client.tunnel("/console").unwrap();
    let mut seen = Vec::new();
    tunnel.write_all(b"hello\n").unwrap();
    while !seen.ends_with(b"HELLO\n") {
        if !tunnel.holds_bytes().unwrap() {
            poll(&mut [PollFd::new(&tunnel.as_fd(), PollFlags::IN)], None).unwrap();
        }
        let mut some = [0; 64];
        let received = tunnel.read(&mut some).unwrap();
        assert!(received > 0, "{seen:?}");
        seen.extend_from_slice(&some[..received]);
    }
    assert_eq!(seen, b"login: HELLO\n");
    // No more bytes: the read does not block.
    let idle = tunnel.read(&mut [0; 8]).unwrap_err();
    assert_eq!(idle.kind(), std::io::ErrorKind::WouldBlock);
}

#[test]
fn a_tunnel_that_is_refused_tells_why() {
    let world = World::new(MANY, api);
    let mut client = world.client(Encoding::Json);
    let refused = client.tunnel("/console?It-is-halted.").unwrap_err();
    assert!(matches!(&refused, ClientError::Refused { why, .. } if why == "It-is-halted."));
    let long = format!("/console?{}", "x".repeat(2 << 10));
    for silent in ["/console?", "/console?\u{1b}[2J", &long] {
        let refused = client.tunnel(silent).unwrap_err();
        assert!(matches!(refused, ClientError::Http { status: 404, .. }), "{silent}: {refused:?}");
    }
}

#[test]
fn a_server_with_tls_is_known_again_by_its_certificate() {
    let world = World::new(MANY, api);
    let known_servers = KnownServers::in_file(world.dir.path().join("trust"));
    let port = with_tls("somebody.else", world.answers(api));
    let address = Address::Tls("127.0.0.1".to_owned(), port, known_servers.clone());
    let mut first = Client::connect(address.clone(), Encoding::Json).unwrap();
    let seen = first.newly_trusted().unwrap().to_string();
    assert!(seen.starts_with("SHA256:"), "{seen}");
    first.login("root", "secret", "test").unwrap();
    assert_eq!(first.call("VM.get_domid", &[Value::text("v")]).unwrap(), Value::Int(7));
    let second = Client::connect(address, Encoding::Json).unwrap();
    assert_eq!(second.newly_trusted(), None);
    // Another server answers at this address: the client sends nothing to it.
    let file = world.dir.path().join("trust");
    let other = with_tls("somebody.else", world.answers(api));
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replace(&format!(":{port} "), &format!(":{other} "))).unwrap();
    let before = world.seen.all().len();
    let address = Address::Tls("127.0.0.1".to_owned(), other, known_servers);
    let error = Client::connect(address, Encoding::Json).unwrap_err();
    assert!(matches!(error, ClientError::Changed { .. }), "{error:?}");
    assert_eq!(world.seen.all().len(), before);
}

#[test]
fn a_server_without_tls_is_told_from_one_that_has_it() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
        let _all = stream.read_to_end(&mut Vec::new());
    });
    let dir = tempfile::tempdir().unwrap();
    let known_servers = KnownServers::in_file(dir.path().join("trust"));
    let address = Address::Tls("127.0.0.1".to_owned(), port, known_servers);
    let error = Client::connect(address, Encoding::Json).unwrap_err();
    assert!(matches!(error, ClientError::Tls { .. }), "{error:?}");
    assert!(!dir.path().join("trust").exists());
    server.join().unwrap();
}
