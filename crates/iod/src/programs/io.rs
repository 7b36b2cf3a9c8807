//! The `ringway-io` program, which serves many disks and NICs.

use std::io::Write as _;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use anyhow::Context;
use clap::Parser;
use rustix::process::{Signal, getppid, set_parent_process_death_signal};
use vhost_user::{Access, Listener, SocketError, StopSignal};

use crate::accept_gate::AcceptGate;
use crate::control::ControlServer;
use crate::disk_registry::DiskRegistry;
use crate::inherited_fds::adopt;
use crate::keeper::{Keeper, KeeperConfig, ServiceManager, given_socket};
use crate::keeper_client::CONTROL;
use crate::keeper_link::{Link, PreservedEntry};
use crate::metrics::{self, Address, ScrapeHandler};
use crate::options::io::{IoCommand, IoOptions};
use crate::pool::{Pool, PoolSize};
use crate::trials::Trials;
use crate::worker_init::WorkerInit;
use crate::{handover, limits, open_disk, signals, socket_watch, worker_init};

/// Process name in process lists.
const PROGRAM: &str = "ringway-io";

/// Runs the program with the arguments of this process.
pub fn main() -> ExitCode {
    let parent = getppid();
    let options = IoOptions::parse();
    crate::prepare();
    let result = match &options {
        IoOptions { command: Some(IoCommand::Upgrade(options)), .. } => {
            super::upgrade::run(options).map(|()| ExitCode::SUCCESS)
        }
        IoOptions { probe: true, .. } => probe().map(|()| ExitCode::SUCCESS),
        IoOptions { worker: true, .. } => work(&options).map(|()| ExitCode::SUCCESS),
        IoOptions { control, .. } => keep(control.as_deref(), &options, parent),
    };
    crate::exit(PROGRAM, result)
}

/// Holds the control socket, and keeps a worker that serves.
fn keep(
    control: Option<&Path>,
    options: &IoOptions,
    parent: Option<rustix::process::Pid>,
) -> anyhow::Result<ExitCode> {
    let control = control.context("--control is missing")?;
    if options.die_with_parent {
        set_parent_process_death_signal(Some(Signal::TERM)).context("--die-with-parent")?;
        // The parent may have died before the kernel knew this setting.
        anyhow::ensure!(getppid() == parent, "the parent process has ended");
    }
    limits::raise_open_files();
    let ready = options.ready_fd.map(adopt).transpose().context("--ready-fd")?;
    let signals = signals::count().context("cannot watch for signals")?;
    let mut keeper = Keeper::new(KeeperConfig {
        program: PROGRAM,
        options: std::env::args_os().skip(1).collect(),
        ready,
        manager: ServiceManager::from_environment()?,
        signals,
        pause_max: Duration::from_millis(options.restart_pause_max.into()),
        die_together: options.die_with_parent,
    });
    let access = control_access(options);
    let listener = match given_socket()? {
        Some(socket) => Listener::given(socket),
        None => Listener::bind(control, &access),
    };
    match listener {
        Ok(listener) => {
            anyhow::ensure!(
                listener.path() == control,
                "the service manager listens on {}, and --control says {}; make them the same",
                listener.path().display(),
                control.display()
            );
            if let Some(address) = &options.metrics {
                let (key, preserved_entry) = metrics::hold(address)?;
                keeper.insert(key, preserved_entry);
            }
            let parts = listener.parts().context("cannot preserve the control socket")?;
            listener.close_keep_files();
            keeper.insert(
                CONTROL,
                PreservedEntry { sockets: vec![parts], ..PreservedEntry::default() },
            );
        }
        // A worker that lost its keeper may hold the socket.
        Err(taken @ SocketError::Taken { .. }) => {
            keeper.take_over(control).with_context(|| taken.to_string())?;
        }
        Err(error) => return Err(error.into()),
    }
    keeper.run()
}

fn control_access(options: &IoOptions) -> Access {
    Access { mode: Some(options.control_mode), group: None }
}

