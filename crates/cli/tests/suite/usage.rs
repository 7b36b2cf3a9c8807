//! Tests without a guest: usage, refusals, and the client against a server in the test.
#![allow(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::json;
use testkit::process::{copy_program, write_script};

use crate::served::Served;

fn ringway(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ringway"))
        .args(arguments)
        .env_remove("RINGWAY_CONTROL")
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn every_command_has_a_help_text_with_examples() {
    for command in ["run", "io", "image", "top", "why", "libvirt-xml", "net", "doctor", "demo"] {
        let output = ringway(&[command, "--help"]);
        assert!(output.status.success(), "{command}");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(text.contains("Example"), "{command}: {text}");
        assert!(text.lines().all(|line| line.chars().count() <= 100), "{command}: {text}");
    }
}

#[test]
fn unknown_words_are_refused_with_a_suggestion() {
    for (arguments, tip) in [(&["rum"][..], "'run'"), (&["run", "--kernl", "k"], "'--kernel'")] {
        let output = ringway(arguments);
        assert_eq!(output.status.code(), Some(2));
        assert!(stderr(&output).contains(tip), "{}", stderr(&output));
    }
}

#[test]
fn bad_values_are_refused_with_what_would_be_accepted() {
    let cases = [
        ("--disk", "a.raw,cache=maybe", "cache=none|writeback"),
        ("--disk", "a.raw,queues=0", "1 to 256"),
        ("--memory", "lots", "use K, M, G or T"),
        ("--accel", "hvf", "auto, kvm or tcg"),
        ("--timeout", "soon", "60s"),
    ];
    for (option, value, expected) in cases {
        let output = ringway(&["run", "--kernel", "k", option, value]);
        assert_eq!(output.status.code(), Some(2), "{option} {value}");
        assert!(stderr(&output).contains(expected), "{option}: {}", stderr(&output));
    }
    let output = ringway(&["run", "--kernel", "k", "--vcpus", "0"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("vcpus: 0 is not in 1 to 255"), "{}", stderr(&output));
}

#[test]
fn the_client_prints_results_and_fails_with_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("io.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let server = std::thread::spawn(move || {
        let mut seen = Vec::new();
        for reply in [r#""result":{"disks":[]}"#, r#""error":{"code":-32001,"message":"no d9"}"#] {
            let (mut stream, _) = listener.accept().unwrap();
            let mut line = String::new();
            BufReader::new(stream.try_clone().unwrap()).read_line(&mut line).unwrap();
            seen.push(line);
            stream
                .write_all(format!("{{\"jsonrpc\":\"2.0\",\"id\":1,{reply}}}\n").as_bytes())
                .unwrap();
        }
        seen
    });
    let control = socket.to_str().unwrap();
    let output = ringway(&["io", "--control", control, "stats"]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(output.stdout, b"{\"disks\":[]}\n");
    let output = ringway(&["io", "--control", control, "disk.detach", "id=d9"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("no d9"), "{}", stderr(&output));
    let seen = server.join().unwrap();
    assert!(seen[1].contains(r#""params":{"force":false,"id":"d9"}"#), "{seen:?}");
}

/// The server has another working directory than the user.
#[test]
fn relative_paths_begin_where_the_user_is() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("io.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut line = String::new();
        BufReader::new(stream.try_clone().unwrap()).read_line(&mut line).unwrap();
        stream.write_all(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\n").unwrap();
        line
    });
    let control = ["io", "--control", socket.to_str().unwrap(), "disk.attach", "id=a"];
    let output = Command::new(env!("CARGO_BIN_EXE_ringway"))
        .args([&control[..], &["backend.qcow2.file=a.qcow2", "socket=/run/s", "serial=x"]].concat())
        .current_dir(dir.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let line = server.join().unwrap();
    let file = std::fs::canonicalize(dir.path()).unwrap().join("a.qcow2");
    assert!(line.contains(&format!("\"file\":\"{}\"", file.display())), "{line}");
    assert!(line.contains("\"socket\":\"/run/s\"") && line.contains("\"serial\":\"x\""), "{line}");
}

#[test]
fn the_help_of_io_names_every_method() {
    let output = ringway(&["io", "--help"]);
    let help = String::from_utf8(output.stdout).unwrap();
    let words: Vec<&str> = help.split([' ', ',', '\n']).collect();
    for method in model::rpc::METHODS {
        assert!(words.contains(&method), "{method}");
    }
}

/// An absent `force` forces, for every version.
#[test]
fn a_detach_by_hand_is_checked_unless_forced() {
    let older = r#""error":{"code":-32602,"message":"unknown field `force`, expected `id`"}"#;
    let done = r#""result":{}"#;
    let sends = |words: &[&str], reply: &str| {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("io.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let reply = format!("{{\"jsonrpc\":\"2.0\",\"id\":1,{reply}}}\n");
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut line = String::new();
            BufReader::new(stream.try_clone().unwrap()).read_line(&mut line).unwrap();
            stream.write_all(reply.as_bytes()).unwrap();
            line
        });
        let control = socket.to_str().unwrap();
        let output = ringway(&[&["io", "--control", control, "disk.detach"], words].concat());
        (server.join().unwrap(), output)
    };
    for words in [&["id=d1", "force=true"][..], &[r#"{"id":"d1","force":true}"#]] {
        let (line, output) = sends(words, done);
        assert!(line.contains(r#""params":{"id":"d1"}"#) && output.status.success(), "{line}");
    }
    for words in [&["id=d1"][..], &["id=d1", "force=false"], &[r#"{"id":"d1"}"#]] {
        let (line, output) = sends(words, done);
        let params = r#""params":{"force":false,"id":"d1"}"#;
        assert!(line.contains(params) && output.status.success(), "{line}");
        let (_, output) = sends(words, older);
        assert_eq!(output.status.code(), Some(2));
        assert!(stderr(&output).contains("with force=true"), "{}", stderr(&output));
    }
}

#[test]
fn notes_of_an_attach_are_printed_and_are_no_failure() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.raw");
    let mut content = b"QFI\xfb".to_vec();
    content.resize(1 << 20, 0);
    std::fs::write(&path, content).unwrap();
    let io = Served::start(&[]);
    let backend = json!({"file": path});
    let spec = json!({"id": "d", "socket": io.socket("d"), "backend": backend});
    let output = io.ringway(&["io", "disk.attach", &spec.to_string()]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(stderr(&output).contains("state it: format=raw"), "{}", stderr(&output));
    let mut stated = spec.clone();
    stated["format"] = json!("raw");
    let output = io.ringway(&["io", "disk.attach", &stated.to_string()]);
    assert!(output.status.success(), "{output:?}");
    let text = stderr(&output);
    assert!(text.starts_with("note: ") && text.contains("--format qcow2"), "{text}");
}

/// An invalid call is detected before it is sent, and from the server's answer.
#[test]
fn what_is_no_call_is_told_from_one_that_is_refused() {
    for parameters in [&["foo"][..], &["id=a", "id=b"], &["{"], &["size=lots"]] {
        let output = ringway(&[&["io", "--control", "/nonexistent", "stats"], parameters].concat());
        assert_eq!(output.status.code(), Some(2), "{parameters:?}: {}", stderr(&output));
    }
    for (code, expected) in [(-32601, 2), (-32602, 2), (-32000, 1), (-32001, 1), (-32002, 1)] {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("io.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            BufReader::new(stream.try_clone().unwrap()).read_line(&mut String::new()).unwrap();
            let error = format!(r#""error":{{"code":{code},"message":"not so"}}"#);
            stream
                .write_all(format!("{{\"jsonrpc\":\"2.0\",\"id\":1,{error}}}\n").as_bytes())
                .unwrap();
        });
        let output = ringway(&["io", "--control", socket.to_str().unwrap(), "stats", "id=foo"]);
        assert_eq!(output.status.code(), Some(expected), "{code}: {}", stderr(&output));
        assert!(stderr(&output).contains("stats was refused: not so"), "{}", stderr(&output));
        server.join().unwrap();
    }
}

#[test]
fn nobody_at_the_control_socket_is_told_with_what_to_do() {
    let output = ringway(&["io", "--control", "/nonexistent/io.sock", "stats"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("ringway-io --control"), "{}", stderr(&output));
}

#[test]
fn manual_pages_are_written_for_every_visible_command() {
    let dir = tempfile::tempdir().unwrap();
    let output = ringway(&["man", dir.path().to_str().unwrap()]);
    assert!(output.status.success(), "{}", stderr(&output));
    for page in ["ringway.1", "ringway-run.1", "ringway-io.1", "ringway-doctor.1"] {
        let text = std::fs::read_to_string(dir.path().join(page)).unwrap();
        assert!(text.contains(".TH "), "{page}");
    }
    assert!(!dir.path().join("ringway-bound.1").exists());
}

#[test]
fn a_bound_program_does_not_start_for_a_stranger() {
    // Process 1 is not the parent of the program that this test starts.
    let output = ringway(&["bound", "1", "true"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("the parent is gone"), "{}", stderr(&output));
    let ourselves = std::process::id().to_string();
    assert!(ringway(&["bound", &ourselves, "true"]).status.success());
}

#[test]
fn lab_hands_over_to_the_program_beside_it() {
    let dir = tempfile::tempdir().unwrap();
    let (ringway, lab) = (dir.path().join("ringway"), dir.path().join("ringway-lab"));
    copy_program(Path::new(env!("CARGO_BIN_EXE_ringway")), &ringway).unwrap();
    let run = |arguments: &[&str]| {
        let mut command = Command::new(&ringway);
        command.arg("lab").args(arguments).env("PATH", "/nonexistent").output().unwrap()
    };
    let missing = run(&["list"]);
    assert_eq!(missing.status.code(), Some(1));
    assert!(stderr(&missing).contains("cargo build --release"), "{}", stderr(&missing));
    write_script(&lab, "echo \"$@\"; exit 3").unwrap();
    let output = run(&["run", "x", "--quick", "--help"]);
    assert_eq!(output.status.code(), Some(3));
    assert_eq!(output.stdout, b"run x --quick --help\n");
}
