//! Client that repeats a call to a `ringway-io` until it is answered.

use std::sync::Arc;

use model::rpc::{RpcError, code};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::time::{Instant, sleep, timeout_at};

use super::DatapathError;
use super::connection_pool::{BUSY_PAUSE, Kind};
use super::served_devices::ServedDevice;
use super::spec_store::SpecStore;
use super::supervisor::Supervisor;
use crate::boxed_future::BoxFuture;

/// Prefix of the methods on image files. They need a process, but no disk.
const IMAGE_CALLS: &str = "image.";

/// Client of one `ringway-io`.
#[derive(Debug)]
pub(super) struct RpcClient<T> {
    pub(super) supervisor: Arc<Supervisor<T>>,
}

impl<T> Clone for RpcClient<T> {
    fn clone(&self) -> Self {
        Self { supervisor: Arc::clone(&self.supervisor) }
    }
}

/// Call with its policy.
pub(super) struct RpcCall<'a> {
    pub(super) kind: Kind,
    pub(super) method: &'static str,
    pub(super) params: Value,
    /// Disk or NIC that the call changes.
    pub(super) item: Option<&'a str>,
    pub(super) until: Instant,
    /// True if the device stays locked until the answer, even if the caller stops waiting. So a
    /// late effect cannot undo a later call.
    pub(super) lock_until_answer: bool,
}

impl<'a> RpcCall<'a> {
    /// Creates a call that changes a disk or a NIC.
    pub(super) fn step(item: &'a str, method: &'static str, params: Value) -> Self {
        let (kind, until) = (Kind::Step, Instant::now() + Kind::Step.deadline());
        Self { kind, method, params, item: Some(item), until, lock_until_answer: false }
    }
}

impl RpcCall<'static> {
    /// Creates a call that may wait for storage and changes no single disk or NIC.
    pub(super) fn of_all(method: &'static str, params: Value) -> Self {
        let (kind, until) = (Kind::Step, Instant::now() + Kind::Step.deadline());
        Self { kind, method, params, item: None, until, lock_until_answer: false }
    }
}

/// Runs work to its end, even if the caller stops waiting: the stored specification must match the
/// effect.
pub(super) fn task<R: Send + 'static>(
    work: impl Future<Output = Result<R, DatapathError>> + Send + 'static,
) -> BoxFuture<'static, Result<R, DatapathError>> {
    Box::pin(async move {
        let done = tokio::spawn(work).await;
        done.unwrap_or_else(|error| {
            let (what, why) = ("a call".into(), error.to_string());
            Err(DatapathError::Nonsense { what, why })
        })
    })
}

impl<T: ServedDevice> RpcClient<T> {
    /// Calls until there is an answer.
    ///
    /// If the process dies before the answer, the call is repeated: all methods are idempotent.
    /// `note` updates the stored specification before any other call on the same device.
    pub(super) async fn call(
        &self,
        rpc_call: RpcCall<'_>,
        note: impl Fn(&mut SpecStore<T>, &Result<Value, DatapathError>),
    ) -> Result<Value, DatapathError> {
        let RpcCall { kind, method, .. } = rpc_call;
        let start = method == T::ATTACH || method.starts_with(IMAGE_CALLS);
        self.supervisor.ready(start).await?;
        loop {
            let answer = self.call_once(&rpc_call, &note).await;
            let in_time = Instant::now() < rpc_call.until;
            match answer {
                // The worker has died. Its successor accepts the next connection.
                Err(DatapathError::Broken { .. }) if in_time => {}
                Err(gone @ DatapathError::NotThere { .. }) if in_time => {
                    if !self.supervisor.ensure_running(start).await? {
                        return Err(gone);
                    }
                }
                Err(DatapathError::Refused { source, .. })
                    if source.code == code::BUSY && in_time =>
                {
                    sleep(BUSY_PAUSE).await;
                }
                // Report the whole wait, not only that since the last death.
                Err(DatapathError::Late { what, .. }) => {
                    return Err(DatapathError::Late { what, deadline: kind.deadline() });
                }
                answer => return answer,
            }
        }
    }

    /// Sends one attempt under the device's lock. The lock does not span a death, because
    /// reattaching takes it too.
    async fn call_once(
        &self,
        rpc_call: &RpcCall<'_>,
        note: impl Fn(&mut SpecStore<T>, &Result<Value, DatapathError>),
    ) -> Result<Value, DatapathError> {
        let RpcCall { kind, method, until, .. } = *rpc_call;
        let late = |_| DatapathError::Late { what: method.into(), deadline: kind.deadline() };
        let turn = match rpc_call.item {
            Some(id) => {
                Some(timeout_at(until, self.supervisor.keyed_locks.of(id)).await.map_err(late)?)
            }
            None => None,
        };
        let turn = turn.map(Arc::new);
        let lasts = turn.clone().filter(|_| rpc_call.lock_until_answer);
        let answer =
            self.supervisor.pool.call(kind, (method, rpc_call.params.clone()), until, lasts).await;
        note(&mut self.supervisor.specs(), &answer);
        answer
    }

    /// Changes a disk or a NIC. On success, updates its specification.
    pub(super) async fn step(
        &self,
        id: &str,
        (method, params): (&'static str, Value),
        change: impl Fn(&mut T),
    ) -> Result<Value, DatapathError> {
        let note = |specs: &mut SpecStore<T>, answer: &Result<Value, DatapathError>| {
            if answer.is_ok() {
                specs.change(id, &change);
            }
        };
        self.call(RpcCall::step(id, method, params), note).await
    }

    /// Sets a value of a disk or a NIC. If it does not exist, the value applies when it is attached
    /// again.
    pub(super) async fn set(
        &self,
        id: &str,
        (method, params): (&'static str, Value),
        change: impl Fn(&mut T),
    ) -> Result<(), DatapathError> {
        let note = |specs: &mut SpecStore<T>, answer: &Result<Value, DatapathError>| {
            if answer.as_ref().map_or_else(DatapathError::is_not_served, |_| true) {
                specs.change(id, &change);
            }
        };
        self.call(RpcCall { lock_until_answer: true, ..RpcCall::step(id, method, params) }, note)
            .await
            .map(drop)
    }

    /// Sends a query that is answered at once.
    pub(super) async fn short(
        &self,
        method: &'static str,
        params: Value,
    ) -> Result<Value, DatapathError> {
        let (kind, until) = (Kind::Short, Instant::now() + Kind::Short.deadline());
        let rpc_call =
            RpcCall { kind, method, params, item: None, until, lock_until_answer: false };
        self.call(rpc_call, |_, _| ()).await
    }
}

/// Returns whether the error is a refusal with this code.
pub(super) fn is(error: &DatapathError, code: i64) -> bool {
    matches!(error, DatapathError::Refused { source: RpcError { code: got, .. }, .. } if *got == code)
}

/// Treats a missing device or process as success. `none` is the error code of a missing device.
pub(super) fn gone_is_done(
    outcome: Result<Value, DatapathError>,
    none: i64,
) -> Result<(), DatapathError> {
    match outcome {
        Err(DatapathError::NotThere { .. }) => Ok(()),
        Err(error) if is(&error, none) => Ok(()),
        outcome => outcome.map(drop),
    }
}

/// Parses an answer as this type.
pub(super) fn typed<R: DeserializeOwned>(method: &str, value: Value) -> Result<R, DatapathError> {
    serde_json::from_value(value).map_err(|error| nonsense(method, error))
}

pub(super) fn nonsense(method: &str, error: serde_json::Error) -> DatapathError {
    DatapathError::Nonsense { what: method.into(), why: error.to_string() }
}
