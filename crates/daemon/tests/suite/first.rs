//! The daemon as a process: start, service, stop.
#![allow(clippy::unwrap_used)] // A failed helper is a failed test.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::fs::{CWD, Mode, OFlags, mkfifoat, openat};
use rustix::process::{Pid, Signal, kill_process};
use testkit::process::{eventually, file_tail};
use testkit::ringwayd::Ringwayd;
use testkit::ringwayd::fleet;
use xenapi::Value;
use xenapi::client::{Address, Client, ClientError};
use xenapi::envelope::Encoding;

/// A directory for all files of a daemon.
struct Place {
    dir: tempfile::TempDir,
}

/// A process that is killed when it is dropped.
struct Process {
    child: Child,
    stderr: fs::File,
}

impl Process {
    fn start(command: &mut Command) -> Self {
        let stderr = tempfile::tempfile().unwrap();
        command.stdin(Stdio::null()).stderr(stderr.try_clone().unwrap());
        Self { child: command.spawn().unwrap(), stderr }
    }

    fn end(&mut self, signal: Signal) -> ExitStatus {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
        self.child.wait().unwrap()
    }

    /// Returns all of its output.
    fn output(&self) -> String {
        file_tail(&self.stderr, u64::MAX).unwrap()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The process may have ended.
        let _ended = self.child.kill();
        let _reaped = self.child.wait();
    }
}

/// A running daemon.
struct Daemon {
    process: Process,
    /// TCP port of the daemon.
    port: u16,
    socket: PathBuf,
}

impl Place {
    fn new() -> Self {
        // Socket paths must be short.
        Self { dir: tempfile::Builder::new().prefix("rw-").tempdir_in("/tmp").unwrap() }
    }

    fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ringwayd"));
        command.args(["--hypervisor", "simulator", "--listen", "127.0.0.1:0,plain", "--state"]);
        command.arg(self.dir.path().join("state")).env_remove("NOTIFY_SOCKET");
        command.arg("--config").arg(self.config()).args(["--slices", "off"]);
        command
    }

    /// Returns an own configuration file, so that the host's is not read.
    fn config(&self) -> PathBuf {
        let path = self.dir.path().join("ringwayd.toml");
        fs::write(&path, "").unwrap();
        path
    }

    fn start(&self) -> Daemon {
        self.ready(Process::start(self.command().stdout(Stdio::piped())))
    }

    fn start_logging_to(&self, log: Stdio) -> Daemon {
        // The test itself may run with this signal ignored.
        let mut command = Command::new("env");
        let daemon = self.command();
        command.arg("--default-signal=HUP").arg(daemon.get_program()).args(daemon.get_args());
        command.env_remove("NOTIFY_SOCKET");
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log).spawn();
        self.ready(Process { child: child.unwrap(), stderr: tempfile::tempfile().unwrap() })
    }

    fn ready(&self, mut process: Process) -> Daemon {
        let out = process.child.stdout.take().unwrap();
        let mut line = String::new();
        BufReader::new(out).read_line(&mut line).unwrap();
        let Some(addresses) = line.strip_prefix("listening on ") else {
            panic!("`{line}` {}", process.output());
        };
        let words: Vec<&str> = addresses.split_whitespace().collect();
        let [tcp, socket] = words.as_slice() else { panic!("{line}") };
        let port = tcp.strip_prefix("127.0.0.1:").unwrap().strip_suffix(",plain").unwrap();
        Daemon { process, port: port.parse().unwrap(), socket: PathBuf::from(socket) }
    }

    /// Starts a daemon that must fail. Returns its exit status and its output.
    fn refused(&self) -> (ExitStatus, String) {
        let mut process = Process::start(self.command().stdout(Stdio::null()));
        (process.child.wait().unwrap(), process.output())
    }
}

impl Daemon {
    fn root(&self) -> Client {
        let mut client = Client::unix(&self.socket).unwrap();
        client.login("root", "", "test").unwrap();
        client
    }

    fn tcp(&self) -> Client {
        let address = Address::Plain("127.0.0.1".to_owned(), self.port);
        Client::connect(address, Encoding::Xml).unwrap()
    }
}

