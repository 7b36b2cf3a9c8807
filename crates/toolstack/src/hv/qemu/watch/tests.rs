//! Tests of the watcher against a scripted QEMU. An arbitrary process stands for it.

use std::process::Stdio;

use model::id::{Domid, Uuid, VbdId, VifId, VmId};
use serde_json::json;
use tempfile::TempDir;
use tokio::io::AsyncWriteExt as _;
use tokio::net::UnixListener;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::process::{Child, Command};
use tokio::task::JoinHandle;

use model::plan::GuestRequest;

use super::*;
use crate::hv::qemu::agent;
use crate::hv::qemu::domain::SILENT_AFTER;
use crate::hv::qemu::guest_request;
use crate::hv::qemu::rundir::{DomainRecord, RunDir};
use crate::json_lines::JsonLines;

/// Far more time than any test here takes on a busy host.
const PATIENCE: Duration = Duration::from_secs(60);

struct Fake {
    domain: Arc<Domain>,
    events: mpsc::Receiver<DomainEvent>,
    listener: UnixListener,
    watching: JoinHandle<()>,
    process: Child,
    _run: TempDir,
}

impl Fake {
    /// Creates a domain that counts as new.
    fn new() -> Self {
        Self::watched(true)
    }

    fn watched(new: bool) -> Self {
        let run = tempfile::Builder::new().prefix("rw-").tempdir_in("/tmp").unwrap();
        let vm = VmId(Uuid::default());
        let dir = RunDir::of(run.path(), vm);
        dir.make().unwrap();
        let listener = UnixListener::bind(dir.qmp()).unwrap();
        let mut sleep = Command::new("sleep");
        let process = sleep.arg("1000").stdin(Stdio::null()).kill_on_drop(true).spawn().unwrap();
        let domain =
            Domain::from_pid(vm, DomainRecord::new(Domid(7), 1), dir, process.id().unwrap());
        let (domain, (out, events)) = (Arc::new(domain.unwrap()), mpsc::channel(8));
        let watching = tokio::spawn(watch(Arc::clone(&domain), new, out));
        Self { domain, events, listener, watching, process, _run: run }
    }

    /// Accepts the next connection and greets.
    async fn greet(&self) -> Talk {
        let (stream, _) = soon(self.listener.accept()).await.unwrap();
        let (reader, writer) = stream.into_split();
        let mut talk = Talk { lines: JsonLines::new(reader, 16 << 20), writer };
        talk.say("{\"QMP\":{}}").await;
        talk
    }

    async fn end(&mut self) -> DomainExit {
        let event = soon(self.events.recv()).await.unwrap();
        let DomainEvent::Ended { exit, .. } = event else { panic!("{event:?}") };
        exit
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.watching.abort();
    }
}

struct Talk {
    lines: JsonLines<OwnedReadHalf>,
    writer: OwnedWriteHalf,
}

impl Talk {
    async fn say(&mut self, line: &str) {
        self.writer.write_all(format!("{line}\n").as_bytes()).await.unwrap();
    }

    /// Answers commands up to and including `until`. The guest is in the state `status`.
    async fn answer(&mut self, status: &str, until: &str) {
        loop {
            let command = soon(self.lines.next_json()).await.unwrap();
            let value = match command["execute"].as_str().unwrap() {
                "query-status" => json!({ "status": status }),
                "query-chardev" => json!([]),
                _ => json!({}),
            };
            self.say(&json!({ "return": value, "id": command["id"] }).to_string()).await;
            if command["execute"] == until {
                return;
            }
        }
    }

    /// Answers the next command with this value, and returns the command.
    async fn give(&mut self, value: Value) -> Value {
        let command = soon(self.lines.next_json()).await.unwrap();
        self.say(&json!({ "return": value, "id": command["id"] }).to_string()).await;
        command
    }

    /// Reads until the peer has closed.
    async fn until_closed(mut self) {
        while soon(self.lines.next_text()).await.is_ok() {}
    }
}

