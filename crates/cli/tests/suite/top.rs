//! Tests of `ringway top` on a terminal and without one.
#![allow(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, Stdio};

use crate::served::{RINGWAY, Served};
use serde_json::json;
use testkit::raw::request::Request;

const ENTER: &str = "\x1b[?1049h";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

#[test]
fn one_table_holds_the_disks_of_all_processes_in_order() {
    let (a, b) = (Served::start(&[]), Served::start(&[]));
    a.attach("d1", json!({"null": 1 << 20}), json!({}));
    b.attach("d2", json!({"null": 1 << 20}), json!({"activate": false}));
    let mut guest = a.guest("d1");
    guest.run(0, &Request::read(0, 512)).unwrap();
    let (first, second) = (a.socket("control"), b.socket("control"));
    let words = ["top", "--once", "--seconds", "0.1", "--sort", "disk", "--control"];
    let more = ["--control", second.to_str().unwrap(), "--control", "/nowhere/at/all"];
    let text = a.stdout(&[&words[..], &[first.to_str().unwrap()], &more[..]].concat());
    let at = |part: &str| text.find(part).unwrap_or_else(|| panic!("no {part} in {text}"));
    assert!(at("d1") < at("d2") && at("active") < at("attached"));
    assert!(text.contains("/nowhere/at/all: no ringway-io answers"), "{text}");
    assert!(!text.contains('\x1b'), "a pipe gets no control codes");
    let output = a.ringway(&["top", "--once", "--seconds", "0.1", "--control", "/nowhere/at/all"]);
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn a_pipe_gets_page_after_page_until_its_reader_has_enough() {
    let io = Served::start(&[]);
    io.attach("d1", json!({"null": 1 << 20}), json!({}));
    let mut top = io.command(&["top", "--seconds", "0.1"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(top.stdout.take().unwrap()).lines();
    for _ in 0..2 {
        lines.by_ref().find(|line| line.as_ref().unwrap().contains("d1")).unwrap().unwrap();
    }
    drop(lines);
    assert!(top.wait().unwrap().success(), "a closed pipe is no error");
}

/// Runs the program on a terminal of its own and types `keys` once it draws. Returns its output and
/// exit code. There is no shell in between, because Ctrl-C would end that as well.
fn on_a_terminal(io: &Served, keys: &[u8]) -> (String, Option<i32>) {
    let words = format!("exec {RINGWAY} top --seconds 0.1");
    let mut script = Command::new("script");
    script.args(["-qec", &words, "/dev/null"]).env("RINGWAY_CONTROL", io.socket("control"));
    script.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut script = script.spawn().unwrap();
    let (mut input, mut output) = (script.stdin.take().unwrap(), script.stdout.take().unwrap());
    let (mut drawn, mut byte) = (Vec::new(), [0]);
    while !String::from_utf8_lossy(&drawn).contains("d1") {
        output.read_exact(&mut byte).unwrap();
        drawn.extend(byte);
    }
    input.write_all(keys).unwrap();
    output.read_to_end(&mut drawn).unwrap();
    let code = script.wait().unwrap().code();
    (String::from_utf8_lossy(&drawn).into_owned(), code)
}

#[test]
fn the_terminal_is_as_before_whoever_ends_it() {
    let io = Served::start(&[]);
    io.attach("d1", json!({"null": 1 << 20}), json!({}));
    let (drawn, code) = on_a_terminal(&io, b"q");
    assert!(
        drawn.contains(ENTER) && drawn.ends_with(LEAVE) && code == Some(0),
        "{code:?}: {drawn:?}"
    );
    // Ctrl-C.
    let (drawn, code) = on_a_terminal(&io, b"\x03");
    assert!(drawn.ends_with(LEAVE) && code == Some(130), "{code:?}: {drawn:?}");
}
