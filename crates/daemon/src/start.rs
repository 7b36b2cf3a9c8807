//! Start and stop of the daemon.
//!
//! Order: lock the state directory, open the listeners, load the records, create the first records,
//! create the drivers, discover what runs on the host, and then serve. Clients that connect
//! meanwhile wait in the backlog, so that a restart refuses none.

use std::fs::{self, DirBuilder};
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use toolstack::machines::{self, Drivers, Machines};
use toolstack::store::RedbStore;

use crate::api_service::ApiService;
use crate::app::{self, AppState};
use crate::auth::pam::{Pam, SERVICE};
use crate::auth::{Users, passwords};
use crate::bootstrap::{self, BootstrapInput, HostFacts};
use crate::clock::Clock;
use crate::config::DaemonConfig;
use crate::dispatch::limits::{CallLimiter, MAX_WAITS_OF_USER};
use crate::http::{ApiHandler, ApiListener, Server, TlsIdentity, WebPages, tls_identity};
use crate::persistence::Persistence;
use crate::records::{BootDirs, DbRecords, first_domid};
use crate::service_manager::ServiceManager;
use crate::sessions::Sessions;
use crate::signals::Signals;
use crate::slices::Slices;
use crate::storage::{STORAGE_DEADLINE, Storage};
use crate::xapi_socket::XapiSocketLink;
use crate::{allowed_operations, copies, drivers, former_life, random, reconcile, restore};

/// Mode of the state directory: access for its owner only.
const STATE_MODE: u32 = 0o700;
/// Mode of the run directory: readable by all.
const RUN_MODE: u32 = 0o755;
/// Name of the database in the state directory.
const RECORDS: &str = "state.redb";
/// Name of the default password file in the state directory.
const PASSWORDS: &str = "password";
/// Type of the default SR.
const FIRST_SR: &str = "dir";
/// File with the kernel's boot ID.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// A remote address (RFC 5737). No packet is sent to it.
const FAR: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), 9);

/// Runs the daemon until a signal requests its end.
///
/// # Errors
/// Fails if the daemon cannot start or cannot stop in an orderly way.
pub async fn run(settings: DaemonConfig, manager: &ServiceManager) -> anyhow::Result<()> {
    let mut signals = Signals::begin().context("cannot set up signal handlers")?;
    state_directory(&settings.state)?;
    directory(&settings.run, RUN_MODE)?;
    let records = records_in(&settings.state);
    let mut store = former_life::open(&settings.state, &settings.run, &records)?;
    restore::apply(&settings.state, &settings.run, &mut store)?;
    // Slices come first, so that the rest of the start does not compete with guests.
    let slices = Arc::new(Slices::begin(&settings.slices)?);
    let begun = tokio::select! {
        begun = begin(&settings, store, &slices) => begun.map(Some),
        signal = signals.wait() => {
            tracing::info!("{signal} during the start; shutting down");
            Ok(None)
        }
    };
    match begun {
        Ok(Some(begun)) => serve(begun, &settings, manager, &mut signals).await,
        nothing => {
            slices.end();
            nothing.map(drop)
        }
    }
}

/// Application with open listeners, and their addresses.
type RunningDaemon = (Arc<AppState>, Server, String);

async fn serve(
    (app, server, places): RunningDaemon,
    settings: &DaemonConfig,
    manager: &ServiceManager,
    signals: &mut Signals,
) -> anyhow::Result<()> {
    tokio::spawn(copies::copy_daily(Arc::clone(&app), settings.state.clone()));
    let known = settings.known.as_deref();
    let xapi_socket_link = known.and_then(|link| XapiSocketLink::begin(link, &settings.socket));
    say(&format!("listening on {places}"));
    manager.ready();
    let broke_off = tokio::select! {
        signal = signals.wait() => {
            tracing::info!("{signal}: shutting down, VMs keep running");
            false
        }
        // A daemon without a working database would forget changes. A restart repairs this.
        () = app.persistence.wait_writer_died() => true,
    };
    if broke_off {
        tracing::error!("database writer failed; shutting down, VMs keep running");
    }
    manager.stopping();
    drop(xapi_socket_link);
    server.stop().await;
    app.slices.end();
    app.persistence.close().context("not all changes were stored")
}

