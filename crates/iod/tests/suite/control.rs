//! `ringway-io` through its control socket.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::common::*;
use model::report::DiskState;
use model::rpc::{MAX_LINE_BYTES, code};
use serde_json::{Value, json};
use testkit::process::eventually;
use testkit::process::{PROCESS_DEADLINE, Process};
use testkit::raw::guest::WaitEvent;
use testkit::raw::request::{Request, kind, status};
use testkit::raw::wire::{Message, Request as Code, backend_request};
use testkit::raw::{Guest, Setup};

#[test]
fn bad_lines_are_answered_and_the_connection_goes_on() {
    let io = Io::start();
    let mut caller = io.caller();
    for (line, expected, id) in [
        ("nonsense", code::PARSE, Value::Null),
        ("{\"jsonrpc\":\"2.0\",\"id\":1", code::PARSE, Value::Null),
        ("[]", code::INVALID_REQUEST, Value::Null),
        ("7", code::INVALID_REQUEST, Value::Null),
        (r#"{"jsonrpc":"2.0","id":"x"}"#, code::INVALID_REQUEST, json!("x")),
        (r#"{"jsonrpc":"1.0","id":5,"method":"stats"}"#, code::INVALID_REQUEST, json!(5)),
        (r#"{"jsonrpc":"2.0","id":6,"method":"disk.eject"}"#, code::METHOD_NOT_FOUND, json!(6)),
        (r#"{"jsonrpc":"2.0","id":7,"method":"disk.detach"}"#, code::INVALID_PARAMS, json!(7)),
        (
            r#"{"jsonrpc":"2.0","id":8,"method":"disk.detach","params":{"id":"no"}}"#,
            code::NO_SUCH_DISK,
            json!(8),
        ),
    ] {
        let (answered, error) = caller.refused_line(line);
        assert_eq!((answered, error.code), (id, expected), "{line}: {}", error.message);
    }
    caller.send_line(b"\xff\xfe\n \n\n");
    assert_eq!(caller.receive().unwrap().error.unwrap().code, code::PARSE);
    assert_eq!(caller.stats().disks, []);
    let stats = caller.stats();
    assert_eq!(stats.keeper.unwrap().pid, io.process.id());
    assert_eq!(Some(stats.pid), io.process.worker_pid().unwrap());
}

#[test]
fn a_line_without_end_closes_only_its_connection() {
    let io = Io::start();
    let mut caller = io.caller();
    let junk = vec![b'x'; MAX_LINE_BYTES + 1];
    caller.send_line(&junk);
    let error = caller.receive().unwrap().error.unwrap();
    assert_eq!(error.code, code::INVALID_REQUEST);
    assert!(caller.receive().is_none());
    assert_eq!(io.caller().stats().disks, []);
}

#[test]
fn callers_are_limited_and_come_back() {
    let io = Io::start();
    let mut callers: Vec<_> = (0..64).map(|_| io.caller()).collect();
    for caller in &mut callers {
        caller.stats();
    }
    let mut one_more = io.caller();
    let error = one_more.receive().unwrap().error.unwrap();
    assert!(error.message.contains("64"), "{error}");
    assert!(one_more.receive().is_none());
    drop(callers);
    eventually("room for a caller", || {
        let stream = UnixStream::connect(io.socket("control")).unwrap();
        let call = b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"stats\"}\n";
        // The connection is rejected, so either call may fail.
        let _ = std::io::Write::write_all(&mut &stream, call);
        let mut line = String::new();
        let _ = std::io::BufRead::read_line(&mut std::io::BufReader::new(&stream), &mut line);
        line.contains("result")
    });
}

#[test]
fn the_life_of_a_disk() {
    let mut io = Io::start();
    let image = image(&io.folder, "a.raw", 1 << 20);
    let mut caller = io.caller();
    let mut spec = io.spec("d1", json!({"file": image}));
    spec["cache"] = json!("writeback");
    spec["serial"] = json!("A1");
    let reply = caller.disk("disk.attach", spec.clone());
    assert_eq!((reply.id.as_str(), reply.state), ("d1", DiskState::Active));
    assert_eq!(reply.geometry.size_bytes, 1 << 20);
    // The reply comes when the socket accepts connections.
    let mut guest = Guest::start(&io.socket("d1"), &Setup::default()).unwrap();
    let done = guest.run(0, &Request::write(8, &[7; 512])).unwrap();
    assert_eq!(done.status, status::OK);
    assert_eq!(&guest.run(0, &Request::get_id()).unwrap().data[..3], b"A1\0");

    let stats = caller.stats();
    let [disk] = &stats.disks[..] else { panic!("{stats:?}") };
    assert!(disk.connected && disk.queues_started == 1 && disk.requests.write == 1);
    assert_eq!((disk.bytes.write, disk.errors), (512, 0));
    assert!(stats.reactors.iter().map(|reactor| reactor.queues).sum::<u64>() == 1);

    let error = caller.call("disk.attach", spec).unwrap_err();
    assert!(error.code == code::WRONG_STATE && error.message.contains("attached already"));
    assert_eq!(caller.call("disk.detach", json!({"id": "d1"})).unwrap(), json!({}));
    guest.frontend.connection.wait_closed().unwrap();
    assert_eq!(caller.state("d1"), None);
    assert_eq!(names(&io.folder), ["a.raw", "control", "control.lock"]);
    let error = caller.call("disk.detach", json!({"id": "d1"})).unwrap_err();
    assert_eq!(error.code, code::NO_SUCH_DISK);
    assert_eq!(caller.call("shutdown", Value::Null).unwrap(), json!({}));
    assert!(io.process.wait(PROCESS_DEADLINE).unwrap().success());
    assert_eq!(names(&io.folder), ["a.raw"]);
}

#[test]
fn an_attached_disk_answers_and_serves_only_when_activated() {
    let io = Io::start();
    let path = image(&io.folder, "a.raw", 1 << 20);
    let mut caller = io.caller();
    let mut spec = io.spec("d1", json!({"file": path}));
    spec["cache"] = json!("writeback");
    spec["activate"] = json!(false);
    assert_eq!(caller.disk("disk.attach", spec.clone()).state, DiskState::Attached);
    // An attach takes no lock. Another disk may use the same image, and QEMU may write it.
    let mut twin = spec.clone();
    twin["id"] = json!("d2");
    twin["socket"] = json!(io.socket("d2"));
    assert_eq!(caller.disk("disk.attach", twin).state, DiskState::Attached);

    let mut guest = Guest::start(&io.socket("d1"), &Setup::default()).unwrap();
    assert_eq!(guest.config().unwrap().capacity_sectors, 2048);
    let pending = guest.submit(0, &Request::write(0, &[9; 512])).unwrap();
    guest.kick(0).unwrap();
    let early = guest.wait(0, Duration::from_millis(100)).unwrap();
    assert_eq!(early, WaitEvent::Silent, "nothing is served before the activation");

    assert_eq!(caller.disk("disk.activate", json!({"id": "d1"})).state, DiskState::Active);
    assert_eq!(guest.finish(0, &pending).unwrap().status, status::OK);
    let mut stored = [0; 512];
    std::fs::File::open(&path).unwrap().read_exact_at(&mut stored, 0).unwrap();
    assert_eq!(stored, [9; 512]);
    // Now the other disk cannot be activated, and the error names the reason.
    let error = caller.call("disk.activate", json!({"id": "d2"})).unwrap_err();
    assert!(error.code == code::FAILED && error.message.contains("in use"), "{error}");
    assert_eq!(caller.state("d2"), Some(DiskState::Attached));
    // A repeated activate succeeds at once.
    assert_eq!(caller.disk("disk.activate", json!({"id": "d1"})).state, DiskState::Active);

    // The image passes to the other disk. Meanwhile requests wait in the ring, and complete later.
    let reply = caller.disk("disk.deactivate", json!({"id": "d1"}));
    assert_eq!(reply.state, DiskState::Attached);
    assert_eq!(caller.disk("disk.activate", json!({"id": "d2"})).state, DiskState::Active);
    let pending = guest.submit(0, &Request::read(0, 512)).unwrap();
    guest.kick(0).unwrap();
    assert_eq!(guest.wait(0, Duration::from_millis(100)).unwrap(), WaitEvent::Silent);
    assert_eq!(caller.disk("disk.deactivate", json!({"id": "d2"})).state, DiskState::Attached);
    assert_eq!(caller.disk("disk.activate", json!({"id": "d1"})).state, DiskState::Active);
    assert_eq!(guest.finish(0, &pending).unwrap().data, [9; 512]);
    assert_eq!(guest.stop_queue(0).unwrap(), 2);
}

#[test]
fn a_stopped_ring_of_an_idle_disk_goes_on_where_it_was() {
    let io = Io::start();
    let mut caller = io.caller();
    let mut spec = io.spec("d1", json!({"memory": 1 << 20}));
    spec["activate"] = json!(false);
    caller.disk("disk.attach", spec);
    let mut guest = Guest::start(&io.socket("d1"), &Setup::default()).unwrap();
    let pending = guest.submit(0, &Request::read(0, 512)).unwrap();
    assert_eq!(guest.stop_queue(0).unwrap(), 0, "nothing was taken from it");
    guest.start_queue(0, 0).unwrap();
    caller.disk("disk.activate", json!({"id": "d1"}));
    assert_eq!(guest.finish(0, &pending).unwrap().status, status::OK);
}

#[test]
fn a_grown_disk_is_announced() {
    let io = Io::start();
    let path = image(&io.folder, "a.raw", 1 << 20);
    let mut caller = io.caller();
    let mut spec = io.spec("d1", json!({"file": path}));
    spec["cache"] = json!("writeback");
    caller.disk("disk.attach", spec);
    let mut guest = Guest::start(&io.socket("d1"), &Setup::default()).unwrap();
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    guest.frontend.send(Message::new(Code::SET_BACKEND_REQ_FD).fd(theirs.as_fd())).unwrap();
    drop(theirs);
    let beyond = Request::write(2048, &[1; 512]);
    assert_eq!(guest.run(0, &beyond).unwrap().status, status::IOERR);

    let reply = caller.disk("disk.resize", json!({"id": "d1", "size": 2 << 20}));
    assert_eq!(reply.geometry.size_bytes, 2 << 20);
    ours.set_read_timeout(Some(PROCESS_DEADLINE)).unwrap();
    let mut message = [0; 12];
    std::io::Read::read_exact(&mut ours, &mut message).unwrap();
    let expected = [backend_request::CONFIG_CHANGE, 1, 0].map(u32::to_ne_bytes).concat();
    assert_eq!(message[..], expected);
    assert_eq!(guest.config().unwrap().capacity_sectors, 4096);
    assert_eq!(guest.run(0, &beyond).unwrap().status, status::OK);
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 2 << 20);

    let error = caller.call("disk.resize", json!({"id": "d1", "size": 1 << 20})).unwrap_err();
    assert!(error.code == code::FAILED && error.message.contains("only grows"), "{error}");
    let error = caller.call("disk.resize", json!({"id": "d1", "size": (2 << 20) + 1})).unwrap_err();
    assert_eq!(error.code, code::FAILED, "{error}");
    // Without the lock another program may own the image.
    caller.disk("disk.deactivate", json!({"id": "d1"}));
    let error = caller.call("disk.resize", json!({"id": "d1", "size": 4 << 20})).unwrap_err();
    assert!(error.code == code::WRONG_STATE && error.message.contains("activate it"), "{error}");
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 2 << 20);
    caller.disk("disk.activate", json!({"id": "d1"}));
    // Another program has grown the image, and the disk uses the new size.
    std::fs::File::options().write(true).open(&path).unwrap().set_len(3 << 20).unwrap();
    let reply = caller.disk("disk.resize", json!({"id": "d1"}));
    assert_eq!(reply.geometry.size_bytes, 3 << 20);
}

#[test]
fn what_cannot_be_attached_leaves_nothing() {
    let io = Io::start();
    let mut caller = io.caller();
    let good = io.spec("d1", json!({"null": 1 << 20}));
    caller.disk("disk.attach", good.clone());
    let with = |field: &str, value: Value| {
        let mut spec = io.spec("d2", json!({"null": 1 << 20}));
        spec[field] = value;
        spec
    };
    for (spec, expected, message) in [
        (with("socket", good["socket"].clone()), code::FAILED, "running process"),
        (with("socket", json!("/".repeat(108))), code::INVALID_PARAMS, "shorter"),
        (with("queues", json!(0)), code::INVALID_PARAMS, "queues"),
        (with("queues", json!(257)), code::INVALID_PARAMS, "queues"),
        (with("queues", json!(70000)), code::INVALID_PARAMS, "u16"),
        (with("socket_group", json!("no-such-group")), code::FAILED, "group"),
        (with("backend", json!({"file": "/no/such/image"})), code::FAILED, "No such file"),
        (with("cash", json!(1)), code::INVALID_PARAMS, "cash"),
    ] {
        let error = caller.call("disk.attach", spec).unwrap_err();
        assert_eq!(error.code, expected, "{error}");
        assert!(error.message.contains(message), "{error}");
    }
    let ids: Vec<_> = caller.stats().disks.into_iter().map(|disk| disk.id).collect();
    assert_eq!(ids, ["d1"]);
    assert_eq!(names(&io.folder), ["control", "control.lock", "d1", "d1.lock"]);
    // Failed calls leave nothing behind: the same id can be attached correctly now.
    caller.disk("disk.attach", with("queues", json!(256)));
}

#[test]
fn one_disk_can_be_asked_for() {
    let io = Io::start();
    let mut caller = io.caller();
    for id in ["a", "b"] {
        caller.disk("disk.attach", io.spec(id, json!({"null": 1 << 20})));
    }
    let stats = caller.call("stats", json!({"id": "b"})).unwrap();
    assert_eq!(stats["disks"].as_array().unwrap().len(), 1);
    assert_eq!(stats["disks"][0]["id"], "b");
    let error = caller.call("stats", json!({"id": "c"})).unwrap_err();
    assert_eq!(error.code, code::NO_SUCH_DISK);
}

#[test]
fn open_files_are_checked_before_a_disk_is_attached() {
    let folder = folder();
    let control = folder.path().join("control");
    // The hard limit too, so that it cannot be raised.
    let script = format!("ulimit -n 400; exec {IO} --control {} --ready-fd 1", control.display());
    let mut command = Command::new("sh");
    command.args(["-c", &script]).stdout(Stdio::piped());
    let mut process = Process::start(&mut command).unwrap();
    let mut byte = [0];
    let mut out = process.child().stdout.take().unwrap();
    std::io::Read::read_exact(&mut out, &mut byte).unwrap();
    let mut caller = Caller::connect(&control);
    let attach = |id: &str, queues: u16| {
        let (socket, backend) = (folder.path().join(id), json!({"null": 512}));
        json!({"id": id, "socket": socket, "backend": backend, "queues": queues})
    };
    let refused = |caller: &mut Caller, params: Value| {
        let why = caller.call("disk.attach", params).unwrap_err().message;
        assert!(why.contains("open files") && why.contains("LimitNOFILE"), "{why}");
    };
    refused(&mut caller, attach("d", 64));
    // Two disks fit, but not beside an export, whose clients may connect at any time.
    let socket = folder.path().join("e");
    let export = json!({"id": "d", "socket": socket, "read_only": true, "connections": 16});
    caller.call("disk.attach", attach("d", 1)).unwrap();
    caller.call("disk.export", export).unwrap();
    refused(&mut caller, attach("d2", 1));
    caller.call("disk.unexport", json!({"id": "d"})).unwrap();
    caller.call("disk.attach", attach("d2", 1)).unwrap();
}

#[test]
fn a_signal_detaches_everything() {
    let mut io = Io::start();
    let mut caller = io.caller();
    let path = image(&io.folder, "a.raw", 1 << 20);
    let mut guests = Vec::new();
    for (id, backend) in [("a", json!({"file": path})), ("b", json!({"memory": 1 << 20}))] {
        let mut spec = io.spec(id, backend);
        spec["cache"] = json!("writeback");
        caller.disk("disk.attach", spec);
        guests.push(Guest::start(&io.socket(id), &Setup::default()).unwrap());
    }
    for guest in &mut guests {
        assert_eq!(guest.run(0, &Request::write(0, &[1; 512])).unwrap().status, status::OK);
    }
    assert!(io.process.terminate().unwrap().success(), "{}", io.process.stderr());
    assert!(caller.receive().is_none());
    assert_eq!(names(&io.folder), ["a.raw"]);
}

#[test]
fn a_caller_that_does_not_read_holds_up_no_end() {
    let mut io = Io::start();
    let deaf = UnixStream::connect(io.socket("control")).unwrap();
    let call = b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"stats\"}\n";
    // Both directions are full when nothing more is accepted for a while. The server then waits in
    // a reply.
    deaf.set_write_timeout(Some(Duration::from_millis(500))).unwrap();
    while std::io::Write::write_all(&mut &deaf, call).is_ok() {}
    // Other callers are served meanwhile, and see the end.
    let mut caller = io.caller();
    caller.disk("disk.attach", io.spec("d", json!({"null": 1 << 20})));
    assert!(io.process.terminate().unwrap().success(), "{}", io.process.stderr());
    assert!(caller.receive().is_none());
    assert_eq!(names(&io.folder), [""; 0]);
    drop(deaf);
}

#[test]
fn it_ends_with_its_parent_if_asked_to() {
    let folder = folder();
    let control = folder.path().join("control");
    // A shell that starts the program, passes on its readiness, and waits to be killed.
    let script =
        format!("{IO} --control {} --ready-fd 1 --die-with-parent & wait", control.display());
    let mut command = Command::new("sh");
    command.args(["-c", &script]).stdout(Stdio::piped());
    let mut parent = Process::start(&mut command).unwrap();
    let mut out = parent.child().stdout.take().unwrap();
    let mut byte = [0];
    std::io::Read::read_exact(&mut out, &mut byte).unwrap();
    let mut caller = UnixStream::connect(&control).unwrap();
    parent.kill().unwrap();
    // The program closes its callers and files, then its standard output, which it shares with this
    // test. A caller that it had not accepted gets an error.
    let answer = std::io::Read::read(&mut caller, &mut byte);
    assert!(matches!(answer, Ok(0) | Err(_)), "{answer:?}");
    let mut rest = Vec::new();
    std::io::Read::read_to_end(&mut out, &mut rest).unwrap();
    assert_eq!(names(&folder), [""; 0]);
}

#[test]
fn the_control_socket_is_for_its_owner() {
    let io = Io::start();
    let mode = io.socket("control").metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let text = io.socket("control").to_str().unwrap().to_owned();
    let (code, stderr) = ends(IO, &["--control", &text]);
    assert!(code == 1 && stderr.contains("running process"), "{stderr}");
}

#[test]
fn memory_that_is_cut_off_ends_one_session_and_no_other() {
    let io = Io::start_with(&["--reactors", "1"]);
    let mut caller = io.caller();
    for id in ["good", "bad"] {
        caller.disk("disk.attach", io.spec(id, json!({"memory": 1 << 20})));
    }
    let mut good = Guest::start(&io.socket("good"), &Setup::default()).unwrap();
    let mut bad = Guest::start(&io.socket("bad"), &Setup::default()).unwrap();
    assert_eq!(bad.run(0, &Request::read(0, 512)).unwrap().status, status::OK);
    // Its rings stay, but the memory into which it reads is truncated.
    bad.submit(0, &Request::read(0, 1 << 20)).unwrap();
    bad.memory.truncate(bad.memory.regions()[0].mmap_offset + (128 << 10)).unwrap();
    bad.kick(0).unwrap();
    bad.frontend.connection.wait_closed().unwrap();
    // Both disks were on the same thread.
    for _ in 0..testkit::rounds(10, 500) {
        assert_eq!(good.run(0, &Request::read(0, 512)).unwrap().status, status::OK);
    }
    let mut next = Guest::start(&io.socket("bad"), &Setup::default()).unwrap();
    assert_eq!(next.run(0, &Request::read(0, 512)).unwrap().status, status::OK);
}

#[test]
fn rings_that_are_cut_off_end_their_session_too() {
    let io = Io::start();
    let mut caller = io.caller();
    caller.disk("disk.attach", io.spec("d", json!({"memory": 1 << 20})));
    for served in [0, 1] {
        let mut guest = Guest::start(&io.socket("d"), &Setup::default()).unwrap();
        for _ in 0..served {
            assert_eq!(guest.run(0, &Request::read(0, 512)).unwrap().status, status::OK);
        }
        guest.memory.truncate(0).unwrap();
        guest.kick(0).unwrap();
        guest.frontend.connection.wait_closed().unwrap();
    }
}

#[test]
fn a_call_pipe_that_is_full_holds_nobody_up() {
    let io = Io::start_with(&["--reactors", "1"]);
    let mut caller = io.caller();
    caller.disk("disk.attach", io.spec("d", json!({"memory": 1 << 20})));
    let mut guest = Guest::start(&io.socket("d"), &Setup::default()).unwrap();
    let (_reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
    // The pipe holds one page, and is full.
    rustix::pipe::fcntl_setpipe_size(&writer, 4096).unwrap();
    rustix::io::write(&writer, &[0; 4096]).unwrap();
    guest.frontend.set_vring_fd(Code::SET_VRING_CALL, 0, Some(writer.as_fd())).unwrap();
    let pending = guest.submit(0, &Request::read(0, 512)).unwrap();
    guest.kick(0).unwrap();
    eventually("the request ends without a call", || {
        guest.queues[0].ring.used_idx(&guest.memory).unwrap() == 1
    });
    assert_eq!(pending.placed.status(&guest.memory).unwrap(), status::OK);
    assert_eq!(guest.stop_queue(0).unwrap(), 1);
}

#[test]
fn a_read_only_disk_refuses_every_change() {
    let io = Io::start();
    let mut caller = io.caller();
    let mut spec = io.spec("d", json!({"memory": 1 << 20}));
    spec["read_only"] = json!(true);
    assert!(caller.disk("disk.attach", spec).geometry.read_only);
    let mut guest = Guest::start(&io.socket("d"), &Setup::default()).unwrap();
    for request in [
        Request::write(0, &[1; 512]),
        Request::range(kind::DISCARD, 0, 8, 0),
        Request::range(kind::WRITE_ZEROES, 0, 8, 0),
    ] {
        assert_ne!(guest.run(0, &request).unwrap().status, status::OK);
    }
    assert_eq!(guest.run(0, &Request::read(0, 512)).unwrap().data, [0; 512]);
}

#[test]
fn an_idle_process_does_nothing() {
    let io = Io::start();
    let mut caller = io.caller();
    caller.disk("disk.attach", io.spec("d", json!({"null": 1 << 20})));
    let mut guest = Guest::start(&io.socket("d"), &Setup::default()).unwrap();
    assert_eq!(guest.run(0, &Request::read(0, 512)).unwrap().status, status::OK);
    let counts = |caller: &mut Caller| {
        let sum = |f: fn(&model::report::ReactorStats) -> u64, stats: &model::report::Stats| {
            stats.reactors.iter().map(f).sum::<u64>()
        };
        let stats = caller.stats();
        (sum(|r| r.syscalls, &stats), sum(|r| r.sleeps, &stats))
    };
    // The last reply may be in flight during the first count.
    eventually("two equal counts in a row", || {
        let first = counts(&mut caller);
        guest.frontend.barrier().unwrap();
        std::thread::sleep(Duration::from_millis(50));
        first == counts(&mut caller)
    });
}

#[test]
fn a_disk_with_a_front_end_is_detached_only_by_force() {
    let io = Io::start();
    let mut caller = io.caller();
    caller.disk("disk.attach", io.spec("d", json!({"null": 1 << 20})));
    let mut guest = Guest::start(&io.socket("d"), &Setup::default()).unwrap();
    guest.run(0, &Request::read(0, 512)).unwrap();
    let error = caller.call("disk.detach", json!({"id": "d", "force": false})).unwrap_err();
    assert_eq!(error.code, code::WRONG_STATE);
    let says = error.message.contains("\"d\"") && error.message.contains("force=true");
    assert!(says, "{error}");
    guest.run(0, &Request::read(0, 512)).unwrap();
    drop(guest);
    eventually("the front-end has left", || !caller.stats().disks[0].connected);
    caller.call("disk.detach", json!({"id": "d", "force": false})).unwrap();

    for forced in [json!({"id": "d", "force": true}), json!({"id": "d"})] {
        caller.disk("disk.attach", io.spec("d", json!({"null": 1 << 20})));
        let _guest = Guest::start(&io.socket("d"), &Setup::default()).unwrap();
        eventually("the front-end is connected", || caller.stats().disks[0].connected);
        caller.call("disk.detach", forced).unwrap();
        assert_eq!(caller.stats().disks, []);
    }
}