async fn soon<T>(what: impl Future<Output = T>) -> T {
    timeout(PATIENCE, what).await.expect("nothing came")
}

/// Last command of the catch-up after a connection.
const CAUGHT_UP: &str = "query-chardev";

#[tokio::test]
async fn a_guest_whose_cpu_failed_has_ended() {
    let mut fake = Fake::new();
    let mut talk = fake.greet().await;
    talk.answer("running", CAUGHT_UP).await;
    talk.say("{\"event\":\"STOP\"}").await;
    talk.answer("internal-error", "query-status").await;
    assert_eq!(fake.end().await, DomainExit::Panicked);
}

#[tokio::test]
async fn a_guest_that_reset_itself_has_ended() {
    let mut fake = Fake::new();
    let mut talk = fake.greet().await;
    talk.answer("running", CAUGHT_UP).await;
    let reset = json!({ "event": "SHUTDOWN", "data": { "guest": true, "reason": "guest-reset" } });
    talk.say(&reset.to_string()).await;
    assert_eq!(fake.end().await, DomainExit::Rebooted);
}

#[tokio::test]
async fn one_that_broke_off_is_heard_again_though_nobody_calls() {
    let mut fake = Fake::new();
    let (silent, _) = soon(fake.listener.accept()).await.unwrap();
    drop(silent);
    fake.greet().await.answer("running", "query-status").await;
    let mut talk = fake.greet().await;
    talk.answer("shutdown", "query-status").await;
    // No event reported the devices released meanwhile.
    let event = soon(fake.events.recv()).await.unwrap();
    assert!(matches!(event, DomainEvent::Unplugged { .. }), "{event:?}");
    assert_eq!(fake.end().await, DomainExit::PoweredOff);
}

/// The discovery may have received no answer when it listed the guest's devices.
#[tokio::test]
async fn what_has_left_a_guest_that_was_found_is_told_when_it_answers() {
    let mut fake = Fake::watched(false);
    fake.greet().await.answer("running", "query-status").await;
    let event = soon(fake.events.recv()).await.unwrap();
    assert!(matches!(event, DomainEvent::Unplugged { .. }), "{event:?}");
}

/// The device was released while no daemon ran. Its backends go before any plug can run.
#[tokio::test]
async fn what_a_device_left_behind_goes_before_anybody_is_served() {
    let fake = Fake::watched(false);
    let mut talk = fake.greet().await;
    talk.answer("running", "qmp_capabilities").await;
    let [stays, left, drive] = [1, 2, 3].map(|number| Uuid::from_random([number; 16]));
    let [stays, left] = [Device::Disk(VbdId(stays)), Device::Nic(VifId(left))];
    let drive = Device::Drive(VbdId(drive));
    let labels = ["agent".into(), stays.backend_id(), left.backend_id()];
    talk.give(json!(labels.map(|label| json!({ "label": label })))).await;
    talk.give(json!([stays, drive].map(|device| json!({ "name": device.id() })))).await;
    for expected in ["netdev_del", "chardev-remove"] {
        let command = talk.give(json!({})).await;
        assert_eq!(command["execute"], expected);
        assert_eq!(command["arguments"]["id"], left.backend_id());
    }
    let asked = fake.domain.execute("stop", Value::Null);
    let (asked, ()) = tokio::join!(asked, talk.answer("running", "stop"));
    asked.unwrap();
}

#[tokio::test]
async fn a_command_that_was_cut_off_costs_its_connection_alone() {
    let fake = Fake::new();
    let mut talk = fake.greet().await;
    talk.answer("running", CAUGHT_UP).await;
    // More than a socket buffers while its peer does not read.
    let long = json!({ "text": "x".repeat(8 << 20) });
    tokio::select! {
        biased;
        answer = fake.domain.execute("long", long) => panic!("{answer:?}"),
        () = tokio::task::yield_now() => {}
    }
    talk.until_closed().await;
    let mut talk = fake.greet().await;
    talk.answer("running", CAUGHT_UP).await;
    let (stopped, ()) =
        tokio::join!(fake.domain.execute("stop", Value::Null), talk.answer("paused", "stop"));
    stopped.unwrap();
}

