//! API service between the listeners and the application: dispatches calls and counts results.

use std::future::pending;
use std::sync::Arc;
use std::time::{Duration, Instant};

use model::id::VmId;
use tokio::net::UnixStream;
use tokio::time::timeout;
use toolstack::boxed_future::BoxFuture;
use xenapi::envelope::Call;
use xenapi::table::resolve::resolve;
use xenapi::table::{MessageKind, Role, class, classes, console, session, vm};
use xenapi::{ApiError, Value};

use crate::app::AppState;
use crate::db::{Db, Ref, View};
use crate::disk_streams;
use crate::dispatch::{dispatch, text};
use crate::http::{
    ApiHandler, ConsoleError, ConsoleLine, ConsoleRequest, DiskRequest, ExportBody, ImportAnswer,
    ImportBody, RestoreRequest,
};
use crate::metrics::Metrics;
use crate::peer::Peer;
use crate::reconcile::full_storage;
use crate::restore;
use crate::sessions::ConnectionSession;
use crate::storage::space;
use crate::tasks;

/// Time limit for connecting to a VM's serial console.
const CONSOLE_DEADLINE: Duration = Duration::from_secs(5);
/// Least role that may open consoles.
const CONSOLE_ROLE: Role = Role::VmOperator;

/// Handler of all calls, consoles, disks and metrics requests that the listeners receive.
#[derive(Debug)]
pub struct ApiService {
    app: Arc<AppState>,
    metrics: Arc<Metrics>,
}

impl ApiService {
    /// Creates the service for this application state.
    pub fn new(app: Arc<AppState>) -> Self {
        Self { app, metrics: Arc::default() }
    }
}

impl ApiHandler for ApiService {
    fn call(&self, call: Call, peer: Peer) -> BoxFuture<'static, Result<Value, ApiError>> {
        let (app, metrics) = (Arc::clone(&self.app), Arc::clone(&self.metrics));
        Box::pin(async move {
            let (began, method) = (Instant::now(), call.method.clone());
            let outcome = dispatch(&app, call, &peer).await;
            let took = is_measured(&method).then(|| began.elapsed());
            metrics.observe_call(
                &method,
                if outcome.is_ok() { "success" } else { "failure" },
                took,
            );
            outcome
        })
    }

    fn connection_closed(&self, connection_session: &ConnectionSession) {
        if self.app.sessions.left(&self.app.db, connection_session) {
            tasks::end_orphaned(&self.app);
        }
    }

    fn console(
        &self,
        console_request: ConsoleRequest,
        peer: Peer,
    ) -> BoxFuture<'static, Result<ConsoleLine, ConsoleError>> {
        let app = Arc::clone(&self.app);
        Box::pin(async move {
            let session = app.sessions.named(&app.db, &console_request.session, &peer);
            let session = session.map_err(|_| ConsoleError::Denied)?;
            if session.role < CONSOLE_ROLE {
                return Err(ConsoleError::Denied);
            }
            // The console takes over a connection, whose own session ends with the takeover.
            let named = (!console_request.session.is_empty()).then_some(session.reference);
            let vm = machine(&app.db, &console_request).ok_or(ConsoleError::Absent)?;
            let line = app.drivers.hv.console(vm).ok_or(ConsoleError::Absent)?;
            match timeout(CONSOLE_DEADLINE, UnixStream::connect(line)).await {
                Ok(Ok(stream)) => {
                    let session_ended = Box::pin(session_ended(app.db.clone(), named));
                    Ok(ConsoleLine { stream, session_ended })
                }
                Ok(Err(error)) => {
                    tracing::warn!("cannot connect to the console of {vm}: {error}");
                    Err(ConsoleError::Failed)
                }
                Err(_late) => Err(ConsoleError::Failed),
            }
        })
    }

    fn export(
        &self,
        disk_request: DiskRequest,
        peer: Peer,
    ) -> BoxFuture<'static, Result<ExportBody, ApiError>> {
        Box::pin(disk_streams::export(Arc::clone(&self.app), disk_request, peer))
    }

    fn import(
        &self,
        disk_request: DiskRequest,
        import_body: ImportBody,
        peer: Peer,
    ) -> BoxFuture<'static, Result<ImportAnswer, ApiError>> {
        Box::pin(disk_streams::import(Arc::clone(&self.app), disk_request, import_body, peer))
    }

    fn restore(
        &self,
        restore_request: RestoreRequest,
        body: ImportBody,
        peer: Peer,
    ) -> BoxFuture<'static, Result<(), ApiError>> {
        Box::pin(restore::receive(Arc::clone(&self.app), restore_request, body, peer))
    }

    fn metrics(&self) -> String {
        let app = &self.app;
        self.metrics.sessions.set(app.sessions.count() as i64);
        self.metrics.pending.set(app.call_limiter.taken() as i64);
        app.db.read(|view| {
            self.metrics.full_disks.set(full_storage::count(view) as i64);
            self.metrics.srs(space::shown(view));
            for class in classes() {
                self.metrics.records(class.name, view.count(class));
            }
        });
        self.metrics.text()
    }
}

/// Waits until a session has ended. Waits for ever without one.
async fn session_ended(db: Db, session: Option<Ref>) {
    let Some(session) = session else { return pending().await };
    let mut changed = db.changed();
    loop {
        changed.mark_unchanged();
        if db.read(|view| view.object(&session::CLASS, &session).is_err()) {
            return;
        }
        // A database that has ended has no sessions either.
        if changed.changed().await.is_err() {
            return;
        }
    }
}

/// Returns whether the duration of the method's calls is measured. Failed logins and event waits
/// are slow on purpose, so their duration says nothing about the daemon.
fn is_measured(method: &str) -> bool {
    resolve(method).is_some_and(|(method, _)| {
        !matches!(method.kind(), MessageKind::Login | MessageKind::Waits)
    })
}

/// Returns the VM of a console request.
fn machine(db: &Db, console_request: &ConsoleRequest) -> Option<VmId> {
    db.read(|view| {
        let machine = match (&console_request.reference, &console_request.uuid) {
            (Some(reference), _) => of_reference(view, &Ref::from(reference.as_str())),
            (None, Some(uuid)) => of_uuid(view, uuid),
            (None, None) => None,
        }?;
        text(view.get(&machine, vm::Field::uuid).ok()?).parse().ok().map(VmId)
    })
}

/// Returns the VM for a reference to a console or to a VM.
fn of_reference(view: &View<'_>, reference: &Ref) -> Option<Ref> {
    match view.get(reference, console::Field::VM) {
        Ok(machine) => Some(Ref::from(text(machine))),
        Err(_) => Some(reference.clone()),
    }
}

fn of_uuid(view: &View<'_>, uuid: &str) -> Option<Ref> {
    let of = |name| class(name).and_then(|class| view.by_uuid(class, uuid).ok());
    match of("console") {
        Some(console) => of_reference(view, console),
        None => of("VM").cloned(),
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;
    use crate::tests::app::TestApp;

    #[tokio::test]
    async fn a_console_ends_with_its_session() {
        let test_app = TestApp::new().await;
        let db = &test_app.app.db;
        let ended = session_ended(db.clone(), Some(test_app.session.clone()));
        let mut ended = std::pin::pin!(ended);
        assert!(ended.as_mut().now_or_never().is_none(), "it goes on");
        test_app.call("pool.sync_database", []).await.unwrap();
        assert!(ended.as_mut().now_or_never().is_none(), "other changes end nothing");
        test_app.call("session.logout", []).await.unwrap();
        ended.await;
        assert!(session_ended(db.clone(), None).now_or_never().is_none(), "no session, no end");
    }
}
