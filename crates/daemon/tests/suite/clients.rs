//! Requests of unchanged client programs, sent again without the programs.
//!
//! `make clients` runs the programs and records their requests (`tests/clients`). A request has the
//! bytes of its program, but for placeholders of what differs between two daemons. Each must end as
//! it did when it was recorded.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::Value;
use testkit::ringwayd::Ringwayd;
use xenapi::client::{Client, Record};

/// Longer than any call here takes.
const PATIENCE: Duration = Duration::from_secs(120);
/// Start of a reference.
const REFERENCE: &str = "OpaqueRef:";
/// Bytes of a reference.
const REFERENCE_BYTES: usize = REFERENCE.len() + 36;

/// A recording that is sent to a daemon.
struct Replay {
    address: String,
    client: Client,
    password: String,
    /// First reference in each answer so far: a session or a task.
    references: Vec<String>,
    /// Token of the last answer with events.
    token: String,
    /// Whether the program sends other requests while it waits for events.
    waits_aside: bool,
    /// Wait for events that is not answered yet.
    wait: Option<Wait>,
}

/// Wait for events on a connection of its own.
struct Wait {
    stream: TcpStream,
    thread: JoinHandle<String>,
}

impl Wait {
    /// Ends the wait, as a client does that has waited long enough. Returns the answer, if any.
    fn end(self) -> String {
        // The daemon may have closed the connection.
        let _closed = self.stream.shutdown(std::net::Shutdown::Both);
        self.thread.join().unwrap()
    }
}

fn replay(recording: &str) {
    replay_to(Ringwayd::simulator(&[]).unwrap(), recording);
}

fn replay_to(mut daemon: Ringwayd, recording: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients").join(recording);
    let text = std::fs::read_to_string(path).unwrap();
    let address = daemon.url().unwrap().trim_start_matches("http://").to_owned();
    let (client, password) = (daemon.client().unwrap(), daemon.password().unwrap());
    let (references, token) = (Vec::new(), String::new());
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let waits_aside = lines.iter().any(|line| line["overlaps"] == true);
    let wait = None;
    let mut replay = Replay { address, client, password, references, token, wait, waits_aside };
    let before = replay.names();
    for (number, line) in lines.into_iter().enumerate() {
        let outcome = replay.send(&line);
        let expected = line["outcome"].as_str().unwrap_or("");
        assert_eq!(outcome, expected, "{recording}, line {}: {line}", number + 1);
    }
    replay.end_wait();
    assert_eq!(replay.names(), before, "{recording} removes what it has made");
}

impl Replay {
    /// Returns the names of all VMs and disks, sorted.
    fn names(&mut self) -> Vec<String> {
        let mut names = Vec::new();
        for class in ["VM", "VDI"] {
            let records = self.client.records(class).unwrap().into_iter();
            names.extend(records.map(|(_, one)| one.text("name_label").to_owned()));
        }
        names.sort();
        names
    }

