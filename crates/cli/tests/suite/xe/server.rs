//! A server with a few fixed records.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use xenapi::envelope::{self, Call, Encoding};
use xenapi::filter::Filter;
use xenapi::table::resolve::{Method, resolve};
use xenapi::table::{Class, class};
use xenapi::{ApiError, Value, codes, xmlrpc};

type Records = BTreeMap<String, BTreeMap<String, Value>>;

/// State of the server: records by class.
pub(crate) struct State {
    classes: BTreeMap<&'static str, Records>,
    /// Received calls. A client at the socket neither logs in nor out.
    pub(crate) calls: Vec<String>,
    /// Errors of tasks, by the call that they carry out; other tasks succeed.
    pub(crate) failures: BTreeMap<&'static str, ApiError>,
    tasks: usize,
}

pub(crate) struct Server {
    pub(crate) socket: PathBuf,
    pub(crate) state: Arc<Mutex<State>>,
}

impl Server {
    pub(crate) fn start(dir: &Path) -> Self {
        let socket = dir.join("s");
        let listener = UnixListener::bind(&socket).unwrap();
        let state = Arc::new(Mutex::new(State::new()));
        let shared = Arc::clone(&state);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (stream, state) = (stream.unwrap(), Arc::clone(&shared));
                std::thread::spawn(move || serve(stream, &state));
            }
        });
        Self { socket, state }
    }

    pub(crate) fn calls(&self) -> Vec<String> {
        self.state.lock().unwrap().calls.clone()
    }
}

fn serve(stream: UnixStream, state: &Mutex<State>) {
    let mut stream = BufReader::new(stream);
    loop {
        let mut length = 0;
        loop {
            let mut line = String::new();
            let Ok(1..) = stream.read_line(&mut line) else { return };
            if line == "\r\n" {
                break;
            }
            if let Some(value) = line.strip_prefix("Content-Length: ") {
                length = value.trim().parse().unwrap();
            }
        }
        let mut body = vec![0; length];
        stream.read_exact(&mut body).unwrap();
        let call = envelope::parse(Encoding::Json, &body).unwrap();
        let outcome = state.lock().unwrap().answer(&call);
        let answer = envelope::answer(&call, &outcome).to_text();
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", answer.len());
        if stream.get_mut().write_all((head + &answer).as_bytes()).is_err() {
            return;
        }
    }
}

pub(crate) fn text(value: &Value) -> &str {
    match value {
        Value::Str(text) => text,
        other => panic!("{other:?}"),
    }
}

impl State {
    fn new() -> Self {
        let mut state = Self {
            classes: BTreeMap::new(),
            calls: Vec::new(),
            failures: BTreeMap::new(),
            tasks: 0,
        };
        let yes = || Value::Bool(true);
        let running = || Value::text("Running");
        let pairs = |pairs: &[(&str, &str)]| {
            let pair = |(key, value): &(&str, &str)| ((*key).to_owned(), Value::text(*value));
            Value::Map(pairs.iter().map(pair).collect())
        };
        state.add("pool", "p", "pool", &[("master", Value::text("OpaqueRef:h"))]);
        state.add("host", "h", "one", &[("enabled", yes())]);
        state.add(
            "VM",
            "dom0",
            "Control domain on host: one",
            &[("is_control_domain", yes()), ("power_state", running())],
        );
        state.add("VM", "t", "Other install media", &[("is_a_template", yes())]);
        state.add(
            "VM",
            "web",
            "web",
            &[
                ("power_state", running()),
                ("tags", Value::Set(vec![Value::text("blue"), Value::text("a,b")])),
                ("other_config", pairs(&[("k", "v"), ("zone", "b")])),
                ("VBDs", Value::Set(vec![Value::text("OpaqueRef:d")])),
            ],
        );
        state.add("VM", "db", "db, of web", &[]);
        state.add("SR", "s", "Local storage", &[("type", Value::text("dir"))]);
        state.add(
            "VDI",
            "v",
            "root",
            &[
                ("SR", Value::text("OpaqueRef:s")),
                ("virtual_size", Value::Int(1 << 30)),
                ("VBDs", Value::Set(vec![Value::text("OpaqueRef:d")])),
            ],
        );
        state.add(
            "VBD",
            "d",
            "",
            &[
                ("VM", Value::text("OpaqueRef:web")),
                ("VDI", Value::text("OpaqueRef:v")),
                ("userdevice", Value::text("0")),
                ("type", Value::text("Disk")),
            ],
        );
        state
    }

    fn add(&mut self, of: &'static str, name: &str, label: &str, fields: &[(&str, Value)]) {
        let class = class(of).unwrap();
        let initial = |field: &xenapi::table::Field| (field.name.to_owned(), field.initial());
        let mut record: BTreeMap<_, _> = class.fields.iter().map(initial).collect();
        record.insert("uuid".into(), Value::text(format!("uuid-{name}")));
        if class.field("name_label").is_some() {
            record.insert("name_label".into(), Value::text(label));
        }
        record.extend(fields.iter().map(|(field, value)| ((*field).to_owned(), value.clone())));
        self.classes.entry(of).or_default().insert(format!("OpaqueRef:{name}"), record);
    }

