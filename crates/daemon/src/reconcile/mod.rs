//! Records follow what really happens: guests that end by themselves, machines that ended while
//! nobody watched, storage after a restart.
//!
//! # Model
//! [`begin`] comes once, after [`Machines::learn`] and before anybody is let in: SRs are connected,
//! every machine's record and reality are made to agree, and what guests do from then on is
//! followed. What takes longer than [`BEGIN_DEADLINE`], because storage hangs, goes on by itself.
//!
//! What a daemon before this one has begun and not ended is brought to its end first
//! (`records::pending_ops`): an end that somebody wanted is no crash.
//!
//! Addresses that a guest claims on its networks are recorded where no agent in it tells them.
//!
//! A guest that ends by itself gets what is set for that ([`model::vm::guest_exit`]), one operation at a
//! time with all others of its machine. An end that somebody has asked for is that operation's:
//! by then the machine has another domain, or none.
//!
//! [`Machines::learn`]: toolstack::machines::Machines::learn

mod autostart;
mod guest_exit;
mod guest_metrics;
mod guest_poller;
mod pending_ops;
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
use crate::calls::carry::{OpCaller, VmOpRequest, run_vm_op};
use crate::calls::message::{MessageDraft, create_message};
use crate::calls::{pif, vbd, vif};
use crate::db::{Ref, View};
use crate::records::fields::int;
use crate::records::owed::PendingOp;
use crate::records::{self, machine_config};
use guest_poller::GuestPoller;

/// How long a start waits for storage and machines before it lets people in.
pub const BEGIN_DEADLINE: Duration = Duration::from_secs(5);

/// Seconds before each try to see what a guest has that has let go of something.
const LEFT_AFTER: [u64; 7] = [0, 1, 2, 4, 8, 16, 32];

/// Makes records and reality agree, and keeps them so from now on. `found` is what
/// [`Machines::learn`](toolstack::machines::Machines::learn) has found; `boot` names this boot of
/// the host, as the kernel does.
pub async fn begin(app: &Arc<AppState>, domain_info: &[DomainInfo], boot: &str) {
    let end = Instant::now() + BEGIN_DEADLINE;
    let same_boot = autostart::same_boot(app, boot);
    // Looked up now: what guests do from here on is somebody's who lives.
    let starts = pending_ops::starts(app);
    let mut storage = sr_connect::all(app);
    let _ = timeout_at(end, async { while storage.join_next().await.is_some() {} }).await;
    storage.detach_all();
    let mut settled = JoinSet::new();
    let machines = app.db.read(machine_config::all);
    strangers(app, &machines, domain_info);
    // Before guests are followed: what they do makes others owe something, too.
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
    if let Some(claims) = app.drivers.net.claims() {
        tokio::spawn(follow_claims(app.clone(), guests, claims));
    }
    let _ = timeout_at(end, async { while settled.join_next().await.is_some() {} }).await;
    settled.detach_all();
    pending_ops::begin_starts(app, starts, same_boot);
    vbd::reapply(app);
    vif::reapply(app);
    pif::replug(app);
}

/// A machine as a daemon before this one has left its record.
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
        let pending_op = records::owed::of(view, &machine);
        Ok(Self { vm, machine, power, domid, pending_op })
    }
}

/// Makes one machine's record and reality agree.
async fn agree(app: &Arc<AppState>, start_record: &StartRecord, same_boot: bool) {
    let StartRecord { vm, machine, power, domid, pending_op: owed } = start_record;
    if let Some(pending_op) = owed {
        return pending_ops::go_on(app, *vm, machine, pending_op).await;
    }
    let alive = matches!(power, PowerState::Running | PowerState::Paused);
    match app.machines.domain(*vm) {
        DomainState::There { domid, run: RunState::Ended(exit) } if alive => {
            guest_exit::ended(app, *vm, domid, exit).await;
        }
        // A host that was switched off has killed nobody's guest. One without a number was taken
        // down by an operation that did not come to its end.
        DomainState::Absent | DomainState::Remains if alive && same_boot && domid.is_some() => {
            guest_exit::ended(app, *vm, domid.unwrap_or(Domid(0)), DomainExit::Killed).await;
        }
        _ => settle(app, *vm).await,
    }
}

/// What does not agree after that is told when it is next asked for something.
pub(crate) async fn settle(app: &AppState, vm: VmId) {
    let _ = try_settle(app, vm).await;
}

async fn try_settle(app: &AppState, vm: VmId) -> Result<(), OpError> {
    run_vm_op(app, &OpCaller::nobody(), &VmOpRequest::quiet(vm, MachineOp::Settle)).await
}

/// A guest has let go of a device after everybody had given up: that is recorded, and what the host
/// kept for it is free. While its emulator does not answer, nobody knows what the guest has: it is
/// asked again. A machine that is owed an operation settles with that.
async fn left(app: &AppState, vm: VmId) {
    for wait in LEFT_AFTER.into_iter().map(Duration::from_secs) {
        tokio::time::sleep(wait).await;
        let is_owed = |view: &View<'_>| {
            let machine = view.by_uuid(&vm::CLASS, &vm.to_string())?;
            Ok::<_, ApiError>(records::owed::of(view, machine).is_some())
        };
        // Of one that is gone, nothing is recorded.
        if app.db.read(is_owed).unwrap_or(true) {
            return;
        }
        let is_busy = matches!(try_settle(app, vm).await, Err(OpError::Busy));
        let domain = app.machines.domain(vm);
        if !is_busy && !matches!(domain, DomainState::There { run: RunState::Silent, .. }) {
            return;
        }
    }
}

/// Domains of machines that nobody knows are left alone: whoever put back an old state may want
/// their guests.
fn strangers(app: &AppState, known: &[VmId], domain_info: &[DomainInfo]) {
    for stranger in domain_info.iter().filter(|one| !known.contains(&one.vm)) {
        let uuid = stranger.vm.to_string();
        let body = format!("A guest runs of a machine that is not recorded: {uuid}");
        let (name, cls) = ("VM_NOT_RECORDED", "VM");
        let message_draft = MessageDraft { name, priority: 2, cls, uuid: &uuid, body: &body };
        create_message(&app.db, &message_draft, app.clock.date());
    }
}

/// Follows what happens by itself; each machine's for itself, so that none waits for another's.
async fn follow(app: Arc<AppState>, guests: Arc<GuestPoller>, mut events: Receiver<DomainEvent>) {
    while let Some(event) = events.recv().await {
        let (app, guests) = (app.clone(), guests.clone());
        tokio::spawn(async move {
            match event {
                DomainEvent::Ended { vm, domid, exit, .. } => {
                    guest_exit::ended(&app, vm, domid, exit).await;
                }
                DomainEvent::Unplugged { vm } => left(&app, vm).await,
                DomainEvent::GuestReady { vm } => guests.ask(&app, vm),
            }
        });
    }
}

/// Follows what guests claim on their networks.
async fn follow_claims(app: Arc<AppState>, guests: Arc<GuestPoller>, mut claims: Receiver<VifId>) {
    while let Some(vif) = claims.recv().await {
        // One that is gone meanwhile has no addresses.
        if let Ok(vm) = app.db.read(|view| guest_metrics::whose(view, vif)) {
            guests.ask(&app, vm);
        }
    }
}