/// Serves the devices that the keeper preserves, that another worker hands over, or that callers
/// attach.
fn work(options: &IoOptions) -> anyhow::Result<()> {
    let signals = signals::watch().context("cannot watch for signals")?;
    let WorkerInit { keeper_client, link, predecessor } = worker_init::begin(PROGRAM)?;
    let open_files = limits::raise_open_files();
    open_disk::share_storages_in(options.sharing.folder());
    let asked = options.reactors.map(|reactors| PoolSize::asked(reactors.into()));
    let size = asked.unwrap_or_else(PoolSize::of_host);
    let suspicious = predecessor.is_none().then(|| keeper_client.faults());
    let trials = suspicious.and_then(Trials::begin);
    let pool = Pool::start(size).context("cannot start reactors")?.with_trials(trials);
    let pool = Arc::new(pool);
    let polling = options.polling.spec();
    let disk_registry =
        Arc::new(DiskRegistry::with(Arc::clone(&pool), open_files, keeper_client.clone(), polling));
    let end = StopSignal::new().context("cannot make a signal")?;
    let enough = StopSignal::new().context("cannot make a signal")?;
    let scrapers = Arc::new(AcceptGate::new().context("cannot make a signal")?);
    let server = ControlServer::new(Arc::clone(&disk_registry), end.clone(), Arc::clone(&scrapers));
    let server = server.context("cannot make a signal")?;
    worker_init::spawn_keeper_thread(&keeper_client, link, &end)
        .context("cannot listen to the keeper")?;
    let (listen, calls) = take_calls(&server, &end).context("cannot start a thread")?;
    let control = keeper_client.entry(CONTROL).context("the keeper has no control socket")??;
    let control = control.sockets.into_iter().next().context("there is no control socket")?;
    if let Some(way) = &predecessor {
        let taken = handover::take(way, &keeper_client, &pool, disk_registry.nics());
        disk_registry.take_over(taken.context("cannot take over from the former worker")?);
    }
    // A dropped listener removes its files. So create it only after all other steps succeeded.
    let listener = Listener::adopt(control)?;
    // The worker answers calls from here on. Send `Ready` before any answer and before all other
    // messages: the keeper takes any other message as a sign that the worker serves without waiting
    // for `Go`.
    keeper_client.ready();
    disk_registry.restore();
    keeper_client.watch_socket(&listener, control_access(options));
    socket_watch::start(&keeper_client);
    tracing::info!(control = %listener.path().display(), reactors = %size, "taking calls");
    // The thread that accepts calls waits for this listener.
    let _ = listen.send(listener);
    let address = options.metrics.clone();
    let metrics =
        scrape(address, predecessor, enough.clone(), Arc::clone(&scrapers), &disk_registry);
    let waited = end.wait(Some(signals.as_fd()), None).context("cannot wait for signals");
    if !disk_registry.begin_end() {
        // The thread that handed over ends this process after its reply.
        loop {
            std::thread::park();
        }
    }
    keeper_client.ending();
    // Callers get errors while the disks are detached.
    disk_registry.shut_down();
    enough.stop();
    scrapers.stop();
    server.stop();
    let served = calls.join().unwrap_or(Ok(()));
    metrics.map(JoinHandle::join);
    tracing::info!("ended");
    waited.and(served.map_err(Into::into))
}

type Calls = JoinHandle<Result<(), SocketError>>;

/// Starts a thread that accepts calls on the listener that it receives.
fn take_calls(
    server: &Arc<ControlServer>,
    end: &StopSignal,
) -> std::io::Result<(Sender<Listener>, Calls)> {
    let (listen, listener) = mpsc::channel();
    let (server, end) = (Arc::clone(server), end.clone());
    let work = move || {
        // The sender is dropped if the process could not start.
        let Ok(listener) = listener.recv() else { return Ok(()) };
        let served = server.run(&listener);
        // Without callers, no one could end this process in order.
        end.stop();
        served
    };
    Ok((listen, Builder::new().name("calls".into()).spawn(work)?))
}

/// Serves metrics on a separate thread. A failure is only logged, because serving disks is more
/// important.
fn scrape(
    address: Option<Address>,
    predecessor: Option<Link>,
    enough: StopSignal,
    gate: Arc<AcceptGate>,
    disk_registry: &Arc<DiskRegistry>,
) -> Option<JoinHandle<()>> {
    // A slow scraper must not keep the registry alive.
    let page = Arc::downgrade(disk_registry);
    let scraped: ScrapeHandler = Arc::new(move || {
        page.upgrade().map_or_else(String::new, |disk_registry| disk_registry.metrics())
    });
    let ours = Arc::downgrade(disk_registry);
    let keeper_client = disk_registry.keeper_client().clone();
    let serve = move || {
        let Some(address) = address else { return metrics::drop_preserved(&keeper_client) };
        if let Some(socket) =
            metrics::take(&address, &keeper_client, predecessor.as_ref(), &enough)?
        {
            metrics::serve(&socket, &gate, &scraped);
            if ours.upgrade().is_some_and(|disk_registry| disk_registry.is_handed_over()) {
                socket.leave();
            }
        }
        anyhow::Ok(())
    };
    let work = move || {
        if let Err(error) = serve() {
            tracing::error!("no metrics are served: {error:#}");
        }
    };
    let thread = Builder::new().name("metrics".into()).spawn(work);
    thread.inspect_err(|error| tracing::error!("no metrics are served: {error}")).ok()
}

fn probe() -> anyhow::Result<()> {
    let probe = reactor::probe();
    let report = serde_json::json!({
        "usable": probe.usable,
        "problem": probe.problem,
        "defer_taskrun": probe.defer_taskrun,
        "complete": probe.complete,
        "reactors": PoolSize::of_host().to_string(),
    });
    Ok(writeln!(std::io::stdout(), "{report}")?)
}
