//! NBD exports of a disk.
//!
//! ```text
//! export ----> a listening socket, a thread that accepts ----> connections on reactors
//! unexport --> connections end; a writer releases the lock
//! ```
//! A read-only export is possible whatever else the disk does. A writable export is like a guest:
//! it locks the image, so there is no guest and no other writable export beside it. An image with a
//! map is read through its owner, so a read-only export locks such an image, too, if no guest has.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ::nbd::{Counts, NbdServer, Options};
use disk::Disk;
use model::export::ExportSpec;
use model::report::ExportStats;
use vhost_user::{Access, Listener, ListenerParts};

use super::{ServedDisk, ServedDiskError, lock};
use crate::accept_gate::AcceptGate;
use crate::keeper_client::KeeperClient;
use crate::pool::Pool;

/// Most exports of one disk.
const EXPORTS_MAX: usize = 8;
/// Length of one wait for hung storage in a loop without a deadline.
const LONG: Duration = Duration::from_secs(3600);

/// Reason why an export is not possible or not found.
#[derive(Debug, thiserror::Error)]
pub enum NbdExportError {
    /// A guest may write to the disk.
    #[error(
        "the disk is active, so a guest may write it; export it with \"read_only\":true, or \
         deactivate it first"
    )]
    Active,
    /// The disk refuses writes.
    #[error("the disk is read-only; export it with \"read_only\":true")]
    ReadOnly,
    /// Another export may write to the disk.
    #[error(
        "the disk is exported for writing on {}; unexport that first", socket.display()
    )]
    Writable {
        /// Socket of that export.
        socket: PathBuf,
    },
    /// Another export uses this socket.
    #[error("the disk is exported on {} with other options; unexport that first", socket.display())]
    Otherwise {
        /// Path of the socket.
        socket: PathBuf,
    },
    /// The limit of exports is reached.
    #[error("the disk has {EXPORTS_MAX} exports, which is the limit; unexport one first")]
    TooMany,
    /// The export does not exist.
    #[error("the disk is not exported{}; `stats` shows its exports", at(socket.as_deref()))]
    None {
        /// Path of the requested socket.
        socket: Option<PathBuf>,
    },
}

fn at(socket: Option<&Path>) -> String {
    socket.map_or_else(String::new, |socket| format!(" on {}", socket.display()))
}

