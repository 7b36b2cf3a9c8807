//! Worker process, from its start to its exit.

use std::collections::BTreeMap;
use std::io;
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::io::AsyncWriteExt as _;
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{mpsc, oneshot};

use super::AbandonedWorker;
use super::proto::{Answer, Call, MAX_LINE_BYTES, SrResponse, WireError};
use crate::helper_command::HelperCommand;
use crate::json_lines::JsonLines;
use crate::process_group::ChildGroup;
use crate::sr::SrError;
use crate::stderr_tail::{StderrTail, format_tail};

/// Most parallel calls of a process, each on its own thread: more than an SR's parallel steps, with
/// some hung ones.
const MAX_CALLS: usize = 32;
/// Longest wait for the exit of a process that has closed its connection. After that it is killed.
const END_GRACE: Duration = Duration::from_millis(500);

/// Process that executes calls.
#[derive(Debug)]
pub(super) struct Process {
    calls: Mutex<Calls>,
    lines: mpsc::Sender<Vec<u8>>,
    leave: Mutex<Option<oneshot::Sender<AbandonedWorker>>>,
}

type Outcome = Result<SrResponse, WireError>;

#[derive(Debug, Default)]
struct Calls {
    last: u64,
    /// Running calls, even those whose caller has gone. Each occupies a thread of the process.
    open: BTreeMap<u64, oneshot::Sender<Outcome>>,
    /// Reason why no call is answered any more.
    ended: Option<String>,
}

/// Parts of a process that its task owns.
struct Attended {
    group: ChildGroup,
    tail: StderrTail,
    lines: JsonLines<OwnedReadHalf>,
    left: oneshot::Receiver<AbandonedWorker>,
}

impl Process {
    /// Starts a process.
    pub(super) fn start(helper_command: &HelperCommand) -> io::Result<Arc<Self>> {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        let (reader, writer) = UnixStream::from_std(ours)?.into_split();
        let mut command = helper_command.command();
        command
            .current_dir("/")
            .stdin(Stdio::from(std::os::fd::OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let mut group = ChildGroup::spawn(&mut command)?;
        let stderr = group.child().stderr.take();
        let stderr = stderr.ok_or_else(|| io::Error::other("no pipe for its messages"))?;
        let (lines, to_write) = mpsc::channel(MAX_CALLS);
        let (leave, left) = oneshot::channel();
        let process =
            Arc::new(Self { calls: Mutex::default(), lines, leave: Mutex::new(Some(leave)) });
        let lines = JsonLines::new(reader, MAX_LINE_BYTES);
        let attended = Attended { group, tail: StderrTail::collect(stderr, None), lines, left };
        tokio::spawn(write(writer, to_write));
        tokio::spawn(attended.attend(Arc::downgrade(&process)));
        Ok(process)
    }

    /// Executes a request and waits for its result.
    pub(super) async fn call(&self, mut call: Call) -> Result<SrResponse, SrError> {
        let hear = {
            let mut calls = self.calls();
            if let Some(why) = &calls.ended {
                return Err(SrError::Worker(why.clone()));
            }
            if calls.open.len() >= MAX_CALLS {
                let why = format!("{MAX_CALLS} calls to this storage are under way");
                return Err(SrError::Worker(why));
            }
            calls.last += 1;
            call.id = calls.last;
            let (say, hear) = oneshot::channel();
            let line = line(&call)?;
            // The channel has room for the most parallel calls.
            if self.lines.try_send(line).is_err() {
                return Err(SrError::Worker("it accepts no more calls".into()));
            }
            calls.open.insert(call.id, say);
            hear
        };
        match hear.await {
            Ok(outcome) => Ok(outcome?),
            Err(_) => {
                let why = self.calls().ended.clone();
                Err(SrError::Worker(why.unwrap_or_else(|| "it has ended".into())))
            }
        }
    }

    /// Returns whether the process answers no more calls.
    pub(super) fn has_ended(&self) -> bool {
        self.calls().ended.is_some()
    }

    /// Returns whether a call runs in it, even if its caller has gone.
    pub(super) fn is_asked(&self) -> bool {
        !self.calls().open.is_empty()
    }

    /// Kills the process and abandons it to the kernel. `place` is returned when it has exited.
    pub(super) fn abandon(&self, place: AbandonedWorker) {
        let leave = self.leave.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(leave) = leave {
            // A process that has exited needs no permit.
            let _ended = leave.send(place);
        }
    }

    fn calls(&self) -> MutexGuard<'_, Calls> {
        // Each change of the map is complete before it can panic.
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn answered(&self, answer: Answer) {
        let caller = self.calls().open.remove(&answer.id);
        if let Some(caller) = caller {
            // The caller may have stopped waiting.
            let _gone = caller.send(answer.outcome);
        }
    }

    fn end(&self, why: String) {
        let mut calls = self.calls();
        calls.ended = Some(why);
        calls.open.clear();
    }
}

impl Attended {
    /// Processes answers until the connection closes. Then waits for the exit of the process,
    /// however long the storage blocks it.
    async fn attend(mut self, process: Weak<Process>) {
        let mut place = None;
        let why = loop {
            tokio::select! {
                line = self.lines.next_json() => match line.map(serde_json::from_value::<Answer>) {
                    Ok(Ok(answer)) => {
                        if let Some(process) = process.upgrade() {
                            process.answered(answer);
                        }
                    }
                    Ok(Err(error)) => break format!("its answer is invalid: {error}"),
                    Err(error) => break error.to_string(),
                },
                Ok(given) = &mut self.left, if place.is_none() => {
                    self.group.kill();
                    place = Some(given);
                }
            }
        };
        let status = tokio::time::timeout(END_GRACE, self.group.wait()).await;
        let why = match status {
            Ok(Ok(status)) => {
                format!("it ended ({status}){}", format_tail(&self.tail.finish().await))
            }
            _ => why,
        };
        if let Some(process) = process.upgrade() {
            process.end(why);
        }
        self.group.kill();
        // The storage may block the exit for an unlimited time.
        let _ended = self.group.wait().await;
        drop(place);
    }
}

/// Writes lines until all senders are gone. If a process does not read, the deadlines of its calls
/// end them.
async fn write(mut writer: OwnedWriteHalf, mut lines: mpsc::Receiver<Vec<u8>>) {
    while let Some(line) = lines.recv().await {
        if writer.write_all(&line).await.is_err() {
            return;
        }
    }
}

fn line(call: &Call) -> Result<Vec<u8>, SrError> {
    let line = serde_json::to_vec(call);
    let mut line =
        line.map_err(|error| SrError::Worker(format!("cannot encode a call: {error}")))?;
    line.push(b'\n');
    Ok(line)
}
