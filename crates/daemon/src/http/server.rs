//! Server: accepts connections and stops.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::connection::{HEAD_DEADLINE, ServerContext};
use super::limits::ConnectionLimiter;
use super::{ApiHandler, ApiListener, WebPages, console, stopped};

/// Time that calls under way may take after a stop.
const STOP_DEADLINE: Duration = Duration::from_secs(5);
/// Pause after the system refused a connection for lack of resources. No event reports free
/// resources.
const PAUSE: Duration = Duration::from_millis(100);

/// Server of all listeners.
#[derive(Debug)]
pub struct Server {
    stop: watch::Sender<bool>,
    doors: JoinSet<()>,
}

impl Server {
    /// Starts to serve these listeners. `api_handler` carries out the calls.
    pub fn begin(
        api_listeners: Vec<ApiListener>,
        api_handler: &Arc<dyn ApiHandler>,
        pages: WebPages,
    ) -> Self {
        let connection_limiter = ConnectionLimiter::default();
        Self::patient(api_listeners, api_handler, HEAD_DEADLINE, &connection_limiter, pages)
    }

    pub(super) fn patient(
        api_listeners: Vec<ApiListener>,
        api_handler: &Arc<dyn ApiHandler>,
        head_deadline: Duration,
        connection_limiter: &ConnectionLimiter,
        pages: WebPages,
    ) -> Self {
        let pages = Arc::new(pages);
        let stop = watch::Sender::new(false);
        let consoles = Arc::new(Semaphore::new(console::OPEN_MAX));
        let mut tasks = JoinSet::new();
        for api_listener in api_listeners {
            let (api_handler, consoles) = (Arc::clone(api_handler), Arc::clone(&consoles));
            let (pages, stop) = (Arc::clone(&pages), stop.subscribe());
            let server_context =
                ServerContext { api_handler, head_deadline, consoles, pages, stop };
            tasks.spawn(serve(api_listener, server_context, connection_limiter.clone()));
        }
        Self { stop, doors: tasks }
    }

    /// Stops accepting, waits a while for calls under way, then aborts the rest.
    pub async fn stop(mut self) {
        self.stop.send_replace(true);
        while self.doors.join_next().await.is_some() {}
    }
}

/// Accepts connections of one listener until the server stops. The listener closes before its
/// connections end.
async fn serve(
    api_listener: ApiListener,
    server_context: ServerContext,
    connection_limiter: ConnectionLimiter,
) {
    let mut stop = server_context.stop.clone();
    let mut connections = JoinSet::new();
    loop {
        let coming = async {
            let connection_permit = connection_limiter.take(api_listener.is_tcp()).await;
            (connection_permit, api_listener.accept(server_context.clone()).await)
        };
        let (connection_permit, coming) = tokio::select! {
            () = stopped(&mut stop) => break,
            Some(ended) = connections.join_next(), if !connections.is_empty() => {
                log_panic(ended);
                continue;
            }
            coming = coming => coming,
        };
        match coming {
            Ok((from, connection)) => {
                let Some(source_permit) = connection_limiter.hold(from.into()) else {
                    tracing::debug!("{from:?} has too many connections");
                    continue;
                };
                connections.spawn(async move {
                    connection.await;
                    drop((source_permit, connection_permit));
                });
            }
            Err(error) => refused(&api_listener, &error).await,
        }
    }
    drop(api_listener);
    let ending = async { while connections.join_next().await.map(log_panic).is_some() {} };
    if timeout(STOP_DEADLINE, ending).await.is_err() {
        connections.shutdown().await;
    }
}

fn log_panic(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        tracing::error!("the task of a connection failed: {error}");
    }
}

/// Handles a failed accept. Errors of the peer need no pause.
async fn refused(api_listener: &ApiListener, error: &io::Error) {
    use io::ErrorKind::{
        ConnectionAborted, ConnectionReset, Interrupted, InvalidInput, NotConnected,
    };
    if [ConnectionAborted, ConnectionReset, Interrupted, InvalidInput, NotConnected]
        .contains(&error.kind())
    {
        return;
    }
    tracing::warn!("cannot accept connections at {api_listener}: {error}");
    sleep(PAUSE).await;
}
