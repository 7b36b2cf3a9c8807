//! Start of a daemon while a killed one still has the records open.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use testkit::process::{Process, eventually, find_binary, find_tool};
use testkit::ringwayd::Ringwayd;

/// Locks a file until standard input closes, in a process whose first thread has ended. The kernel
/// shows it as it shows a process that dies but has not closed its files yet.
const DYING: &str = "\
import ctypes, fcntl, os, sys, threading
file = open(sys.argv[1])
fcntl.flock(file, fcntl.LOCK_EX)
def last():
    os.read(0, 1)
    os._exit(0)
threading.Thread(target=last).start()
libc = ctypes.CDLL(None)
libc.syscall(60, 0)
";

fn dying(daemon: &Ringwayd) -> Child {
    let mut python = Command::new(find_tool("python3", "python3").unwrap());
    python.args(["-c", DYING]).arg(daemon.dir().join("state/state.redb"));
    let child = python.stdin(Stdio::piped()).spawn().unwrap();
    let stat = format!("/proc/{}/stat", child.id());
    eventually("the first thread has ended", || {
        std::fs::read_to_string(&stat).unwrap().contains(") Z ")
    });
    child
}

#[test]
fn a_start_waits_for_the_end_of_a_killed_daemon() {
    let mut daemon = Ringwayd::simulator(&[]).unwrap();
    daemon.kill().unwrap();
    let mut former = dying(&daemon);
    let mut command = Command::new(find_binary("ringwayd").unwrap());
    for (option, path) in [("--state", "state"), ("--run", "run")] {
        command.arg(option).arg(daemon.dir().join(path));
    }
    command.arg("--socket").arg(daemon.socket());
    command.args(["--hypervisor", "simulator", "--listen", "127.0.0.1:0,plain"]);
    command.args(["--slices", "off", "--calibrate", "off"]).stdout(Stdio::piped());
    let mut next = Process::start(&mut command).unwrap();
    let waits = format!("waiting for the end of process {}", former.id());
    eventually("the next daemon waits", || next.stderr().contains(&waits));
    drop(former.stdin.take());
    let mut line = String::new();
    BufReader::new(next.child().stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(!line.is_empty(), "{}", next.stderr());
    daemon.client().unwrap();
    assert!(former.wait().unwrap().success());
    assert!(next.terminate().unwrap().success(), "{}", next.stderr());
}
