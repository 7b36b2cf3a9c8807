//! Connection pool of one `ringway-io`.
//!
//! `ringway-io` answers the calls of a connection one after the other, and accepts 64 connections.
//! So each call here uses its own connection, out of a few. A connection whose call hangs in
//! storage stays in use until the answer, even if the caller has stopped waiting. So callers of
//! hung storage can use up this pool, but not all connections of `ringway-io`.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::Value;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::{Instant, timeout_at};

use super::{CALL_DEADLINE, DatapathError, RpcConnection};

/// Connections for calls that may wait for storage: as many as an SR's parallel steps.
const STEPS: usize = 12;
/// Connections for calls that are answered at once.
const SHORT: usize = 2;
/// Longest wait for an answer that may need storage: the deadline of a step.
const STEP_DEADLINE: Duration = Duration::from_secs(60);
/// Pause before a retry on a busy disk. No event announces its end.
pub(super) const BUSY_PAUSE: Duration = Duration::from_millis(10);

/// Kind of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The call may wait for storage. During a handover this applies to every disk verb.
    Step,
    /// The call is answered at once.
    Short,
}

impl Kind {
    /// Returns the longest wait for the answer.
    pub(super) fn deadline(self) -> Duration {
        match self {
            Self::Step => STEP_DEADLINE,
            Self::Short => CALL_DEADLINE,
        }
    }
}

/// Connections to one control socket.
#[derive(Debug)]
pub(super) struct ConnectionPool {
    steps: Arc<PoolLane>,
    short: Arc<PoolLane>,
}

/// Connections of one kind.
#[derive(Debug)]
struct PoolLane {
    socket: PathBuf,
    places: Arc<Semaphore>,
    idle: Mutex<Vec<RpcConnection>>,
}

impl ConnectionPool {
    pub(super) fn new(socket: &Path) -> Self {
        let lane = |places| {
            let (places, idle) = (Arc::new(Semaphore::new(places)), Mutex::default());
            Arc::new(PoolLane { socket: socket.into(), places, idle })
        };
        Self { steps: lane(STEPS), short: lane(SHORT) }
    }

    /// Calls `method`, and waits for its answer until `until`.
    ///
    /// May be dropped: a sent call continues. `lasts` is dropped after the answer, or when no
    /// answer can come any more.
    ///
    /// # Errors
    /// The errors of [`RpcConnection::call`], and [`DatapathError::NotThere`].
    pub(super) async fn call(
        &self,
        kind: Kind,
        (method, params): (&'static str, Value),
        until: Instant,
        lasts: impl Send + 'static,
    ) -> Result<Value, DatapathError> {
        let lane = match kind {
            Kind::Step => &self.steps,
            Kind::Short => &self.short,
        };
        let began = Instant::now();
        let late =
            || DatapathError::Late { what: method.into(), deadline: until.duration_since(began) };
        let place = timeout_at(until, Arc::clone(&lane.places).acquire_owned()).await;
        // The semaphore is never closed.
        let place = place.ok().and_then(Result::ok).ok_or_else(late)?;
        let (say, hear) = oneshot::channel();
        let left = until.duration_since(Instant::now());
        let carried = Arc::clone(lane).send_call(place, (method, params, left), say);
        tokio::spawn(async move {
            carried.await;
            drop(lasts);
        });
        hear.await.unwrap_or_else(|_| Err(late()))
    }
}

impl PoolLane {
    async fn send_call(
        self: Arc<Self>,
        place: OwnedSemaphorePermit,
        (method, params, deadline): (&'static str, Value, Duration),
        say: oneshot::Sender<Result<Value, DatapathError>>,
    ) {
        let mut client = match self.client().await {
            Ok(client) => client,
            Err(error) => {
                drop(place);
                let _gone = say.send(Err(error));
                return;
            }
        };
        let outcome = client.call(method, params, deadline).await;
        match &outcome {
            Ok(_) | Err(DatapathError::Refused { .. }) => {
                self.give_back(client);
                drop(place);
                // The caller may have gone.
                let _gone = say.send(outcome);
            }
            Err(DatapathError::Late { .. }) => {
                let _gone = say.send(outcome);
                client.settle().await;
                self.give_back(client);
                drop(place);
            }
            Err(_) => {
                // The other connections belong to the same process, which may have died.
                self.idle().clear();
                drop((client, place));
                let _gone = say.send(outcome);
            }
        }
    }

    async fn client(&self) -> Result<RpcConnection, DatapathError> {
        let idle = self.idle().pop();
        match idle {
            Some(client) => Ok(client),
            None => RpcConnection::connect(&self.socket).await,
        }
    }

    fn give_back(&self, client: RpcConnection) {
        if client.is_usable() {
            self.idle().push(client);
        }
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<RpcConnection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
    use tokio::net::UnixListener;

    use super::*;

    /// The caller has gone, but the call may still take effect. Later calls on the same device must
    /// wait for it.
    #[tokio::test]
    async fn what_lasts_until_an_answer_outlives_the_wait_for_it() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("s");
        let listener = UnixListener::bind(&socket).unwrap();
        let pool = ConnectionPool::new(&socket);
        let lasts = Arc::new(());
        let held = Arc::downgrade(&lasts);
        // Long enough for a busy host to connect and send.
        let until = Instant::now() + Duration::from_millis(500);
        let call = pool.call(Kind::Step, ("nic.limits", Value::Null), until, lasts);
        let (answer, accepted) = tokio::join!(call, listener.accept());
        assert!(matches!(answer, Err(DatapathError::Late { .. })), "{answer:?}");
        let mut server = BufReader::new(accepted.unwrap().0);
        let mut line = String::new();
        server.read_line(&mut line).await.unwrap();
        assert!(held.upgrade().is_some());
        let id = &serde_json::from_str::<Value>(&line).unwrap()["id"];
        let late = format!("{}\n", serde_json::json!({ "jsonrpc": "2.0", "id": id, "result": {} }));
        server.write_all(late.as_bytes()).await.unwrap();
        while held.upgrade().is_some() {
            tokio::task::yield_now().await;
        }
    }
}