/// QEMU exits, because a daemon that then died had sent `quit`.
#[tokio::test]
async fn one_that_goes_while_it_is_asked_is_gone() {
    for answered in [None, Some("query-status"), Some(CAUGHT_UP)] {
        let mut fake = Fake::new();
        let mut talk = fake.greet().await;
        talk.answer("running", CAUGHT_UP).await;
        let goes = async {
            if let Some(last) = answered {
                talk.answer("running", last).await;
            }
            soon(talk.lines.next_json()).await.unwrap();
            drop(talk);
            fake.process.kill().await.unwrap();
        };
        let (asked, ()) =
            tokio::join!(guest_request::once(&fake.domain, GuestRequest::Shutdown), goes);
        assert!(matches!(asked, Err(HvError::Absent)), "{answered:?}: {asked:?}");
    }
}

/// The answer takes longer than the limit for silent QEMUs. The request still succeeds, and the
/// guest is not killed.
#[tokio::test]
async fn a_guest_whose_emulator_is_slow_is_asked() {
    let fake = Fake::new();
    let mut talk = fake.greet().await;
    talk.answer("running", CAUGHT_UP).await;
    let answers = async {
        tokio::time::sleep(SILENT_AFTER + Duration::from_secs(1)).await;
        talk.answer("running", "system_powerdown").await;
    };
    let (asked, ()) =
        tokio::join!(guest_request::once(&fake.domain, GuestRequest::Shutdown), answers);
    asked.unwrap();
    let (asked, ()) = tokio::join!(
        guest_request::once(&fake.domain, GuestRequest::Shutdown),
        talk.answer("prelaunch", "query-status")
    );
    assert!(asked.unwrap_err().to_string().contains("has not started to run"));
}

#[test]
fn reasons_are_ends() {
    assert_eq!(shutdown(Some("guest-shutdown")), DomainExit::PoweredOff);
    assert_eq!(shutdown(Some("guest-panic")), DomainExit::Panicked);
    assert_eq!(shutdown(Some("guest-reset")), DomainExit::Rebooted);
    assert_eq!(shutdown(None), DomainExit::PoweredOff);
}

/// While no host is connected, the agent of an idle guest looks for one all the time.
#[tokio::test]
async fn the_agent_keeps_its_connection() {
    let fake = Fake::new();
    let agent = UnixListener::bind(fake.domain.dir.agent()).unwrap();
    let talks = || {
        let domain = Arc::clone(&fake.domain);
        tokio::spawn(async move {
            agent::talking(&domain, async |session| session.ask("guest-info").await).await
        })
    };
    let mut talk = None;
    for end in [false, false, true] {
        let asked = talks();
        let mut open = match talk.take() {
            Some(open) => open,
            None => {
                let (reader, writer) = soon(agent.accept()).await.unwrap().0.into_split();
                Talk { lines: JsonLines::new(reader, 4096), writer }
            }
        };
        let sync = soon(open.lines.next_json()).await.unwrap();
        // An answer that nobody awaits any more precedes it.
        open.say("{\"return\":{}}").await;
        open.say(&json!({ "return": sync["arguments"]["id"] }).to_string()).await;
        assert_eq!(soon(open.lines.next_json()).await.unwrap()["execute"], "guest-info");
        open.say(if end { "{\"error\":{\"desc\":\"no\"}}" } else { "{\"return\":{}}" }).await;
        assert_eq!(soon(asked).await.unwrap().is_err(), end);
        talk = Some(open);
    }
    // A session that failed leaves nothing, and a connection that broke is made anew.
    talk.unwrap().until_closed().await;
    let asked = talks();
    drop(soon(agent.accept()).await.unwrap());
    soon(asked).await.unwrap().unwrap_err();
}