    /// Sends a request. Returns `ok`, the code of an error or the HTTP status.
    fn send(&mut self, line: &Value) -> String {
        let body = self.fill(line["body"].as_str().unwrap());
        let mut head = format!(
            "{} {} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nContent-Length: {}\r\n",
            line["method"].as_str().unwrap(),
            self.fill(line["path"].as_str().unwrap()),
            self.address,
            body.len()
        );
        for (name, value) in line["headers"].as_object().unwrap() {
            head += &format!("{name}: {}\r\n", value.as_str().unwrap());
        }
        let request = format!("{head}\r\n{body}");
        let is_wait =
            ["\"event.from\"", "<methodName>event.from<"].iter().any(|it| body.contains(it));
        if is_wait && self.waits_aside && !self.token.is_empty() {
            // The next request may be what this one waits for, and the answers may come in other
            // pieces than those that were recorded.
            self.end_wait();
            self.wait = Some(self.begin_wait(&request));
            self.references.push(String::new());
            return line["outcome"].as_str().unwrap_or("").to_owned();
        }
        let mut stream = self.connect();
        stream.write_all(request.as_bytes()).unwrap();
        let answer = read(stream);
        self.learn(&answer);
        if let Some(content) = line["answer"].as_str() {
            assert!(answer.ends_with(&format!("\r\n\r\n{content}")), "{answer}");
        }
        if body.contains("Async.") && outcome(&answer) == "ok" {
            let task = self.references.last().unwrap().clone();
            self.client.wait_task(&task, PATIENCE).unwrap();
        }
        outcome(&answer)
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    fn begin_wait(&self, request: &str) -> Wait {
        let mut stream = self.connect();
        // The wait may be ended before its thread runs.
        stream.write_all(request.as_bytes()).unwrap();
        let other = stream.try_clone().unwrap();
        Wait { stream, thread: std::thread::spawn(move || read(other)) }
    }

    /// Ends the wait for events. A wait that was answered must have succeeded.
    fn end_wait(&mut self) {
        let Some(wait) = self.wait.take() else { return };
        let answer = wait.end();
        if !answer.is_empty() {
            assert_eq!(outcome(&answer), "ok", "{answer}");
            self.learn_token(&answer);
        }
    }

    fn learn(&mut self, answer: &str) {
        let at = answer.find(REFERENCE);
        let reference = at.and_then(|at| answer.get(at..at + REFERENCE_BYTES));
        self.references.push(reference.unwrap_or_default().to_owned());
        self.learn_token(answer);
    }

    fn learn_token(&mut self, answer: &str) {
        let found = ["\"token\":\"", "<name>token</name><value>"].iter().find_map(|before| {
            let (_, after) = answer.split_once(before)?;
            after.split(['"', '<']).next()
        });
        if let Some(token) = found {
            self.token = token.to_owned();
        }
    }

    /// Replaces the placeholders of a body.
    fn fill(&mut self, body: &str) -> String {
        let mut parts = body.split("{{");
        let mut filled = parts.next().unwrap().to_owned();
        for part in parts {
            // A placeholder ends here. What follows may end with braces of its own.
            let (placeholder, rest) = part.split_once("}}").unwrap();
            filled += &self.value(placeholder);
            filled += rest;
        }
        filled
    }

    fn value(&mut self, placeholder: &str) -> String {
        let mut words = placeholder.split('|');
        match (words.next().unwrap(), words.next()) {
            ("password", None) => self.password.clone(),
            ("token", None) => {
                self.end_wait();
                self.token.clone()
            }
            ("answer", Some(number)) => self.references[number.parse::<usize>().unwrap()].clone(),
            (what, Some(class)) => {
                let (reference, record) = self.object(class, &words.collect::<Vec<_>>());
                if what == "uuid" { record.text("uuid").to_owned() } else { reference }
            }
            odd => panic!("{odd:?}"),
        }
    }

    /// Returns the only object of a class with these fields. A VM has its name there.
    fn object(&mut self, class: &str, fields: &[&str]) -> (String, Record) {
        let mut found = Vec::new();
        for (reference, record) in self.client.records(class).unwrap() {
            let has = |client: &mut Client, field: &&str| {
                let (field, value) = field.split_once('=').unwrap();
                match field {
                    "VM" => {
                        let vm = client.record("VM", record.text("VM")).unwrap();
                        vm.text("name_label") == value
                    }
                    field => record.text(field) == value,
                }
            };
            if fields.iter().all(|field| has(&mut self.client, field)) {
                found.push((reference, record));
            }
        }
        assert_eq!(found.len(), 1, "{class} {fields:?}");
        found.remove(0)
    }
}

/// Returns the answer to a request: all until the connection ends.
fn read(mut stream: TcpStream) -> String {
    let mut answer = Vec::new();
    // A wait that is ended has no answer.
    let _ended = stream.read_to_end(&mut answer);
    String::from_utf8(answer).unwrap()
}

/// Returns what the recorder writes of an answer.
fn outcome(answer: &str) -> String {
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap();
    if status != "200" {
        return format!("HTTP {status}");
    }
    let code = match serde_json::from_str::<Value>(body) {
        Ok(json) => json["error"]["message"].as_str().map(str::to_owned),
        Err(_) => body.split_once("<name>ErrorDescription</name>").map(|(_, after)| {
            let (_, after) = after.split_once("<data><value>").unwrap();
            after.trim_start_matches("<string>").split('<').next().unwrap().to_owned()
        }),
    };
    code.unwrap_or_else(|| "ok".to_owned())
}

#[test]
fn python() {
    replay("python.jsonl");
}

#[test]
fn npm_xen_api() {
    replay("node.jsonl");
}

/// `putResource` and `getResource`, with and without a stream.
#[test]
fn npm_xen_api_sends_disks() {
    replay_to(Ringwayd::start(&["--hypervisor", "qemu"]).unwrap(), "node-disks.jsonl");
}

#[test]
fn ansible() {
    replay("ansible.jsonl");
}

#[test]
fn java() {
    replay("java.jsonl");
}

/// Derived from the templates of the SDK, which no package registry has.
#[test]
fn go_sdk() {
    replay("go-sdk.jsonl");
}

#[test]
fn go() {
    replay("go.jsonl");
}