/// One export. Dropping it ends it.
#[derive(Debug)]
pub(super) struct NbdExport {
    spec: ExportSpec,
    server: Arc<NbdServer>,
    listener: Option<Arc<Listener>>,
    gate: Arc<AcceptGate>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl NbdExport {
    fn start(
        served_disk: &ServedDisk,
        spec: &ExportSpec,
        listener: Arc<Listener>,
        pool: Arc<Pool>,
    ) -> io::Result<Self> {
        let options = Options {
            name: spec.id.clone(),
            description: served_disk.backend_text(),
            read_only: spec.read_only,
            connections: spec.limit().into(),
        };
        let server = Arc::new(NbdServer::new(Arc::clone(&served_disk.disk), options)?);
        let gate = Arc::new(AcceptGate::new()?);
        let twins = (Arc::clone(&server), Arc::clone(&listener), Arc::clone(&gate));
        let name = spec.id.clone();
        let work = move || accept(&name, &twins.0, &twins.1, &twins.2, &pool);
        let thread = std::thread::Builder::new().name("nbd".into()).spawn(work)?;
        let (listener, thread) = (Some(listener), Mutex::new(Some(thread)));
        Ok(Self { spec: spec.clone(), server, listener, gate, thread })
    }

    /// Stops accepting clients and disconnects all of them. Does not wait for storage.
    fn hang_up(&self) {
        self.gate.stop();
        self.server.hang_up();
    }

    /// Stops accepting, but leaves the socket's file, because the keeper has the socket open too.
    fn leave_socket(mut self) {
        self.hang_up();
        self.join();
        if let Some(listener) = self.listener.take().and_then(Arc::into_inner) {
            listener.close_keep_files();
        }
    }

    fn join(&self) {
        if let Some(thread) = lock(&self.thread).take() {
            // A panic of the thread was reported already.
            let _ = thread.join();
        }
    }

    fn stats(&self) -> ExportStats {
        let Counts { clients, reads, writes, others, read_bytes, written_bytes, errors, .. } =
            self.server.counts();
        ExportStats {
            socket: self.spec.socket.display().to_string(),
            read_only: self.spec.read_only,
            connections: self.server.connections() as u64,
            connections_max: self.spec.limit().into(),
            clients,
            reads,
            writes,
            others,
            read_bytes,
            written_bytes,
            errors,
        }
    }
}

impl Drop for NbdExport {
    fn drop(&mut self) {
        self.hang_up();
        self.join();
    }
}

fn access(spec: &ExportSpec) -> Access {
    Access { mode: spec.socket_mode, group: spec.socket_group.clone() }
}

/// Assigns each client to a reactor.
fn accept(export: &str, server: &NbdServer, listener: &Listener, gate: &AcceptGate, pool: &Pool) {
    let path = listener.path().display();
    while let Some(accept_permit) = gate.enter() {
        loop {
            match listener.accept(accept_permit.wake()) {
                Ok(Some(stream)) => {
                    let reactor_lease = pool.place();
                    let reactor = reactor_lease.handle().clone();
                    if let Err(error) = server.accept(stream.into(), &reactor, reactor_lease) {
                        tracing::warn!(export, socket = %path, "client rejected: {error}");
                    }
                }
                Ok(None) => break,
                Err(error) => {
                    let cause = crate::error::error_chain(&error);
                    return tracing::error!(export, socket = %path, "accepts no more clients: {cause}");
                }
            }
        }
    }
}

impl ServedDisk {
    /// Exports the disk over NBD. If the same export exists already, nothing happens.
    ///
    /// # Errors
    /// A writable export of a disk that a guest may write to; or the socket or lock is unavailable.
    pub fn export(self: &Arc<Self>, spec: &ExportSpec) -> Result<(), ServedDiskError> {
        self.refuse_stuck("disk.export")?;
        if self.is_exported(spec)? {
            return Ok(());
        }
        let listener = Arc::new(Listener::bind(&spec.socket, &access(spec))?);
        self.start_export(spec, listener, Some(self.deadline()))?;
        tracing::info!(disk = spec.id, socket = %spec.socket.display(), "exported");
        Ok(())
    }

    /// Returns whether the export exists already. Fails if another export conflicts with it.
    fn is_exported(&self, spec: &ExportSpec) -> Result<bool, NbdExportError> {
        let exports = lock(&self.exports);
        if let Some(there) = exports.iter().find(|one| one.spec.socket == spec.socket) {
            let socket = spec.socket.clone();
            return if there.spec == *spec {
                Ok(true)
            } else {
                Err(NbdExportError::Otherwise { socket })
            };
        }
        if exports.len() >= EXPORTS_MAX {
            return Err(NbdExportError::TooMany);
        }
        drop(exports);
        if spec.read_only {
            return Ok(false);
        }
        self.refuse_writable()?;
        match (self.is_active(), self.geometry().read_only) {
            (true, _) => Err(NbdExportError::Active),
            (_, true) => Err(NbdExportError::ReadOnly),
            _ => Ok(false),
        }
    }

    /// Refuses actions that cannot happen beside a writable export.
    pub(crate) fn refuse_writable(&self) -> Result<(), NbdExportError> {
        let exports = lock(&self.exports);
        match exports.iter().find(|one| !one.spec.read_only) {
            Some(one) => Err(NbdExportError::Writable { socket: one.spec.socket.clone() }),
            None => Ok(()),
        }
    }

    /// Returns whether an export needs the disk's lock.
    fn needs_lock(&self, spec: &ExportSpec) -> bool {
        !spec.read_only || self.disk.reads_need_activation()
    }

    /// Returns whether the guest or an export needs the disk's lock.
    fn is_lock_used(&self) -> bool {
        self.is_active() || lock(&self.exports).iter().any(|one| self.needs_lock(&one.spec))
    }

