//! [`Datapath`] by a `ringway-io`.

mod attach;

use std::sync::Arc;

use model::report::Stats;
use model::rpc::{DiskReply, RpcError, code};
use model::spec::{Caps, DiskSpec, PollSpec};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout_at};

use super::keep::Keep;
use super::pool::{BUSY_PAUSE, Kind};
use super::specs::Specs;
use super::{Datapath, IoError};
use crate::fut::Fut;

/// The datapath of one SR.
#[derive(Clone, Debug)]
pub(super) struct Served {
    keep: Arc<Keep>,
}

/// A call.
struct Ask<'a> {
    kind: Kind,
    method: &'static str,
    params: Value,
    /// The disk to which it does something.
    disk: Option<&'a str>,
    until: Instant,
}

impl<'a> Ask<'a> {
    /// One that does something to a disk.
    fn step(disk: &'a str, method: &'static str, params: Value) -> Self {
        let (kind, until) = (Kind::Step, Instant::now() + Kind::Step.deadline());
        Self { kind, method, params, disk: Some(disk), until }
    }
}

impl Served {
    pub(super) fn new(keep: Arc<Keep>) -> Self {
        Self { keep }
    }

    /// Ends what serves it.
    pub(super) async fn end(&self) -> Result<(), IoError> {
        self.keep.end().await
    }

