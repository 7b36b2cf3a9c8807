//! VM records for the toolstack.
//!
//! # Model
//! [`DbRecords`] reads VM records for [`toolstack::machines`] and writes the effects of operations.
//! Only this module and [`facts`](crate::facts) interpret fields. `current` maintains the
//! operations under way.
//!
//! # Invariants
//! The effects of each step are one change. Nothing here waits, except `current` for the end of
//! another operation.

pub(crate) mod boot;
mod boot_file;
pub(crate) mod boot_times;
pub(crate) mod effects;
pub(crate) mod fields;
pub(crate) mod interface;
pub(crate) mod machine_config;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Mutex, PoisonError};

use model::id::{Domid, VbdId, VifId, VmId};
use model::nic::NicLimits;
use model::plan::{Deadlines, Effect};
use model::refusal::Refusal;
use model::vbd::{DiskLimits, Tuning};
use toolstack::machines::{MachineRecord, Records};
use xenapi::Value;
use xenapi::table::{vbd, vif, vm};

use crate::clock::Clock;
pub use boot_file::BootDirs;

use crate::db::{Db, Object};

/// VM records of the database, for the toolstack.
pub struct DbRecords {
    db: Db,
    clock: Clock,
    /// Directories of kernels and ramdisks.
    boot: BootDirs,
    deadlines: Deadlines,
    /// URL of the server without a path, for consoles.
    url: String,
    /// VMs with a new domain whose CPUs have not run yet.
    fresh: Mutex<BTreeSet<VmId>>,
}

impl DbRecords {
    /// Creates the reader of this database. Kernels and ramdisks may come from these directories
    /// only. `url` is that of the server without a path, for consoles.
    pub fn new(db: Db, clock: Clock, boot: BootDirs, deadlines: Deadlines, url: String) -> Self {
        Self { db, clock, boot, deadlines, url, fresh: Mutex::default() }
    }
}

impl fmt::Debug for DbRecords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DbRecords").field("boot", &self.boot).finish_non_exhaustive()
    }
}

/// Returns a domain number above all recorded ones, including those in pending ops. New domains are
/// numbered from it.
pub fn first_domid(db: &Db) -> Domid {
    let numbers = db.read(|view| {
        let domid = |machine: &Object| match machine.get(vm::Field::domid.into()) {
            Some(Value::Int(number)) => u32::try_from(*number).ok(),
            _ => None,
        };
        let before =
            |machine: &Object| crate::ops::pending_op::of(view, machine.reference())?.domid;
        let numbers = |machine| [domid(machine), before(machine).map(|Domid(number)| number)];
        view.all(&vm::CLASS).flat_map(numbers).flatten().max()
    });
    Domid(numbers.unwrap_or_default().saturating_add(1))
}

/// Returns the record of a VM that can be started.
///
/// # Errors
/// A sentence: the kernel is missing or not allowed, or memory or CPUs are out of range.
pub(crate) fn bootable(db: &Db, vm: VmId, places: &BootDirs) -> Result<MachineRecord, String> {
    let machine_config = db.read(|view| {
        let machine = view.by_uuid(&vm::CLASS, &vm.to_string())?;
        machine_config::read(view, machine, Deadlines::default())
    });
    let machine_config::MachineConfig { mut machine_record, boot_request: asked, bootable } =
        machine_config.map_err(|error| error.to_string())?;
    machine_record.spec.boot = asked.boot(&bootable, places)?;
    machine_record.spec.validate().map_err(|error| error.to_string())?;
    Ok(machine_record)
}

impl Records for DbRecords {
    fn machines(&self) -> Vec<VmId> {
        self.db.read(machine_config::all)
    }

    fn machine(&self, vm: VmId) -> Result<MachineRecord, Refusal> {
        let machine_config = self.db.read(|view| {
            let machine = view.by_uuid(&vm::CLASS, &vm.to_string())?;
            machine_config::read(view, machine, self.deadlines)
        });
        let machine_config =
            machine_config.map_err(|error| Refusal::NotAllowed(error.to_string()))?;
        let machine_config::MachineConfig { mut machine_record, boot_request: asked, bootable } =
            machine_config;
        // A start has checked the boot files before. Other operations do not need them.
        if let Ok(boot) = asked.boot(&bootable, &self.boot) {
            machine_record.spec.boot = boot;
        }
        Ok(machine_record)
    }

    fn disk_settings(&self, vbd: VbdId) -> Option<(DiskLimits, Tuning)> {
        let settings = self.db.read(|view| {
            let slot = view.by_uuid(&vbd::CLASS, &vbd.to_string())?;
            machine_config::disk_settings(view, slot)
        });
        settings.ok()
    }

    fn vif_limits(&self, vif: VifId) -> Option<NicLimits> {
        let limits = self.db.read(|view| {
            let device = view.by_uuid(&vif::CLASS, &vif.to_string())?;
            interface::may(view, device)
        });
        limits.ok()
    }

    fn record_effects(&self, vm: VmId, effects: &[Effect]) {
        if !effects.iter().any(effects::is_recorded) {
            return;
        }
        // The lock is held during the change, so that two changes of one VM keep their order.
        let mut all = self.fresh.lock().unwrap_or_else(PoisonError::into_inner);
        let was = all.contains(&vm);
        let now = self.clock.date();
        let Ok(fresh) =
            self.db.write_observed(|tx| effects::write(tx, vm, effects, was, (now, &self.url)))
        else {
            all.remove(&vm);
            return;
        };
        if fresh {
            all.insert(vm);
        } else {
            all.remove(&vm);
        }
    }
}