    /// Returns whether a new tree of the disk must be active at once.
    pub(super) fn needs_active(&self, tree: &dyn Disk) -> bool {
        self.is_active() || tree.reads_need_activation() && !lock(&self.exports).is_empty()
    }

    fn start_export(
        self: &Arc<Self>,
        spec: &ExportSpec,
        listener: Arc<Listener>,
        deadline: Option<Instant>,
    ) -> Result<(), ServedDiskError> {
        let locks = self.needs_lock(spec) && !self.is_active();
        if locks {
            self.take_lock("disk.export", deadline)?;
        }
        let started = NbdExport::start(self, spec, listener, Arc::clone(&self.pool));
        match started {
            Ok(export) => lock(&self.exports).push(export),
            Err(source) => {
                if locks && !self.is_lock_used() {
                    // Nothing was written, so no flush is needed.
                    let _ = self.release(self.deadline(), "disk.export");
                }
                return Err(ServedDiskError::Os { action: "serve an export", source });
            }
        }
        Ok(())
    }

    /// Ends the export on `socket`, or all of them. Clients are disconnected.
    ///
    /// # Errors
    /// There is no such export; or the flush failed or missed its deadline. In the last case the
    /// lock is released when the flush ends.
    pub fn unexport(self: &Arc<Self>, socket: Option<&Path>) -> Result<(), ServedDiskError> {
        let goes = |one: &NbdExport| socket.is_none_or(|socket| one.spec.socket == socket);
        let mut exports = lock(&self.exports);
        let (ending, staying) = std::mem::take(&mut *exports).into_iter().partition(goes);
        *exports = staying;
        drop(exports);
        let ending: Vec<NbdExport> = ending;
        if ending.is_empty() {
            let socket = socket.map(Path::to_owned);
            return Err(NbdExportError::None { socket }.into());
        }
        ending.iter().for_each(NbdExport::hang_up);
        let writes = ending.iter().any(|one| !one.spec.read_only);
        let locked = ending.iter().filter(|one| self.needs_lock(&one.spec));
        let servers: Vec<_> = locked.map(|one| Arc::clone(&one.server)).collect();
        // Close the sockets before waiting for the remaining requests.
        drop(ending);
        let keeps_lock = servers.is_empty() || self.is_lock_used();
        if keeps_lock && !writes { Ok(()) } else { self.end_locked(servers, keeps_lock) }
    }

    /// Waits for the last request of exports that needed the lock. Then flushes, and releases the
    /// lock unless others use it.
    fn end_locked(
        self: &Arc<Self>,
        servers: Vec<Arc<NbdServer>>,
        keeps_lock: bool,
    ) -> Result<(), ServedDiskError> {
        let verb = self.ending_verb().unwrap_or("disk.unexport");
        let deadline = self.deadline();
        let left = || deadline.saturating_duration_since(Instant::now());
        if !servers.iter().all(|server| server.wait_ended(left())) {
            let requests: u64 = servers.iter().map(|server| server.connections() as u64).sum();
            self.mark_stuck(verb, requests);
            let wait = |server: &Arc<NbdServer>| while !server.wait_ended(LONG) {};
            self.clean_up_after(move || servers.iter().for_each(wait));
            if keeps_lock {
                return Err(self.stuck_error(verb, format!("{requests} requests")));
            }
        } else if keeps_lock {
            let disk = Arc::clone(&self.disk);
            let work = move || disk.sync();
            return self.run_with_stop_deadline(deadline, verb, "a flush", work);
        }
        self.release(deadline, verb)
    }

    /// Ends all exports, if there are any.
    pub(super) fn end_exports(self: &Arc<Self>) -> Result<(), ServedDiskError> {
        match self.unexport(None) {
            Err(ServedDiskError::Nbd(NbdExportError::None { .. })) => Ok(()),
            outcome => outcome,
        }
    }

    /// Stops accepting clients. New clients wait in the backlogs.
    ///
    /// # Errors
    /// The process cannot open more descriptors. [`Self::open_exports`] undoes a partial pause.
    pub(crate) fn shut_exports(&self) -> io::Result<()> {
        lock(&self.exports).iter().try_for_each(|one| one.gate.pause())
    }