#[test]
fn it_serves_until_it_is_asked_to_end() {
    let place = Place::new();
    let mut daemon = place.start();
    let mut root = daemon.root();
    let machines = root.records("VM").unwrap();
    let control = machines.iter().filter(|(_, vm)| vm.flag("is_control_domain")).count();
    assert_eq!(control, 1, "{machines:?}");

    // The same over the network, with the generated password.
    let file = place.dir.path().join("state/password");
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(daemon.process.output().contains(&file.display().to_string()), "its path is told");
    let text = fs::read_to_string(&file).unwrap();
    let password = text.lines().nth(1).unwrap();
    let mut client = daemon.tcp();
    client.login("root", password, "test").unwrap();
    assert_eq!(client.records("VM").unwrap().len(), machines.len());
    let refused = daemon.tcp().login("root", "wrong", "test").unwrap_err();
    let ClientError::Api(error) = refused else { panic!("{refused}") };
    assert_eq!(error.code, "SESSION_AUTHENTICATION_FAILED");

    let socket = daemon.socket.clone();
    assert_eq!(fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(daemon.process.end(Signal::TERM).success(), "{}", daemon.process.output());
    assert!(!socket.exists());
}

/// A log that cannot be written, and signals without a meaning, end nothing. A closed terminal ends
/// the daemon in order.
#[test]
fn it_outlives_its_log_and_ends_with_its_terminal() {
    let place = Place::new();
    let mut daemon = place
        .start_logging_to(Stdio::from(fs::File::options().write(true).open("/dev/full").unwrap()));
    let pid = Pid::from_child(&daemon.process.child);
    for signal in [Signal::USR1, Signal::USR2, Signal::ALARM, Signal::XFSZ, Signal::PIPE] {
        kill_process(pid, signal).unwrap();
    }
    // A failed login is logged.
    daemon.tcp().login("root", "wrong", "test").unwrap_err();
    assert_eq!(daemon.root().records("pool").unwrap().len(), 1);
    assert!(daemon.process.end(Signal::HUP).success());
    assert!(!daemon.socket.exists());
}

#[test]
fn records_outlive_it_and_sessions_do_not() {
    let place = Place::new();
    let mut daemon = place.start();
    let mut root = daemon.root();
    let machines = root.records("VM").unwrap();
    let (reference, _) = machines.first().unwrap().clone();
    let label = [Value::text(reference.as_str()), Value::text("another name")];
    root.call("VM.set_name_label", &label).unwrap();
    let session = root.session().unwrap().to_owned();
    for ending in [Signal::TERM, Signal::KILL] {
        daemon.process.end(ending);
        daemon = place.start();
        let mut root = daemon.root();
        let record = root.record("VM", &reference).unwrap();
        assert_eq!(record.text("name_label"), "another name", "after {ending:?}");
        assert_eq!(root.records("VM").unwrap().len(), machines.len(), "after {ending:?}");
        assert_ne!(root.session(), Some(session.as_str()));
    }
}

#[test]
fn records_are_carried_to_another_place_as_text() {
    let place = Place::new();
    let mut daemon = place.start();
    let machines = daemon.root().records("VM").unwrap();
    let run = |words: &[&str], path: &std::path::Path, of: &Place| {
        let mut command = of.command();
        let output = command.args(words).arg(path).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let file = place.dir.path().join("export");
    // A daemon that serves makes the export itself.
    assert_eq!(run(&["--export"], &file, &place).0, Some(0));
    let live = Place::new();
    assert_eq!(run(&["--import"], &file, &live).0, Some(0));
    let names = |all: &[(String, xenapi::client::Record)]| -> Vec<(String, String)> {
        all.iter().map(|(it, vm)| (it.clone(), vm.text("name_label").to_owned())).collect()
    };
    assert_eq!(names(&live.start().root().records("VM").unwrap()), names(&machines));
    fs::remove_file(&file).unwrap();
    daemon.process.end(Signal::TERM);
    assert_eq!(run(&["--export"], &file, &place).0, Some(0));
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let (code, output) = run(&["--export"], &file, &place);
    assert!(code == Some(1) && output.contains("name a new file"), "{output}");
    let (code, output) = run(&["--import"], &file, &place);
    assert!(code == Some(1) && output.contains("empty store"), "{output}");

    let other = Place::new();
    let (code, output) = run(&["--export"], &place.dir.path().join("none"), &other);
    assert!(code == Some(1) && output.contains("no records"), "{output}");
    let text = fs::read_to_string(&file).unwrap();
    let half = other.dir.path().join("half");
    fs::write(&half, &text[..text.len() / 2]).unwrap();
    let (code, output) = run(&["--import"], &half, &other);
    assert!(code == Some(1) && output.contains("nothing was imported"), "{output}");
    assert_eq!(run(&["--import"], &file, &other).0, Some(0));
    let again = other.start().root().records("VM").unwrap();
    assert_eq!(names(&again), names(&machines));
}

/// Without its records a daemon would begin a new pool, and its machines and disks were lost to it.
#[test]
fn records_that_are_missing_are_no_first_start() {
    let place = Place::new();
    let mut daemon = place.start();
    let copies = place.dir.path().join("state/copies");
    let copy = || {
        let all = fs::read_dir(&copies).ok()?;
        all.map(|one| one.unwrap().path()).find(|path| !path.ends_with("draft"))
    };
    eventually("the copy of the day", || copy().is_some());
    let copy = copy().unwrap();
    daemon.process.end(Signal::TERM);
    let records = place.dir.path().join("state/state.redb");
    fs::remove_file(&records).unwrap();
    let (status, output) = place.refused();
    assert_eq!(status.code(), Some(1));
    assert!(output.contains("are missing") && output.contains("--import"), "{output}");
    assert!(output.contains(copy.to_str().unwrap()) && !records.exists(), "{output}");
    let imported = place.command().arg("--import").arg(&copy).output().unwrap();
    assert!(imported.status.success(), "{imported:?}");
    assert!(!place.start().root().records("VM").unwrap().is_empty());
}

#[test]
fn a_second_one_is_refused_and_the_first_goes_on() {
    let place = Place::new();
    let daemon = place.start();
    let (status, output) = place.refused();
    assert_eq!(status.code(), Some(1));
    assert!(output.contains("state") && output.contains("another state directory"), "{output}");
    assert!(!daemon.root().records("VM").unwrap().is_empty());
}

/// The addresses come first: a start that cannot have them has made nothing, and a restart refuses
/// no client while it reads its records.
#[test]
fn a_start_without_its_address_makes_no_records() {
    let (place, other) = (Place::new(), Place::new());
    let daemon = place.start();
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringwayd"));
    command.args(["--hypervisor", "simulator", "--slices", "off", "--config"]);
    command.arg(other.config()).arg("--state").arg(other.dir.path().join("state"));
    command.arg("--listen").arg(format!("127.0.0.1:{},plain", daemon.port));
    let mut process = Process::start(command.env_remove("NOTIFY_SOCKET"));
    assert_eq!(process.child.wait().unwrap().code(), Some(1));
    assert!(process.output().contains("--listen"), "{}", process.output());
    let export = other.dir.path().join("export");
    assert!(other.command().arg("--export").arg(&export).status().unwrap().success());
    assert!(!fs::read_to_string(&export).unwrap().contains("Local storage"));
}

/// The daemon reads its users after it has opened its listeners, and waits for those of a FIFO.
#[test]
fn a_restart_listens_before_it_is_ready() {
    let place = Place::new();
    let mut former = place.start();
    former.process.end(Signal::TERM);
    let users = place.dir.path().join("users");
    mkfifoat(CWD, &users, Mode::RUSR | Mode::WUSR).unwrap();
    let mut command = place.command();
    command.arg("--password-file").arg(&users).stdout(Stdio::piped());
    let process = Process::start(&mut command);
    let open = || openat(CWD, &users, OFlags::WRONLY | OFlags::NONBLOCK, Mode::empty());
    let mut writer = None;
    eventually("the daemon reads its users", || {
        writer = open().ok();
        writer.is_some()
    });
    let mut client = UnixStream::connect(&former.socket).unwrap();
    client.write_all(b"GET /metrics HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
    fs::File::from(writer.unwrap()).write_all(b"root\nr\n").unwrap();
    let _daemon = place.ready(process);
    let mut status = [0; 12];
    client.read_exact(&mut status).unwrap();
    assert_eq!(&status, b"HTTP/1.1 200");
}

/// Each connection needs descriptors. TCP clients leave some to root at the Unix socket.
#[test]
fn few_descriptors_leave_root_its_socket() {
    let place = Place::new();
    let daemon = place.command();
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -n 64; exec \"$@\"", "sh"]).arg(daemon.get_program());
    command.args(daemon.get_args()).env_remove("NOTIFY_SOCKET").stdout(Stdio::piped());
    let daemon = place.ready(Process::start(&mut command));
    let connect = |_| std::net::TcpStream::connect(("127.0.0.1", daemon.port)).unwrap();
    let strangers: Vec<_> = (0..80).map(connect).collect();
    for _ in 0..3 {
        assert!(!daemon.root().records("VM").unwrap().is_empty());
    }
    drop(strangers);
}

#[test]
fn passwords_that_others_can_read_are_refused_at_the_start() {
    let place = Place::new();
    let file = place.dir.path().join("users");
    fs::write(&file, "root\nr\n").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    let mut command = place.command();
    command.arg("--password-file").arg(&file).stdout(Stdio::null());
    let mut process = Process::start(&mut command);
    assert_eq!(process.child.wait().unwrap().code(), Some(1));
    let output = process.output();
    assert!(output.contains("chmod 600"), "{output}");
}

#[test]
fn a_machine_that_is_larger_than_the_host_is_refused_before_anything_is_begun() {
    let daemon = Ringwayd::simulator(&[]).unwrap();
    let mut root = daemon.client().unwrap();
    let machine = fleet::machine(&mut root, "large", (1, None)).unwrap();
    let (least, most) = (Value::Int(64 << 20), Value::Int(16 << 40));
    let of = Value::text(machine.as_str());
    let limits = [of.clone(), least, most.clone(), most.clone(), most];
    root.call("VM.set_memory_limits", &limits).unwrap();
    let start = [of, Value::Bool(false), Value::Bool(false)];
    let refused = root.run("VM.start", &start, Duration::from_secs(60)).unwrap_err();
    let ClientError::Api(error) = refused else { panic!("{refused}") };
    assert_eq!(error.code, "HOST_NOT_ENOUGH_FREE_MEMORY");
    let [needed, available] = [0, 1].map(|n| error.params[n].parse::<u64>().unwrap());
    assert!(needed > available && available > 0, "{error:?}");
    let record = root.record("VM", &machine).unwrap();
    assert_eq!((record.text("power_state"), record.int("domid")), ("Halted", -1));
}
