//! The `ringway-blk` program, which serves one disk.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clap::Parser;
use model::spec::{Backend, FileRef};
use rustix::event::{EventfdFlags, eventfd};
use tracing::field::display;
use vhost_user::{StopSignal, Woken};

use crate::inherited_fds::{adopt, connected, report_ready};
use crate::keeper::{Keeper, KeeperConfig, ServiceManager};
use crate::keeper_client::KeeperClient;
use crate::open_disk::Sources;
use crate::options::blk::{BlkOptions, CAPABILITIES};
use crate::pool::{Pool, PoolSize};
use crate::served_disk::{ServedDisk, SocketRole};
use crate::trials::Trials;
use crate::worker_init::WorkerInit;
use crate::{limits, open_disk, signals, socket_watch, worker_init};

/// Process name in process lists.
const PROGRAM: &str = "ringway-blk";

/// Runs the program with the arguments of this process.
pub fn main() -> ExitCode {
    // QEMU's convention: this option overrides all others, even invalid ones.
    if std::env::args_os().any(|arg| arg == OsStr::new("--print-capabilities")) {
        return crate::print(PROGRAM, CAPABILITIES);
    }
    let options = BlkOptions::parse();
    crate::prepare();
    let result = match &options {
        BlkOptions { worker: true, .. } => work(&options),
        BlkOptions { supervise: true, .. } => return crate::exit(PROGRAM, keep(&options)),
        _ => run(&options, None),
    };
    crate::exit(PROGRAM, result.map(|()| ExitCode::SUCCESS))
}

/// Runs a keeper, which keeps a worker that serves the disk.
fn keep(options: &BlkOptions) -> anyhow::Result<ExitCode> {
    // Check the spec first: a mistake in it would stop every worker.
    let spec = options.spec()?;
    handed_in(&spec.backend)?;
    limits::raise_open_files();
    let setup = KeeperConfig {
        program: PROGRAM,
        options: std::env::args_os().skip(1).collect(),
        ready: options.ready_fd.map(adopt).transpose().context("--ready-fd")?,
        manager: ServiceManager::from_environment()?,
        signals: signals::count().context("cannot watch for signals")?,
        pause_max: Duration::from_millis(options.restart_pause_max.into()),
        // No keeper can adopt this worker, so it ends with its keeper. Otherwise it would block the
        // next start. A memory disk is the exception: its bytes would end with the worker while a
        // guest uses them.
        die_together: !spec.backend.is_in_memory(),
    };
    Keeper::new(setup).run()
}

/// Serves under a keeper.
fn work(options: &BlkOptions) -> anyhow::Result<()> {
    let WorkerInit { keeper_client, link, .. } = worker_init::begin(PROGRAM)?;
    let keeper_stop = StopSignal::new().context("cannot make a signal")?;
    worker_init::spawn_keeper_thread(&keeper_client, link, &keeper_stop)
        .context("cannot listen to the keeper")?;
    run(options, Some((keeper_client, keeper_stop)))
}

fn run(options: &BlkOptions, keeper: Option<(KeeperClient, StopSignal)>) -> anyhow::Result<()> {
    let spec = options.spec()?;
    // First, while no number is one of this process's own descriptors.
    let files = handed_in(&spec.backend)?;
    let sources = Sources { files, journal_in_file: keeper.is_none(), ..Sources::default() };
    let limit = limits::raise_open_files();
    open_disk::share_storages_in(options.sharing.folder());
    let tree_files = limits::of_tree(&spec.backend);
    let taken = limits::of_disks([], tree_files);
    limits::check_open_files(limit, taken, spec.queues)?;
    let ready = options.ready_fd.map(adopt).transpose().context("--ready-fd")?;
    let signals = signals::watch().context("cannot watch for signals")?;
    let (keeper_client, keeper_stop) = keeper.unzip();
    let end = either(signals, keeper_stop).context("cannot watch for signals")?;
    let asked = options.reactors.map(|reactors| PoolSize::asked(reactors.into()));
    let size = asked.unwrap_or_else(|| PoolSize::of_host().at_most(spec.queues));
    let trials = keeper_client.as_ref().map(KeeperClient::faults).and_then(Trials::begin);
    let pool = Pool::start(size).context("cannot start reactors")?.with_trials(trials);
    pool.memory_budget()
        .limit_files(limit.saturating_sub(limits::of_disks([spec.queues], tree_files)));
    let pool = Arc::new(pool);
    let held = keeper_client.as_ref().and_then(KeeperClient::only_disk).transpose()?;
    let served_disk = match held {
        Some((preserved_disk, preserved_fds)) => {
            ServedDisk::restore(&preserved_disk, preserved_fds, pool)?
        }
        None => ServedDisk::open(spec, sources, pool)?,
    };
    served_disk.tree().notes.iter().for_each(|note| tracing::warn!("{note}"));
    let disk = Disk { options, served_disk, keeper_client, end };
    let served = disk.serve(ready);
    // Flush the guest's writes whether or not serving failed.
    let left = disk.leave(served.is_ok());
    served?;
    left
}