    /// Does something to its end, also when nobody waits for it any more: what is known of a disk
    /// must be what was done to it.
    fn task<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, IoError>> + Send + 'static,
    ) -> Fut<'static, Result<T, IoError>> {
        Box::pin(async move {
            let done = tokio::spawn(work).await;
            done.unwrap_or_else(|error| {
                let (what, why) = ("a call".into(), error.to_string());
                Err(IoError::Nonsense { what, why })
            })
        })
    }

    /// Calls until there is an answer: one that was lost with who should have given it is asked for
    /// again, and all verbs can be repeated. What is known of the disk then is changed by `note`,
    /// before anybody else does something to it.
    async fn call(
        &self,
        ask: Ask<'_>,
        note: impl Fn(&mut Specs, &Result<Value, IoError>),
    ) -> Result<Value, IoError> {
        let Ask { kind, method, .. } = ask;
        let start = method == "disk.attach";
        self.keep.ready(start).await?;
        loop {
            let answer = self.call_once(&ask, &note).await;
            let in_time = Instant::now() < ask.until;
            match answer {
                // Whoever serves has died: the next one takes the next connection.
                Err(IoError::Broken { .. }) if in_time => {}
                Err(gone @ IoError::NotThere { .. }) if in_time => {
                    if !self.keep.revive(start).await? {
                        return Err(gone);
                    }
                }
                Err(IoError::Refused { source, .. }) if source.code == code::BUSY && in_time => {
                    sleep(BUSY_PAUSE).await;
                }
                // What was waited for in all, and not since the last death.
                Err(IoError::Late { what, .. }) => {
                    return Err(IoError::Late { what, deadline: kind.deadline() });
                }
                answer => return answer,
            }
        }
    }

    /// In its turn, which does not last over a death: what is attached again then has turns too.
    async fn call_once(
        &self,
        ask: &Ask<'_>,
        note: impl Fn(&mut Specs, &Result<Value, IoError>),
    ) -> Result<Value, IoError> {
        let Ask { kind, method, until, .. } = *ask;
        let late = |_| IoError::Late { what: method.into(), deadline: kind.deadline() };
        let _turn = match ask.disk {
            Some(id) => Some(timeout_at(until, self.keep.turns.of(id)).await.map_err(late)?),
            None => None,
        };
        let answer = self.keep.pool.call(kind, method, ask.params.clone(), until).await;
        note(&mut self.keep.specs(), &answer);
        answer
    }

    /// Does something to a disk, which changes what is known of it if it is done.
    async fn step(
        &self,
        id: &str,
        (method, params): (&'static str, Value),
        change: impl Fn(&mut DiskSpec),
    ) -> Result<Value, IoError> {
        let note = |specs: &mut Specs, answer: &Result<Value, IoError>| {
            if answer.is_ok() {
                specs.change(id, &change);
            }
        };
        self.call(Ask::step(id, method, params), note).await
    }

    async fn short(&self, method: &'static str, params: Value) -> Result<Value, IoError> {
        let (kind, until) = (Kind::Short, Instant::now() + Kind::Short.deadline());
        self.call(Ask { kind, method, params, disk: None, until }, |_, _| ()).await
    }

    async fn activate(&self, id: &str) -> Result<(), IoError> {
        let ask = ("disk.activate", json!({ "id": id }));
        self.step(id, ask, |spec| spec.activate = true).await.map(drop)
    }

    async fn deactivate(&self, id: &str) -> Result<(), IoError> {
        let ask = ("disk.deactivate", json!({ "id": id }));
        gone_is_done(self.step(id, ask, |spec| spec.activate = false).await)
    }

    async fn detach(&self, id: &str) -> Result<(), IoError> {
        let note = |specs: &mut Specs, answer: &Result<Value, IoError>| match answer {
            Err(error) if !is(error, code::NO_SUCH_DISK) => {}
            _ => specs.remove(id),
        };
        let outcome = self.call(Ask::step(id, "disk.detach", json!({ "id": id })), note).await;
        if let Err(error) = &outcome
            && is(error, code::FAILED)
        {
            // A flush that failed is told once, and the disk is gone all the same.
            let look = Ask::step(id, "stats", json!({ "id": id }));
            let gone = |specs: &mut Specs, answer: &Result<Value, IoError>| match answer {
                Err(error) if is(error, code::NO_SUCH_DISK) => specs.remove(id),
                _ => {}
            };
            // Whether it can be told or not: the failure is the answer.
            let _told = self.call(look, gone).await;
        }
        gone_is_done(outcome)
    }

    async fn resize(&self, id: &str) -> Result<u64, IoError> {
        let reply = self.step(id, ("disk.resize", json!({ "id": id })), |_| ()).await?;
        let reply: DiskReply = typed("disk.resize", reply)?;
        Ok(reply.geometry.size_bytes)
    }

    async fn caps(&self, id: &str, caps: Option<Caps>) -> Result<(), IoError> {
        let ask = ("disk.caps", json!({ "id": id, "caps": caps }));
        self.step(id, ask, |spec| spec.caps = caps).await.map(drop)
    }

    async fn poll(&self, id: &str, polling: PollSpec) -> Result<(), IoError> {
        let PollSpec { poll, poll_max_us, poll_idle_threshold } = polling;
        // What is not set is said too: it is as the process is set from now on.
        let params = json!({
            "id": id,
            "poll": poll,
            "poll_max_us": poll_max_us,
            "poll_idle_threshold": poll_idle_threshold,
        });
        let change = |spec: &mut DiskSpec| *spec = spec.clone().with_polling(polling);
        self.step(id, ("disk.poll", params), change).await.map(drop)
    }

    async fn stats(&self) -> Result<Option<Stats>, IoError> {
        match self.short("stats", json!({})).await {
            Ok(stats) => typed("stats", stats).map(Some),
            Err(IoError::NotThere { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl Datapath for Served {
    fn attach<'a>(&'a self, spec: &'a DiskSpec) -> Fut<'a, Result<DiskReply, IoError>> {
        let (this, spec) = (self.clone(), spec.clone());
        self.task(async move { this.attach(&spec).await })
    }

    fn activate<'a>(&'a self, id: &'a str) -> Fut<'a, Result<(), IoError>> {
        let (this, id) = (self.clone(), id.to_owned());
        self.task(async move { this.activate(&id).await })
    }

    fn deactivate<'a>(&'a self, id: &'a str) -> Fut<'a, Result<(), IoError>> {
        let (this, id) = (self.clone(), id.to_owned());
        self.task(async move { this.deactivate(&id).await })
    }

    fn detach<'a>(&'a self, id: &'a str) -> Fut<'a, Result<(), IoError>> {
        let (this, id) = (self.clone(), id.to_owned());
        self.task(async move { this.detach(&id).await })
    }

    fn resize<'a>(&'a self, id: &'a str) -> Fut<'a, Result<u64, IoError>> {
        let (this, id) = (self.clone(), id.to_owned());
        self.task(async move { this.resize(&id).await })
    }

    fn caps<'a>(&'a self, id: &'a str, caps: &'a Caps) -> Fut<'a, Result<(), IoError>> {
        let caps = (*caps != Caps::default()).then_some(*caps);
        let (this, id) = (self.clone(), id.to_owned());
        self.task(async move { this.caps(&id, caps).await })
    }

    fn poll<'a>(&'a self, id: &'a str, poll: &'a PollSpec) -> Fut<'a, Result<(), IoError>> {
        let (this, id, poll) = (self.clone(), id.to_owned(), *poll);
        self.task(async move { this.poll(&id, poll).await })
    }

    fn stats(&self) -> Fut<'_, Result<Option<Stats>, IoError>> {
        let this = self.clone();
        self.task(async move { this.stats().await })
    }
}

fn is(error: &IoError, code: i64) -> bool {
    matches!(error, IoError::Refused { source: RpcError { code: got, .. }, .. } if *got == code)
}

/// A disk, or a process, that is not there has nothing to let go of.
fn gone_is_done(outcome: Result<Value, IoError>) -> Result<(), IoError> {
    match outcome {
        Err(IoError::NotThere { .. }) => Ok(()),
        Err(error) if is(&error, code::NO_SUCH_DISK) => Ok(()),
        outcome => outcome.map(drop),
    }
}

fn typed<T: DeserializeOwned>(method: &str, value: Value) -> Result<T, IoError> {
    serde_json::from_value(value).map_err(|error| nonsense(method, error))
}

fn nonsense(method: &str, error: serde_json::Error) -> IoError {
    IoError::Nonsense { what: method.into(), why: error.to_string() }
}
