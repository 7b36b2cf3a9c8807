//! Who accepts and who is served.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::connection::{HEAD_DEADLINE, ServerContext};
use super::limits::ConnectionLimiter;
use super::{ApiHandler, ApiListener, console, stopped};

/// How long calls under way may go on after the server was told to stop.
const STOP_DEADLINE: Duration = Duration::from_secs(5);
/// Pause after the system had no room for another connection: no event tells when it has.
const PAUSE: Duration = Duration::from_millis(100);

/// Serves doors until it is stopped.
#[derive(Debug)]
pub struct Server {
    stop: watch::Sender<bool>,
    doors: JoinSet<()>,
}

impl Server {
    /// Serves these doors; what comes in is carried out by `answers`.
    pub fn begin(doors: Vec<ApiListener>, answers: &Arc<dyn ApiHandler>) -> Self {
        Self::patient(doors, answers, HEAD_DEADLINE, &ConnectionLimiter::default())
    }

    pub(super) fn patient(
        doors: Vec<ApiListener>,
        answers: &Arc<dyn ApiHandler>,
        head_deadline: Duration,
        places: &ConnectionLimiter,
    ) -> Self {
        let stop = watch::Sender::new(false);
        let consoles = Arc::new(Semaphore::new(console::OPEN_MAX));
        let mut tasks = JoinSet::new();
        for door in doors {
            let (answers, consoles) = (Arc::clone(answers), Arc::clone(&consoles));
            let common = ServerContext { answers, head_deadline, consoles, stop: stop.subscribe() };
            tasks.spawn(serve(door, common, places.clone()));
        }
        Self { stop, doors: tasks }
    }

    /// Accepts nobody any more, lets calls under way end for a while, then ends what is left.
    pub async fn stop(mut self) {
        self.stop.send_replace(true);
        while self.doors.join_next().await.is_some() {}
    }
}

/// Accepts who comes through a door until the server stops; then the door is closed first.
async fn serve(door: ApiListener, common: ServerContext, places: ConnectionLimiter) {
    let mut stop = common.stop.clone();
    let mut connections = JoinSet::new();
    loop {
        let coming = async {
            let place = places.take(door.is_tcp()).await;
            (place, door.accept(common.clone()).await)
        };
        let (place, coming) = tokio::select! {
            () = stopped(&mut stop) => break,
            Some(ended) = connections.join_next(), if !connections.is_empty() => {
                tell(ended);
                continue;
            }
            coming = coming => coming,
        };
        match coming {
            Ok((from, connection)) => {
                let Some(held) = places.hold(from.into()) else {
                    tracing::debug!("{from:?} has too many connections");
                    continue;
                };
                connections.spawn(async move {
                    connection.await;
                    drop((held, place));
                });
            }
            Err(error) => refused(&door, &error).await,
        }
    }
    drop(door);
    let ending = async { while connections.join_next().await.map(tell).is_some() {} };
    if timeout(STOP_DEADLINE, ending).await.is_err() {
        connections.shutdown().await;
    }
}

fn tell(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        tracing::error!("a connection was cut off: {error}");
    }
}

/// Nobody could be accepted. If that was the fault of who came, the next one is.
async fn refused(door: &ApiListener, error: &io::Error) {
    use io::ErrorKind::{
        ConnectionAborted, ConnectionReset, Interrupted, InvalidInput, NotConnected,
    };
    if [ConnectionAborted, ConnectionReset, Interrupted, InvalidInput, NotConnected]
        .contains(&error.kind())
    {
        return;
    }
    tracing::warn!("nobody can be accepted at {door}: {error}");
    sleep(PAUSE).await;
}
