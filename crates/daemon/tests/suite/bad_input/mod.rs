//! Mistakes of clients over the network, and their error codes, which are those of XenServer. No
//! mistake changes any record.
#![allow(clippy::unwrap_used)] // A failed helper is a failed test.

mod calls;
mod clock;
mod devices;
mod full;
mod guesses;
mod sessions;
mod states;
mod wire;

use std::collections::BTreeMap;
use std::time::Duration;

use testkit::ringwayd::Ringwayd;
use xenapi::Value;
use xenapi::client::{Client, ClientError, Record};

/// Placeholder for a parameter that is prose or a number of this host.
const ANY: &str = "*";
/// Classes whose records must not change by a mistake.
const KEPT: [&str; 9] = ["pool", "host", "VM", "VBD", "VDI", "SR", "PBD", "VIF", "network"];

/// Longest wait for a task.
const PATIENCE: Duration = Duration::from_secs(60);

/// A call that must be refused.
struct Row {
    method: String,
    params: Vec<Value>,
    /// Expected code and parameters.
    expected: Vec<String>,
}

fn row<const N: usize, const M: usize>(
    method: &str,
    params: [Value; N],
    expected: [&str; M],
) -> Row {
    let expected = expected.map(str::to_owned).to_vec();
    Row { method: method.to_owned(), params: params.to_vec(), expected }
}

/// A daemon with the simulator, and a client with root's session.
struct World {
    daemon: Ringwayd,
    root: Client,
}

impl World {
    fn new() -> Self {
        Self::with(&[])
    }

    fn with(options: &[&str]) -> Self {
        let daemon = Ringwayd::simulator(options).unwrap();
        let root = daemon.client().unwrap();
        Self { daemon, root }
    }

    fn call(&mut self, method: &str, params: &[Value]) -> Value {
        let answer = self.root.call(method, params);
        answer.unwrap_or_else(|error| panic!("{method}: {error}"))
    }

    /// Makes a call that returns a reference.
    fn made(&mut self, method: &str, params: &[Value]) -> String {
        text(&self.call(method, params)).to_owned()
    }

    /// Returns the code and parameters of a refused call.
    fn refused(&mut self, method: &str, params: &[Value]) -> Vec<String> {
        refused(&mut self.root, method, params)
    }

    /// Returns the code and parameters of the refused `Async` form, from its answer or its task.
    /// Uses the plain call if clients use no such form. A method name in the error loses the prefix
    /// `Async.`.
    fn refused_task(&mut self, method: &str, params: &[Value]) -> Vec<String> {
        let root = &mut self.root;
        let ended =
            root.begin(method, params).and_then(|pending_call| root.end(pending_call, PATIENCE));
        let error = details(method, params, ended);
        let form = format!("Async.{method}");
        error.into_iter().map(|it| if it == form { method.to_owned() } else { it }).collect()
    }

    /// Returns the only object of this name.
    fn named(&mut self, class: &str, name: &str) -> String {
        let found = self.call(&format!("{class}.get_by_name_label"), &[Value::text(name)]);
        let Value::Set(found) = found else { panic!("no set") };
        assert_eq!(found.len(), 1, "{class} {name}");
        text(&found[0]).to_owned()
    }

    /// Returns the first object of a class.
    fn first(&mut self, class: &str) -> String {
        self.root.records(class).unwrap().first().unwrap().0.clone()
    }

    /// Creates a VM without disks.
    fn machine(&mut self, name: &str) -> String {
        let template = self.named("VM", "Other install media");
        let vm = self.made("VM.clone", &[Value::text(template), Value::text(name)]);
        let it = || Value::text(vm.as_str());
        let disks = [it(), Value::text("disks")];
        self.call("VM.remove_from_other_config", &disks);
        self.call("VM.provision", &[it()]);
        vm
    }

    /// Returns all records that must not change.
    fn dump(&mut self) -> BTreeMap<String, Record> {
        KEPT.iter().flat_map(|class| self.root.records(class).unwrap()).collect()
    }

    /// Asserts that each call is refused as expected, also as a task, and changes nothing.
    fn refuses(&mut self, rows: &[Row]) {
        let before = self.dump();
        for Row { method, params, expected } in rows {
            let is = self.refused(method, params);
            let fits = is.len() == expected.len()
                && is.iter().zip(expected).all(|(is, expected)| expected == ANY || is == expected);
            assert!(fits, "{method} {params:?}: {is:?}, not {expected:?}");
            assert_eq!(self.refused_task(method, params), is, "{method} {params:?} as a task");
            assert!(self.dump() == before, "{method} {params:?} changed something");
        }
        assert_eq!(self.root.records("task").unwrap().len(), 0);
    }
}

fn refused(client: &mut Client, method: &str, params: &[Value]) -> Vec<String> {
    let answer = client.call(method, params);
    details(method, params, answer)
}

fn details(method: &str, params: &[Value], answer: Result<Value, ClientError>) -> Vec<String> {
    match answer {
        Err(ClientError::Api(error)) => error.details(),
        other => panic!("{method} {params:?}: {other:?}"),
    }
}

fn text(value: &Value) -> &str {
    match value {
        Value::Str(text) => text,
        other => panic!("no text: {other:?}"),
    }
}

fn map<const N: usize>(members: [(&str, Value); N]) -> Value {
    Value::Map(members.map(|(name, value)| (name.to_owned(), value)).into())
}

fn none() -> Value {
    Value::Map(BTreeMap::new())
}