    /// Adds `count` machines.
    pub(crate) fn add_machines(&mut self, count: usize) {
        for number in 0..count {
            self.add("VM", &format!("more{number}"), "more", &[]);
        }
    }

    fn answer(&mut self, call: &Call) -> Result<Value, ApiError> {
        if call.method == "session.login_with_password" {
            self.calls.push(format!("login {}", text(&call.params[0])));
            let admitted = text(&call.params[0]) == "root";
            let refused = codes::authentication_failed("x", "y");
            return if admitted { Ok(Value::text("OpaqueRef:session")) } else { Err(refused) };
        }
        assert_eq!(text(&call.params[0]), "", "the connection is the session");
        let params = &call.params[1..];
        let shown: Vec<_> = params
            .iter()
            .map(|param| match param {
                Value::Str(text) => text.clone(),
                other => xenapi::jsonrpc::write_value(other),
            })
            .collect();
        self.calls.push(format!("{} {}", call.method, shown.join(" ")).trim_end().to_owned());
        let (method, is_async) =
            resolve(&call.method).ok_or_else(|| codes::method_unknown(&call.method))?;
        if is_async {
            return Ok(self.begin(call.method.strip_prefix("Async.").unwrap()));
        }
        self.carry_out(&call.method, method, params)
    }

    /// Creates a task that has ended.
    fn begin(&mut self, method: &str) -> Value {
        self.tasks += 1;
        let name = format!("task{}", self.tasks);
        let error = self.failures.get(method).map(ApiError::details).unwrap_or_default();
        let status = if error.is_empty() { "success" } else { "failure" };
        let makes = ["VM.clone", "VM.copy", "VDI.create"].contains(&method);
        let made = xmlrpc::write_value(&Value::text("OpaqueRef:web"));
        self.add(
            "task",
            &name,
            method,
            &[
                ("status", Value::text(status)),
                ("result", Value::text(if makes { made } else { String::new() })),
                ("error_info", Value::Set(error.into_iter().map(Value::Str).collect())),
            ],
        );
        Value::text(format!("OpaqueRef:{name}"))
    }

    fn carry_out(
        &mut self,
        name: &str,
        method: Method,
        params: &[Value],
    ) -> Result<Value, ApiError> {
        match method {
            Method::GetAllRecords(of) => Ok(map(self.records(of).clone())),
            Method::GetAllRecordsWhere(of) => {
                let filter = Filter::parse(text(&params[0]), of)?;
                let all = self.records(of).iter().filter(|(_, record)| {
                    filter.holds(|ix| record.get(of.field_at(ix).unwrap().name))
                });
                Ok(map(all.map(|(name, record)| (name.clone(), record.clone())).collect()))
            }
            Method::GetByUuid(of) => {
                let uuid = text(&params[0]);
                let found = self.records(of).iter().find(|(_, one)| text(&one["uuid"]) == uuid);
                let found = found.map(|(name, _)| Value::text(name));
                found.ok_or_else(|| codes::uuid_invalid(of.name, uuid))
            }
            Method::GetRecord(of) => self.record(of, &params[0]).map(|one| Value::Map(one.clone())),
            Method::Get(of, ix) => {
                let field = of.field_at(ix).unwrap().name;
                self.record(of, &params[0]).map(|record| record[field].clone())
            }
            Method::Explicit(of, message) if of.name == "event" && message.name == "from" => {
                let Value::Set(of) = &params[0] else { panic!("{params:?}") };
                Ok(self.events(text(&of[0])))
            }
            _ if ["task.destroy", "VM.set_name_label", "VM.add_to_other_config"]
                .contains(&name)
                || name.starts_with("VM.remove_from_") =>
            {
                Ok(Value::text(""))
            }
            // A XenServer has no such messages.
            Method::SetIn(..) => Err(codes::method_unknown(name)),
            _ => Err(codes::not_implemented(name)),
        }
    }

    fn events(&self, of: &str) -> Value {
        let (name, only) = of.split_once('/').unwrap_or((of, ""));
        let class = class(name).unwrap();
        let records = self.records(class).iter();
        let records = records.filter(|(reference, _)| only.is_empty() || *reference == only);
        let event = |(reference, record): (&String, &BTreeMap<String, Value>)| {
            Value::Map(BTreeMap::from([
                ("class".to_owned(), Value::text(name.to_lowercase())),
                ("operation".to_owned(), Value::text("add")),
                ("ref".to_owned(), Value::text(reference)),
                ("snapshot".to_owned(), Value::Map(record.clone())),
            ]))
        };
        Value::Map(BTreeMap::from([
            ("token".to_owned(), Value::text("1")),
            ("events".to_owned(), Value::Set(records.map(event).collect())),
        ]))
    }

    fn records(&self, of: &Class) -> &Records {
        static NONE: Records = BTreeMap::new();
        self.classes.get(of.name).unwrap_or(&NONE)
    }

    fn record(&self, of: &Class, reference: &Value) -> Result<&BTreeMap<String, Value>, ApiError> {
        let found = self.records(of).get(text(reference));
        found.ok_or_else(|| codes::handle_invalid(of.name, text(reference)))
    }
}

fn map(records: Records) -> Value {
    Value::Map(records.into_iter().map(|(name, record)| (name, Value::Map(record))).collect())
}
