//! Reconciles records with the host: guest exits, leftovers of a former daemon, and storage after a
//! restart.
//!
//! # Model
//! [`begin`] runs once, after [`Machines::discover`] and before clients may connect. It attaches
//! SRs, reconciles the record of every VM with its observed state, and then follows guest events.
//! Work that takes longer than [`BEGIN_DEADLINE`], because storage hangs, continues in the
//! background.
//!
//! Pending ops of a former daemon are finished first (`records::pending_ops`). A requested end is
//! not a crash.
//!
//! Disks whose storage is full are recorded and reported.
//!
//! Addresses that a guest uses on its networks are recorded where no agent reports them.
//!
//! A guest exit triggers the configured action ([`model::vm::exits`]), which queues with the other
//! operations of its VM. An exit that an operation has caused belongs to that operation: by then
//! the VM has another domain, or none.
//!
//! [`Machines::discover`]: toolstack::machines::Machines::discover

mod autostart;
pub(crate) mod full_storage;
mod guest_exit;
mod guest_metrics;
mod guest_poller;
mod pending_ops;
pub(crate) mod pifs;
pub(crate) mod restarts;
mod sr_connect;

use std::sync::Arc;
use std::time::Duration;

use model::id::{Domid, VifId, VmId};
use model::plan::{DomainState, MachineOp, RunState};
use model::vm::PowerState;
use model::vm::exits::DomainExit;
use tokio::sync::mpsc::Receiver;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};
use toolstack::hv::{DomainEvent, DomainInfo};
use toolstack::machines::OpError;
use xenapi::ApiError;
use xenapi::table::vm;

use crate::app::AppState;
use crate::calls::{pif, vbd, vif};
use crate::db::{Ref, View};
use crate::ops::message::{MessageDraft, create_message};
use crate::ops::pending_op::PendingOp;
use crate::ops::run::{OpCaller, VmOpRequest, run_vm_op};
use crate::records::boot_times::{follow_boots, forget_stages, learn_boot_stages};
use crate::records::fields::int;
use crate::records::machine_config;
use guest_poller::GuestPoller;

/// Longest time that a start waits for storage and VMs before it accepts clients.
pub const BEGIN_DEADLINE: Duration = Duration::from_secs(5);

/// Delays in seconds before each attempt to reconcile a VM whose guest has released a device.
const LEFT_AFTER: [u64; 7] = [0, 1, 2, 4, 8, 16, 32];

/// Reconciles records with the host and keeps them so. `domain_info` is the result of
/// [`Machines::discover`](toolstack::machines::Machines::discover). `boot` is the kernel's boot ID.
pub async fn begin(app: &Arc<AppState>, domain_info: &[DomainInfo], boot: &str) {
    let end = Instant::now() + BEGIN_DEADLINE;
    let same_boot = autostart::same_boot(app, boot);
    forget_stages(app);
    tokio::spawn(follow_boots(app.clone()));
    // Read these now: later pending ops belong to this daemon.
    let starts = pending_ops::starts(app);
    let mut storage = sr_connect::all(app);
    let _ = timeout_at(end, async { while storage.join_next().await.is_some() {} }).await;
    storage.detach_all();
    let mut settled = JoinSet::new();
    let machines = app.db.read(machine_config::all);
    report_unknown_domains(app, &machines, domain_info);
    // Read these before guest events, which also create pending ops.
    let start_record = app.db.read(|view| {
        machines.into_iter().filter_map(|vm| StartRecord::of(view, vm).ok()).collect::<Vec<_>>()
    });
    for machine in start_record {
        let app = app.clone();
        settled.spawn(async move { agree(&app, &machine, same_boot).await });
    }
    let guests = Arc::new(GuestPoller::default());
    if let Some(events) = app.drivers.hv.events() {
        tokio::spawn(follow(app.clone(), guests.clone(), events));
    }
    if !same_boot {
        full_storage::forget(app);
    }
    if let Some(full_disks) = app.drivers.io.full_disks() {
        tokio::spawn(full_storage::follow(app.clone(), full_disks));
    }
    if let Some(claims) = app.drivers.net.claims() {
        tokio::spawn(follow_claims(app.clone(), guests, claims));
    }
    let _ = timeout_at(end, async { while settled.join_next().await.is_some() {} }).await;
    settled.detach_all();
    pending_ops::begin_starts(app, starts, same_boot);
    vbd::reapply(app);
    vif::reapply(app);
    pif::management::refresh(app).await;
    pif::replug(app);
}

/// Record of a VM as the former daemon left it.
struct StartRecord {
    vm: VmId,
    machine: Ref,
    power: PowerState,
    domid: Option<Domid>,
    pending_op: Option<PendingOp>,
}

