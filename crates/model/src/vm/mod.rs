//! Machines: their power states and operations.
//!
//! ```text
//!             start, start_on                     suspend
//!   +--------+ ------------> +---------+ --------------------> +-----------+
//!   | Halted |               | Running |                       | Suspended |
//!   +--------+ <------------ +---------+ <-------------------- +-----------+
//!       ^      shutdown, the   |     ^        resume, resume_on       |
//!       |      guest's own end |     |                                |
//!       |                pause |     | unpause                        |
//!       |                      v     |                                |
//!       |   hard_shutdown    +--------+                               |
//!       +------------------- | Paused |                               |
//!       |                    +--------+                hard_shutdown  |
//!       +-------------------------------------------------------------+
//! ```
//! A reboot leads from `Running` or `Paused` to `Running`. `power_state_reset` leads from any state
//! to `Halted` and ends any domain.

pub mod exits;
mod facts;
mod gate;

use crate::wire_names::named;

pub use facts::{GuestFeatures, Strictness, Tristate, VmFacts};
pub(crate) use gate::check_device;
pub use gate::{allowed, check, power_states};

named! {
    /// Power state of a machine.
    PowerState {
        /// The machine has no domain.
        Halted = "Halted",
        /// The machine has a domain whose CPUs are stopped.
        Paused = "Paused",
        /// The machine has a domain whose CPUs run.
        Running = "Running",
        /// The machine has no domain; its memory is on a disk.
        Suspended = "Suspended",
    }
}

impl PowerState {
    /// Returns the name for error parameters.
    pub fn error_name(self) -> &'static str {
        match self {
            Self::Halted => "halted",
            Self::Paused => "paused",
            Self::Running => "running",
            Self::Suspended => "suspended",
        }
    }
}

named! {
    /// Operation on a machine. Ringway does not implement all of them; see [`check`].
    VmOp {
        /// Take a snapshot of its disks and settings.
        Snapshot = "snapshot",
        /// Create another machine that shares its disks' content.
        Clone = "clone",
        /// Create another machine with full copies of its disks.
        Copy = "copy",
        /// Create a template from a description.
        CreateTemplate = "create_template",
        /// Go back to a snapshot.
        Revert = "revert",
        /// Take a snapshot of its memory, disks and settings.
        Checkpoint = "checkpoint",
        /// Take a snapshot with quiesced file systems.
        SnapshotWithQuiesce = "snapshot_with_quiesce",
        /// Create the disks that its template describes.
        Provision = "provision",
        /// Start it.
        Start = "start",
        /// Start it on a given host.
        StartOn = "start_on",
        /// Stop its CPUs.
        Pause = "pause",
        /// Let its CPUs run again.
        Unpause = "unpause",
        /// Ask the guest to shut down and wait for it.
        CleanShutdown = "clean_shutdown",
        /// Ask the guest to reboot and wait for it.
        CleanReboot = "clean_reboot",
        /// End its domain.
        HardShutdown = "hard_shutdown",
        /// Make it halted, regardless of its record and its domain.
        PowerStateReset = "power_state_reset",
        /// End its domain and start it again.
        HardReboot = "hard_reboot",
        /// Write its memory to a disk and end its domain.
        Suspend = "suspend",
        /// Checkpoint, as a suspended machine sees it.
        Csvm = "csvm",
        /// Continue after a suspend.
        Resume = "resume",
        /// Continue after a suspend, on a given host.
        ResumeOn = "resume_on",
        /// Move it to another host of the pool.
        PoolMigrate = "pool_migrate",
        /// Move it with its disks.
        MigrateSend = "migrate_send",
        /// Return the settings that it was started with.
        GetBootRecord = "get_boot_record",
        /// Send the guest a system request key.
        SendSysrq = "send_sysrq",
        /// Send the guest a trigger.
        SendTrigger = "send_trigger",
        /// Ask a service domain for its services.
        QueryServices = "query_services",
        /// Shut down cleanly, or hard if that fails.
        Shutdown = "shutdown",
        /// Call a plugin inside the guest.
        CallPlugin = "call_plugin",
        /// Change its memory target.
        ChangingMemoryLive = "changing_memory_live",
        /// Wait until it has reached its memory target.
        AwaitingMemoryLive = "awaiting_memory_live",
        /// Change the range of its memory target.
        ChangingDynamicRange = "changing_dynamic_range",
        /// Change its maximum and minimum memory.
        ChangingStaticRange = "changing_static_range",
        /// Change all limits of its memory.
        ChangingMemoryLimits = "changing_memory_limits",
        /// Change its shadow memory.
        ChangingShadowMemory = "changing_shadow_memory",
        /// Change its shadow memory while it runs.
        ChangingShadowMemoryLive = "changing_shadow_memory_live",
        /// Change the number of its CPUs.
        ChangingVcpus = "changing_VCPUs",
        /// Change the number of its CPUs while it runs.
        ChangingVcpusLive = "changing_VCPUs_live",
        /// Change the variables of its firmware.
        ChangingNvram = "changing_NVRAM",
        /// Check whether an operation may begin.
        AssertOperationValid = "assert_operation_valid",
        /// Read or record one of its metrics.
        DataSourceOp = "data_source_op",
        /// Compute its allowed operations again.
        UpdateAllowedOperations = "update_allowed_operations",
        /// Make it a template, or make a template a machine.
        MakeIntoTemplate = "make_into_template",
        /// Create it from a file.
        Import = "import",
        /// Write it to a file.
        Export = "export",
        /// Write its settings to a file.
        MetadataExport = "metadata_export",
        /// Revert it to a snapshot (in progress).
        Reverting = "reverting",
        /// Remove its record.
        Destroy = "destroy",
        /// Add a virtual TPM.
        CreateVtpm = "create_vtpm",
    }
}
