//! Content of disks over HTTP: real storage, and requests as clients send them.
#![allow(clippy::unwrap_used, clippy::panic)] // A failed helper is a failed test.

mod access;
mod ends;
mod foreign;
mod formats;
mod killed;
mod large;
mod network;
mod reflinks;
mod reports;

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use testkit::ringwayd::Ringwayd;
use xenapi::Value;
use xenapi::client::Client;

/// Size of the disks, in bytes.
const SIZE: usize = 4 << 20;

/// A daemon with real storage, and its client.
struct World {
    daemon: Ringwayd,
    client: Client,
    sr: String,
    folder: PathBuf,
}

/// Response of the server.
struct Answer {
    status: u16,
    head: String,
    body: Vec<u8>,
}

impl World {
    fn new() -> Self {
        Self::with(&[])
    }

    fn with(options: &[&str]) -> Self {
        let options = [&["--hypervisor", "qemu"], options].concat();
        let daemon = Ringwayd::start(&options).unwrap();
        let mut client = daemon.client().unwrap();
        let sr = client.records("SR").unwrap();
        let (sr, record) = sr.into_iter().find(|(_, sr)| sr.text("type") == "dir").unwrap();
        let folder = daemon.dir().join("state/sr").join(record.text("uuid"));
        Self { daemon, client, sr, folder }
    }

    fn call(&mut self, method: &str, params: &[Value]) -> Value {
        self.client.call(method, params).unwrap_or_else(|error| panic!("{method}: {error}"))
    }

    fn made(&mut self, method: &str, params: &[Value]) -> String {
        match self.call(method, params) {
            Value::Str(text) => text,
            other => panic!("{method}: {other:?}"),
        }
    }

    /// Creates a storage repository at this place, and uses it from now on.
    fn use_sr_at(&mut self, place: PathBuf) {
        let host = self.client.records("host").unwrap().remove(0).0;
        let text = |text: &str| Value::text(text);
        let args = [
            text(&host),
            record([("location", text(place.to_str().unwrap()))]),
            Value::Int(0),
            text("own"),
            text(""),
            text("dir"),
            text("user"),
            Value::Bool(false),
            record([]),
        ];
        self.sr = self.made("SR.create", &args);
        self.folder = place;
    }

    fn disk(&mut self) -> String {
        self.disk_of("raw")
    }

    /// Creates a disk whose image has this format.
    fn disk_of(&mut self, format: &str) -> String {
        self.disk_of_size(format, SIZE as u64)
    }

    fn disk_of_size(&mut self, format: &str, bytes: u64) -> String {
        let text = |text: &str| Value::text(text);
        let fields = record([
            ("name_label", text("d")),
            ("SR", text(&self.sr)),
            ("virtual_size", Value::Int(bytes.try_into().unwrap())),
            ("type", text("user")),
            ("sharable", Value::Bool(false)),
            ("read_only", Value::Bool(false)),
            ("other_config", record([])),
            ("sm_config", record([("type", text(format))])),
        ]);
        self.made("VDI.create", &[fields])
    }

    fn snapshot(&mut self, disk: &str) -> String {
        self.made("VDI.snapshot", &[Value::text(disk), record([])])
    }

    fn task(&mut self) -> String {
        self.made("task.create", &[Value::text("t"), Value::text("")])
    }

    /// Returns the status of a task, and its error.
    fn outcome(&mut self, task: &str) -> (String, Vec<String>) {
        let record = self.client.record("task", task).unwrap();
        let error = record.texts("error_info").into_iter().map(str::to_owned).collect();
        (record.text("status").to_owned(), error)
    }

    /// Waits for the end of a task, and returns its error.
    fn failed(&mut self, task: &str) -> Vec<String> {
        let ended = self.client.wait_task(task, std::time::Duration::from_secs(60)).unwrap();
        match ended {
            Some(Err(error)) => error.details(),
            other => panic!("{other:?}"),
        }
    }

    fn connect(&self) -> UnixStream {
        UnixStream::connect(self.daemon.socket()).unwrap()
    }

    fn get(&self, query: &str) -> Answer {
        let mut stream = self.connect();
        send(&mut stream, &format!("GET /export_raw_vdi/?{query}"), "", b"");
        answer(&mut stream)
    }

    fn put(&self, query: &str, body: &[u8]) -> Answer {
        let mut stream = self.connect();
        let length = format!("Content-Length: {}\r\n", body.len());
        send(&mut stream, &format!("PUT /import_raw_vdi/?{query}"), &length, body);
        answer(&mut stream)
    }

    /// Returns the content of a disk.
    fn content(&self, disk: &str) -> Vec<u8> {
        let answer = self.get(&format!("vdi={disk}"));
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.body
    }

    /// Returns the names of files that are not complete.
    fn incomplete(&self) -> Vec<String> {
        let names = self.folder.read_dir().unwrap();
        let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.starts_with(".new-")).collect()
    }
}

impl Answer {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

fn record<const N: usize>(members: [(&str, Value); N]) -> Value {
    Value::Map(BTreeMap::from(members.map(|(name, value)| (name.to_owned(), value))))
}

fn send(stream: &mut (impl Read + Write), line: &str, headers: &str, body: &[u8]) {
    let head = format!("{line} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n{headers}\r\n");
    // The server may answer and close before it has read all.
    let _closed = stream.write_all(&[head.as_bytes(), body].concat());
}

/// Reads the response, up to the end of the connection.
fn answer(stream: &mut impl Read) -> Answer {
    let mut all = Vec::new();
    let _reset = stream.read_to_end(&mut all);
    let end = all.windows(4).position(|four| four == b"\r\n\r\n").expect("no head");
    let body = all.split_off(end + 4);
    let head = String::from_utf8(all).unwrap().to_ascii_lowercase();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Answer { status, head, body }
}

/// Returns the bytes of a disk, most of them zero.
fn bytes(seed: u8) -> Vec<u8> {
    let mut bytes = vec![0; SIZE];
    bytes[4096..12_288].fill(seed);
    bytes[SIZE - 512..].fill(seed + 1);
    bytes
}

fn write(path: &Path, bytes: &[u8]) {
    std::fs::write(path, bytes).unwrap();
}
