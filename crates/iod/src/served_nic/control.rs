//! Control socket of a switch: `stats` and `metrics`, one line for each call, as in `ringway-io`.

use std::io::{self, BufReader};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Context;
use model::rpc::{Call, MAX_LINE_BYTES, MetricsReply, Response, RpcError, code};
use serde_json::Value;
use vhost_user::{Access, Listener, StopSignal};

use super::switch_report::SwitchReporter;
use crate::control::lines::{self, Line};
use crate::control::{parse, refusal, send};

/// Most callers at a time. Each has a thread and a buffer.
const CALLERS_MAX: usize = 16;
/// Longest wait for a caller to read its reply.
const ANSWER_DEADLINE: Duration = Duration::from_secs(10);

/// Server that answers callers until it is dropped.
#[derive(Debug)]
pub struct NetControl {
    stop: StopSignal,
    thread: Option<JoinHandle<()>>,
}

/// Connected caller.
struct Caller {
    stream: Arc<UnixStream>,
    thread: JoinHandle<()>,
}

impl NetControl {
    /// Listens at `path` and serves the reports of `switch_reporter`.
    ///
    /// # Errors
    /// The socket is unavailable, or the process cannot create more threads or descriptors.
    pub fn start(
        path: &Path,
        access: &Access,
        switch_reporter: Arc<SwitchReporter>,
    ) -> anyhow::Result<Self> {
        let stop = StopSignal::new().context("cannot make a signal")?;
        let listener = Listener::bind(path, access).context("--control")?;
        let end = stop.clone();
        let thread = std::thread::Builder::new().name("control".into());
        let thread = thread.spawn(move || take_callers(&listener, &end, &switch_reporter));
        Ok(Self { stop, thread: Some(thread.context("cannot start a control thread")?) })
    }
}

impl Drop for NetControl {
    fn drop(&mut self) {
        self.stop.stop();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was reported already.
            let _ = thread.join();
        }
    }
}

fn take_callers(listener: &Listener, stop: &StopSignal, switch_reporter: &Arc<SwitchReporter>) {
    let mut callers: Vec<Caller> = Vec::new();
    loop {
        let stream = match listener.accept(stop) {
            Ok(Some(stream)) => stream,
            Ok(None) => break,
            Err(error) => {
                tracing::error!(
                    "control socket failed; no further calls are accepted: {}",
                    crate::error::error_chain(&error)
                );
                break;
            }
        };
        callers.retain(|caller| !caller.thread.is_finished());
        let admitted = if callers.len() < CALLERS_MAX {
            admit(stream, switch_reporter).map(|caller| callers.push(caller))
        } else {
            let message = format!("{CALLERS_MAX} callers are connected; close one and try again");
            send(&stream, &refusal(code::FAILED, message))
        };
        if let Err(error) = admitted {
            tracing::warn!("control connection rejected: {error}");
        }
    }
    for Caller { stream, thread } in callers {
        // This fails only if the other side has closed already.
        let _ = stream.shutdown(Shutdown::Both);
        let _ = thread.join();
    }
}

fn admit(stream: UnixStream, switch_reporter: &Arc<SwitchReporter>) -> io::Result<Caller> {
    stream.set_write_timeout(Some(ANSWER_DEADLINE))?;
    let (stream, switch_reporter) = (Arc::new(stream), Arc::clone(switch_reporter));
    let line = Arc::clone(&stream);
    let thread = std::thread::Builder::new().name("control".into()).spawn(move || {
        if let Err(error) = serve(&line, &switch_reporter) {
            tracing::debug!("control connection failed: {error}");
        }
        // Shut down the connection, because this entry keeps its descriptor open until the next
        // caller connects.
        let _ = line.shutdown(Shutdown::Both);
    })?;
    Ok(Caller { stream, thread })
}

fn serve(stream: &UnixStream, switch_reporter: &SwitchReporter) -> io::Result<()> {
    let mut reader = BufReader::new(stream);
    loop {
        match lines::read(&mut reader, MAX_LINE_BYTES)? {
            Line::Whole(line) if line.iter().all(u8::is_ascii_whitespace) => {}
            Line::Whole(line) => send(stream, &answer(switch_reporter, &line))?,
            Line::End => return Ok(()),
            Line::TooLong => {
                let message = format!("line is longer than {MAX_LINE_BYTES} bytes");
                return send(stream, &refusal(code::INVALID_REQUEST, message));
            }
        }
    }
}

fn answer(switch_reporter: &SwitchReporter, line: &[u8]) -> Response {
    let (id, call) = parse(line);
    Response::new(id, call.and_then(|call| carry_out(switch_reporter, call)))
}

fn carry_out(switch_reporter: &SwitchReporter, call: Call) -> Result<Value, RpcError> {
    let refuse = |code, message| Err(RpcError { code, message });
    match call {
        Call::Stats(query) => {
            let mut stats = switch_reporter.stats();
            if let Some(id) = query.id {
                stats.ports.retain(|port| port.id == id);
                if stats.ports.is_empty() {
                    return refuse(code::NO_SUCH_DISK, format!("this switch has no NIC {id:?}"));
                }
            }
            serde_json::to_value(stats).map_err(crate::error::failed)
        }
        Call::Metrics => {
            let openmetrics = switch_reporter.metrics();
            serde_json::to_value(MetricsReply { openmetrics }).map_err(crate::error::failed)
        }
        _ => {
            let message = "ringway-net answers stats and metrics only".into();
            refuse(code::METHOD_NOT_FOUND, message)
        }
    }
}