    /// Accepts clients again.
    pub(crate) fn open_exports(&self) {
        lock(&self.exports).iter().for_each(|one| one.gate.resume());
    }

    /// Disconnects all clients and accepts no more. Does not wait.
    pub(super) fn hang_up_exports(&self) {
        lock(&self.exports).iter().for_each(NbdExport::hang_up);
    }

    /// Disconnects all clients, which may connect again. Does not wait.
    pub(super) fn disconnect_clients(&self) {
        lock(&self.exports).iter().for_each(|one| one.server.disconnect());
    }

    /// Restores the exports of a disk that is taken over. A read-only export that cannot be
    /// restored is dropped: its clients are not guests, and notice when they connect. The same
    /// applies to a writable export of a disk that was activated since. The wait for storage ends
    /// at the deadline only if `in_time` is true.
    ///
    /// # Errors
    /// A writable export cannot be restored, or a read-only one that needs the lock cannot be
    /// restored yet. It stays preserved.
    pub(crate) fn restore_exports(
        self: &Arc<Self>,
        specs: &[ExportSpec],
        sockets: Vec<ListenerParts>,
        in_time: bool,
    ) -> Result<(), ServedDiskError> {
        let deadline = in_time.then(|| self.deadline());
        for (spec, parts) in specs.iter().zip(sockets) {
            // A refused disk may have been activated since.
            let needs_lock = self.needs_lock(spec) && !self.is_active();
            let waits =
                |error: &ServedDiskError| needs_lock && (!spec.read_only || error.is_passing());
            let started =
                Listener::adopt(parts).map_err(ServedDiskError::from).and_then(|listener| {
                    if !spec.read_only && !needs_lock {
                        return Err(NbdExportError::Active.into());
                    }
                    let listener = Arc::new(listener);
                    let started = self.start_export(spec, Arc::clone(&listener), deadline);
                    match (&started, Arc::into_inner(listener)) {
                        // Clients wait in the socket's backlog.
                        (Err(error), Some(listener)) if waits(error) => listener.close_keep_files(),
                        _ => {}
                    }
                    started
                });
            let socket = spec.socket.display();
            match started {
                Ok(()) => tracing::info!(disk = spec.id, %socket, "exported again"),
                Err(error) if waits(&error) => return Err(error),
                Err(error) => {
                    let cause = crate::error::error_chain(&error);
                    tracing::error!(disk = spec.id, %socket, "export not restored: {cause}");
                }
            }
        }
        Ok(())
    }

    /// Ends all exports and leaves the files of their sockets, which stay preserved.
    pub(super) fn release_exports_keep_files(self: &Arc<Self>) {
        let exports = std::mem::take(&mut *lock(&self.exports));
        let locked = exports.iter().any(|one| self.needs_lock(&one.spec));
        exports.into_iter().for_each(NbdExport::leave_socket);
        if locked {
            // No client was served, so no flush is needed.
            let _ = self.release(self.deadline(), "disk.export");
        }
    }

    /// Returns the specs of the exports.
    pub(crate) fn export_specs(&self) -> Vec<ExportSpec> {
        lock(&self.exports).iter().map(|one| one.spec.clone()).collect()
    }

    /// Duplicates the sockets of the exports, in the same order.
    pub(super) fn export_sockets(&self) -> io::Result<Vec<ListenerParts>> {
        let exports = lock(&self.exports);
        let listeners = exports.iter().filter_map(|one| one.listener.as_ref());
        listeners.map(|listener| listener.parts()).collect()
    }

    /// Watches the files of the exports' preserved sockets from now on.
    pub(super) fn watch_export_sockets(&self, keeper_client: &KeeperClient) {
        for one in &*lock(&self.exports) {
            if let Some(listener) = &one.listener {
                keeper_client.watch_socket(listener, access(&one.spec));
            }
        }
    }

    /// Returns statistics of the exports.
    pub(crate) fn export_stats(&self) -> Vec<ExportStats> {
        lock(&self.exports).iter().map(NbdExport::stats).collect()
    }
}
