//! Directories as SRs, over the network: they vanish, are full, or belong to another SR.
#![allow(clippy::unwrap_used, clippy::panic)] // A failed helper is a failed test.

mod clones;
mod ends;
mod full;
mod golden;
mod gone;
mod iso;

use std::collections::BTreeMap;
use std::path::Path;

use testkit::ringwayd::Ringwayd;
use xenapi::Value;
use xenapi::client::{Client, ClientError};

/// Size of the disks, in bytes.
const DISK_BYTES: i64 = 1 << 20;

/// A daemon with real storage, and its client.
struct World {
    daemon: Ringwayd,
    client: Client,
}

impl World {
    fn new() -> Self {
        let daemon = Ringwayd::start(&["--hypervisor", "qemu"]).unwrap();
        let client = daemon.client().unwrap();
        Self { daemon, client }
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

    /// Returns the code and parameters of a refused call.
    fn refused(&mut self, method: &str, params: &[Value]) -> Vec<String> {
        match self.client.call(method, params) {
            Err(ClientError::Api(error)) => error.details(),
            other => panic!("{method}: {other:?}"),
        }
    }

    fn one(&mut self, class: &str) -> String {
        self.client.records(class).unwrap().into_iter().next().unwrap().0
    }

    fn xe(&self, words: &[&str]) -> String {
        self.daemon.xe_prints(words).unwrap()
    }

    /// Runs `xe`, which must fail. Returns its error text.
    fn xe_fails(&self, words: &[&str]) -> String {
        let output = self.daemon.xe_output(words).unwrap();
        assert!(!output.status.success(), "{words:?}");
        String::from_utf8(output.stderr).unwrap()
    }

    /// Returns the parameters of `SR.create`.
    fn sr(&mut self, place: &Path) -> Vec<Value> {
        vec![
            Value::text(self.one("host")),
            record([("location", Value::text(place.to_str().unwrap()))]),
            Value::Int(0),
            Value::text("images"),
            Value::text(""),
            Value::text("dir"),
            Value::text("user"),
            Value::Bool(false),
            record([]),
        ]
    }

    fn connection(&mut self, sr: &str) -> String {
        let record = self.client.record("SR", sr).unwrap();
        record.texts("PBDs").first().unwrap().to_string()
    }

    fn is_connected(&mut self, pbd: &str) -> bool {
        self.client.record("PBD", pbd).unwrap().flag("currently_attached")
    }

    fn disk(&mut self, sr: &str) -> String {
        self.made("VDI.create", &[disk(sr)])
    }

    /// Creates a VM with one disk, without an operating system.
    fn machine(&mut self, disk: &str) -> String {
        let template = self.call("VM.get_by_name_label", &[Value::text("Other install media")]);
        let Value::Set(template) = template else { panic!("{template:?}") };
        let template = template.into_iter().next().unwrap();
        let machine = self.made("VM.clone", &[template, Value::text("m")]);
        let of = Value::text(machine.clone());
        self.call("VM.remove_from_other_config", &[of.clone(), Value::text("disks")]);
        self.call("VM.provision", std::slice::from_ref(&of));
        let slot = record([
            ("VM", of),
            ("VDI", Value::text(disk)),
            ("userdevice", Value::text("0")),
            ("bootable", Value::Bool(false)),
            ("mode", Value::text("RW")),
            ("type", Value::text("Disk")),
            ("empty", Value::Bool(false)),
            ("other_config", record([])),
            ("qos_algorithm_type", Value::text("")),
            ("qos_algorithm_params", record([])),
        ]);
        self.made("VBD.create", &[slot]);
        machine
    }
}

/// Returns the record for `VDI.create`.
fn disk(sr: &str) -> Value {
    record([
        ("name_label", Value::text("d")),
        ("SR", Value::text(sr)),
        ("virtual_size", Value::Int(DISK_BYTES)),
        ("type", Value::text("user")),
        ("sharable", Value::Bool(false)),
        ("read_only", Value::Bool(false)),
        ("other_config", record([])),
    ])
}

fn record<const N: usize>(members: [(&str, Value); N]) -> Value {
    Value::Map(BTreeMap::from(members.map(|(name, value)| (name.to_owned(), value))))
}

fn start(machine: &str) -> [Value; 3] {
    [Value::text(machine), Value::Bool(false), Value::Bool(false)]
}