async fn begin(
    settings: &DaemonConfig,
    store: RedbStore,
    slices: &Arc<Slices>,
) -> anyhow::Result<RunningDaemon> {
    let facts = HostFacts::read();
    let web = settings.web.clone();
    let pages = WebPages::read(web.directory.as_deref(), web.origins)?;
    let tls = tls_identity(&settings.state, &facts.hostname)?;
    let mut api_listeners = Vec::new();
    for listen in &settings.listen {
        api_listeners.push(ApiListener::tcp(*listen, &tls.config).await?);
    }
    api_listeners.push(ApiListener::unix(&settings.socket)?);
    slices.let_in(&settings.socket);
    let places: Vec<String> = api_listeners.iter().map(ToString::to_string).collect();
    let url = url(address(settings), &api_listeners);
    let app = house(settings, &facts, store, (slices, tls, url)).await?;
    let front: Arc<dyn ApiHandler> = Arc::new(ApiService::new(Arc::clone(&app)));
    Ok((app, Server::begin(api_listeners, &front, pages), places.join(" ")))
}

/// Builds the application behind the listeners.
async fn house(
    settings: &DaemonConfig,
    facts: &HostFacts,
    store: RedbStore,
    (slices, tls, url): (&Arc<Slices>, TlsIdentity, String),
) -> anyhow::Result<Arc<AppState>> {
    let clock = Clock::of_host();
    let (db, persistence) = Persistence::open(
        Box::new(store),
        random::bytes,
        allowed_operations::update_allowed,
        clock.date(),
    )?;
    let users = users(settings)?;
    let drivers = drivers::drivers(settings, slices.tree())?;
    let said = (slices.report(), &*url);
    update_host((settings, facts, said), &persistence, &drivers, &clock).await?;
    let usual_sr = settings.state.join(drivers::USUAL_SR);
    let boot = BootDirs { directories: settings.boot.clone(), usual_sr };
    let deadlines = settings.deadlines;
    let records = DbRecords::new(db.clone(), clock.clone(), boot.clone(), deadlines, url);
    let work = machines::MachinesConfig {
        limits: settings.limits,
        queue_deadline: settings.queue,
        first_domid: first_domid(&db),
        ..machines::MachinesConfig::new(settings.run.clone())
    };
    let app = Arc::new(AppState {
        db,
        persistence,
        sessions: Sessions::new(clock.clone(), users),
        tasks: Default::default(),
        call_limiter: Default::default(),
        wait_limiter: CallLimiter::new(usize::MAX, MAX_WAITS_OF_USER),
        writes: Default::default(),
        restarts: Default::default(),
        machines: Machines::new(drivers.clone(), Arc::new(records), work),
        storage: Storage::new(&drivers, STORAGE_DEADLINE),
        coalescer: Default::default(),
        drivers,
        slices: slices.clone(),
        clock,
        settings: app::OpSettings {
            boot,
            queue_deadline: settings.queue,
            limits: settings.limits,
            calibrate: settings.calibrate,
            state: settings.state.clone(),
            certificate: tls.certificate,
        },
    });
    app.spawn_tasks();
    let domain_info = app.machines.discover().await.context("cannot find out which VMs run")?;
    app.slices.sweep();
    let boot = fs::read_to_string(BOOT_ID).with_context(|| format!("cannot read {BOOT_ID}"))?;
    reconcile::begin(&app, &domain_info, boot.trim()).await;
    Ok(app)
}