impl StartRecord {
    fn of(view: &View<'_>, vm: VmId) -> Result<Self, ApiError> {
        let machine = view.by_uuid(&vm::CLASS, &vm.to_string())?.clone();
        let power = machine_config::power(view, &machine)?;
        let domid = u32::try_from(int(view, &machine, vm::Field::domid)?).ok().map(Domid);
        let pending_op = crate::ops::pending_op::of(view, &machine);
        Ok(Self { vm, machine, power, domid, pending_op })
    }
}

/// Reconciles one VM.
async fn agree(app: &Arc<AppState>, start_record: &StartRecord, same_boot: bool) {
    let StartRecord { vm, machine, power, domid, pending_op: owed } = start_record;
    if let Some(pending_op) = owed {
        return pending_ops::go_on(app, *vm, machine, pending_op).await;
    }
    let alive = matches!(power, PowerState::Running | PowerState::Paused);
    match app.machines.domain(*vm) {
        DomainState::Present { domid, run: RunState::Ended(exit) } if alive => {
            guest_exit::ended(app, *vm, domid, exit).await;
        }
        // After a host reboot, a missing domain is no guest exit. Without a domain number, an
        // unfinished operation had already ended the domain.
        DomainState::Absent | DomainState::Remains if alive && same_boot && domid.is_some() => {
            guest_exit::ended(app, *vm, domid.unwrap_or(Domid(0)), DomainExit::Killed).await;
        }
        _ => settle(app, *vm).await,
    }
}

/// Reconciles a VM. Remaining differences are reported by the VM's next operation.
pub(crate) async fn settle(app: &AppState, vm: VmId) {
    let _ = try_settle(app, vm).await;
}

async fn try_settle(app: &AppState, vm: VmId) -> Result<(), OpError> {
    run_vm_op(app, &OpCaller::nobody(), &VmOpRequest::quiet(vm, MachineOp::Reconcile)).await
}

/// Reconciles a VM whose guest has released a device after its operation gave up. This updates the
/// record and frees the host's resources. While QEMU does not answer, the device state is unknown,
/// so the attempt is repeated. A VM with a pending op is reconciled by that operation.
async fn left(app: &AppState, vm: VmId) {
    for wait in LEFT_AFTER.into_iter().map(Duration::from_secs) {
        tokio::time::sleep(wait).await;
        let is_owed = |view: &View<'_>| {
            let machine = view.by_uuid(&vm::CLASS, &vm.to_string())?;
            Ok::<_, ApiError>(crate::ops::pending_op::of(view, machine).is_some())
        };
        // A destroyed VM needs no reconcile.
        if app.db.read(is_owed).unwrap_or(true) {
            return;
        }
        let is_busy = matches!(try_settle(app, vm).await, Err(OpError::Busy));
        let domain = app.machines.domain(vm);
        if !is_busy && !matches!(domain, DomainState::Present { run: RunState::Unresponsive, .. }) {
            return;
        }
    }
}

/// Reports domains of unknown VMs and leaves them running. After a restore of old state, the user
/// may still want these guests.
fn report_unknown_domains(app: &AppState, known: &[VmId], domain_info: &[DomainInfo]) {
    for stranger in domain_info.iter().filter(|one| !known.contains(&one.vm)) {
        let uuid = stranger.vm.to_string();
        let body = format!("A guest runs of a machine that is not recorded: {uuid}");
        let (name, cls) = ("VM_NOT_RECORDED", "VM");
        let message_draft = MessageDraft { name, priority: 2, cls, uuid: &uuid, body: &body };
        create_message(&app.db, &message_draft, app.clock.date());
    }
}

/// Handles domain events, each in its own task, so that no VM waits for another.
async fn follow(app: Arc<AppState>, guests: Arc<GuestPoller>, mut events: Receiver<DomainEvent>) {
    while let Some(event) = events.recv().await {
        let (app, guests) = (app.clone(), guests.clone());
        tokio::spawn(async move {
            match event {
                DomainEvent::Ended { vm, domid, exit, .. } => {
                    guest_exit::ended(&app, vm, domid, exit).await;
                }
                DomainEvent::Unplugged { vm } => left(&app, vm).await,
                DomainEvent::GuestReady { vm } => {
                    app.machines.guest_ready(vm);
                    guests.ask(&app, vm);
                    learn_boot_stages(&app, vm).await;
                }
            }
        });
    }
}

/// Handles addresses that guests use on their networks.
async fn follow_claims(app: Arc<AppState>, guests: Arc<GuestPoller>, mut claims: Receiver<VifId>) {
    while let Some(vif) = claims.recv().await {
        // The VIF may be destroyed meanwhile.
        if let Ok(vm) = app.db.read(|view| guest_metrics::whose(view, vif)) {
            guests.ask(&app, vm);
        }
    }
}