/// Returns duplicates of the inherited descriptors that a tree names.
fn handed_in(backend: &Backend) -> anyhow::Result<BTreeMap<u32, OwnedFd>> {
    let numbers = backend.files().filter_map(|file| match file {
        FileRef::Path(_) => None,
        FileRef::Fd { fd } => Some(*fd),
    });
    let own = |number: u32| {
        let context = || format!("--backend: fd:{number} is not open; start this program with it");
        Ok((number, adopt(i32::try_from(number)?).with_context(context)?))
    };
    numbers.map(own).collect()
}

/// The disk and the events that end it.
struct Disk<'a> {
    options: &'a BlkOptions,
    served_disk: Arc<ServedDisk>,
    /// Client of the keeper, if there is one.
    keeper_client: Option<KeeperClient>,
    /// Becomes readable when the process must end.
    end: OwnedFd,
}

impl Disk<'_> {
    /// Serves until the process must end or no front-end can connect any more.
    fn serve(&self, ready: Option<OwnedFd>) -> anyhow::Result<()> {
        let (served_disk, options) = (&self.served_disk, self.options);
        if !self.activate()? {
            return Ok(());
        }
        let source = match options.fd {
            Some(fd) => {
                let stream = connected(fd).with_context(|| format!("--fd {fd}"))?;
                Some(SocketRole::Connected(stream))
            }
            None => {
                if !options.connect && !served_disk.listens() {
                    served_disk.listen()?;
                }
                served_disk.source()
            }
        };
        if let Some(keeper_client) = &self.keeper_client {
            keeper_client
                .preserve_disk(&served_disk.to_preserved(), served_disk.preserved_fds()?)?;
            served_disk.watch_sockets(keeper_client);
            socket_watch::start(keeper_client);
        }
        let ended = StopSignal::new().context("cannot make a signal")?;
        served_disk.serve(source, Some(ended.clone()))?;
        let size = served_disk.geometry().size;
        let socket = served_disk.spec().socket.as_ref().map(|socket| display(socket.display()));
        tracing::info!(socket, bytes = size, "serving");
        match (&self.keeper_client, ready) {
            // The keeper reports readiness to the caller.
            (Some(keeper_client), _) => keeper_client.ready(),
            (None, Some(ready)) => report_ready(&ready).context("--ready-fd")?,
            (None, None) => {}
        }
        match ended.wait(Some(self.end.as_fd()), None).context("cannot wait for signals")? {
            Woken::Stopped => Ok(served_disk.join_session_thread()?),
            Woken::Readable | Woken::TimedOut => Ok(()),
        }
    }

    /// Locks the image. This may wait for the I/O of a dead process. Returns false if the process
    /// must end first.
    fn activate(&self) -> anyhow::Result<bool> {
        let done = StopSignal::new().context("cannot make a signal")?;
        std::thread::scope(|scope| {
            let work = || {
                let activated = self.served_disk.activate();
                done.stop();
                activated
            };
            let activating = std::thread::Builder::new().name("activate".into());
            let activating =
                activating.spawn_scoped(scope, work).context("cannot start a thread")?;
            let woken = done.wait(Some(self.end.as_fd()), None);
            let end = !matches!(woken, Ok(Woken::Stopped));
            if end {
                self.served_disk.disconnect_front_end();
            }
            match activating.join() {
                Ok(_) if end => Ok(false),
                Ok(activated) => Ok(activated.map(|()| true)?),
                Err(_) => anyhow::bail!("the disk cannot be activated"),
            }
        })
    }

    /// Flushes and closes the disk. Whatever a new worker needs to continue stays.
    fn leave(&self, in_order: bool) -> anyhow::Result<()> {
        let Some(keeper_client) = &self.keeper_client else {
            return Ok(self.served_disk.detach()?);
        };
        if in_order {
            keeper_client.ending();
            return Ok(self.served_disk.detach()?);
        }
        self.served_disk.disconnect_front_end();
        let _ = self.served_disk.join_session_thread();
        self.served_disk.release_keep_files();
        Ok(())
    }
}

/// Returns a descriptor that becomes readable on a signal, or when the keeper tells this process to
/// end.
fn either(signals: OwnedFd, keeper_stop: Option<StopSignal>) -> std::io::Result<OwnedFd> {
    let Some(keeper_stop) = keeper_stop else { return Ok(signals) };
    let either = eventfd(0, EventfdFlags::CLOEXEC)?;
    let writer = either.try_clone()?;
    let wait = move || {
        // The process must end whether this wait succeeds or fails.
        let _ = keeper_stop.wait(Some(signals.as_fd()), None);
        let _ = rustix::io::write(&writer, &1u64.to_ne_bytes());
    };
    std::thread::Builder::new().name("signals".into()).spawn(wait)?;
    Ok(either)
}