/// Creates the first records if there are none, and updates the host's records.
async fn update_host(
    (settings, facts, (slices, url)): (&DaemonConfig, &HostFacts, (&str, &str)),
    persistence: &Persistence,
    drivers: &Drivers,
    clock: &Clock,
) -> anyhow::Result<()> {
    let (address, bridge) = (address(settings).to_string(), bridge());
    // The simulated host has a memory of its own.
    let memory = drivers.memory.read();
    let facts =
        HostFacts { memory_total: memory.total, memory_free: memory.available, ..facts.clone() };
    let setup = BootstrapInput {
        host: &facts,
        address: &address,
        url,
        product: &settings.product,
        kinds: &drivers.srs,
        bridge: &bridge,
        boot: &settings.boot,
        slices,
        now: clock.date(),
    };
    let empty = persistence.change(|tx| Ok(bootstrap::is_first(tx))).await?;
    let sr = match empty {
        true => Some(bootstrap::make_sr(drivers, FIRST_SR, &settings.state).await),
        false => None,
    };
    let sr = sr.transpose().context("cannot create the storage repository of this host")?;
    let change = persistence.change(|tx| {
        if let Some(sr) = &sr {
            bootstrap::create_initial(tx, &setup, sr)?;
        }
        bootstrap::refresh(tx, &setup)
    });
    Ok(change.await?)
}

/// Returns the path of the database in a state directory.
pub(crate) fn records_in(state: &Path) -> PathBuf {
    state.join(RECORDS)
}

/// Creates a state directory if it does not exist.
///
/// # Errors
/// Those of the system.
pub(crate) fn state_directory(path: &Path) -> anyhow::Result<()> {
    directory(path, STATE_MODE)
}

fn directory(path: &Path, mode: u32) -> anyhow::Result<()> {
    let made = DirBuilder::new().recursive(true).mode(mode).create(path);
    made.with_context(|| format!("cannot make the directory {}", path.display()))
}

/// Selects the source of users: the configured password file, else PAM, else a default password
/// file.
fn users(settings: &DaemonConfig) -> anyhow::Result<Users> {
    if let Some(named) = &settings.password_file {
        passwords::usable(named)?;
        return Ok(Users::File(named.clone()));
    }
    if let Some(pam) = Pam::of_host() {
        tracing::info!("logins use this host's users and passwords, by PAM service {SERVICE}");
        return Ok(Users::Pam(pam));
    }
    let path = settings.state.join(PASSWORDS);
    if passwords::make(&path, random::bytes())? {
        let line = format!("ringwayd: the password of root is in {}", path.display());
        logging::write_line(&line);
    }
    Ok(Users::File(path))
}

/// Returns the host's address: the first specific listen address, else the source address of a
/// route to a remote host.
fn address(settings: &DaemonConfig) -> IpAddr {
    let mut addresses = settings.listen.iter().map(|listen| listen.address.ip());
    let listen_address = addresses.find(|ip| !ip.is_unspecified() && !ip.is_loopback());
    let speaks = || {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
        socket.connect(FAR).ok()?;
        Some(socket.local_addr().ok()?.ip())
    };
    listen_address.or_else(speaks).unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST))
}

/// Returns the URL of the server without a path: of the first listener with TLS, else of the first
/// without. An unusual port is part of it.
fn url(host: IpAddr, api_listeners: &[ApiListener]) -> String {
    let host = match host {
        IpAddr::V4(address) => address.to_string(),
        IpAddr::V6(address) => format!("[{address}]"),
    };
    let mut all: Vec<(bool, u16)> = api_listeners.iter().filter_map(ApiListener::port).collect();
    all.sort_by_key(|(plain, _)| *plain);
    match all.first() {
        Some((true, 80)) => format!("http://{host}"),
        Some((true, port)) => format!("http://{host}:{port}"),
        Some((false, port)) if *port != 443 => format!("https://{host}:{port}"),
        _ => format!("https://{host}"),
    }
}

/// Returns a random bridge name, so that no other daemon of the host has the same.
fn bridge() -> String {
    let [one, two, three, ..] = random::bytes();
    format!("rwbr{one:02x}{two:02x}{three:02x}")
}

/// Prints a line on standard output, after the lines of the log so far. Errors are ignored.
fn say(line: &str) {
    logging::flush();
    let mut out = std::io::stdout().lock();
    let _closed = writeln!(out, "{line}").and_then(|()| out.flush());
}
