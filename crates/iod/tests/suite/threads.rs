//! Programs whose user may have no more threads.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::process::{Command, Stdio};

use crate::common::*;
use crate::upgrade::upgrade;
use serde_json::json;
use testkit::process::{PROCESS_DEADLINE, Process, eventually};
use testkit::raw::request::{Request, status};
use testkit::raw::{Guest, Setup};

/// Most threads of a program that serves one disk.
const ENOUGH: u32 = 40;

/// Returns a user without processes. The kernel counts threads by user, and exempts root.
fn nobody(number: u32) -> u32 {
    1_000_000 + 10 * std::process::id() + number
}

#[test]
fn a_disk_program_without_threads_ends_with_an_error() {
    let folder = open_folder();
    let program = copy_for_all(&folder, BLK);
    let socket = folder.path().join("s");
    // The first thread writes the log.
    for (errors, limit) in (2..=ENOUGH).enumerate() {
        let mut command = Command::new("setpriv");
        command.args(as_user(nobody(0))).arg("prlimit").arg(format!("--nproc={limit}"));
        command.arg(&program).arg("--socket-path").arg(&socket).args(["--memory", "1M"]);
        let mut process = Process::start(command.stdout(Stdio::null())).unwrap();
        eventually("it serves or ends", || {
            process.child().try_wait().unwrap().is_some() || socket.exists()
        });
        if socket.exists() {
            eventually("it serves or ends", || {
                process.child().try_wait().unwrap().is_some()
                    || process.stderr().contains("serving")
            });
        }
        if process.child().try_wait().unwrap().is_none() {
            assert!(errors > 3, "the kernel refuses no thread");
            assert!(process.terminate().unwrap().success(), "{}", process.stderr());
            return;
        }
        let code = process.wait(PROCESS_DEADLINE).unwrap().code();
        let text = process.stderr();
        assert!(code == Some(1) && !text.contains("panicked"), "{limit}: {code:?} {text}");
        assert!(text.contains("Resource temporarily unavailable"), "{text}");
    }
    panic!("it needs more than {ENOUGH} threads");
}

#[test]
fn a_worker_without_threads_hands_over() {
    let mut io = Io::start_as(nobody(1));
    let mut caller = io.caller();
    let ids = ["a", "b", "c"];
    ids.iter()
        .for_each(|id| drop(caller.disk("disk.attach", io.spec(id, json!({"memory": 4096})))));
    let mut guests = ids.map(|id| Guest::start(&io.socket(id), &Setup::default()).unwrap());
    let pid = caller.stats().pid;
    // Without CAP_SYS_RESOURCE, only the same user may set the limit.
    let mut limits = Command::new("setpriv");
    limits.args(as_user(nobody(1))).args(["prlimit", "--nproc=1:1", "--pid", &pid.to_string()]);
    assert!(limits.status().unwrap().success());
    let reply = upgrade(&mut caller, None).unwrap();
    assert_eq!(reply.disks, 3);
    assert_ne!(reply.pid, pid);
    for guest in &mut guests {
        assert_eq!(guest.run(0, &Request::read(0, 512)).unwrap().status, status::OK);
    }
    assert!(io.process.terminate().unwrap().success(), "{}", io.process.stderr());
}
