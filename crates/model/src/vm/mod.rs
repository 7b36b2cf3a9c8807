//! Machines: their power states and what can be done to them.
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
//! A reboot ends in `Running`, from `Running` or `Paused`. `power_state_reset` makes `Halted` of
//! any state: what is there of a domain is ended.

pub mod exits;
mod facts;
mod gate;

use crate::wire_names::named;

pub use facts::{GuestFeatures, Strictness, Tristate, VmFacts};
pub(crate) use gate::check_device;
pub use gate::{allowed, check, power_states};

named! {
    /// Whether a machine runs.
    PowerState {
        /// It has no domain.
        Halted = "Halted",
        /// It has a domain whose CPUs stand still.
        Paused = "Paused",
        /// It has a domain whose CPUs run.
        Running = "Running",
        /// It has no domain; its memory lies on a disk.
        Suspended = "Suspended",
    }
}

impl PowerState {
    /// As parameters of errors write it.
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
    /// What can be done to a machine. Not all of it is done here; see [`check`].
    VmOp {
        /// Keep its disks and settings as they are now.
        Snapshot = "snapshot",
        /// Make another one that shares its disks' content.
        Clone = "clone",
        /// Make another one with full copies of its disks.
        Copy = "copy",
        /// Make a template from a description.
        CreateTemplate = "create_template",
        /// Go back to a snapshot.
        Revert = "revert",
        /// Keep its memory as well as its disks and settings.
        Checkpoint = "checkpoint",
        /// Snapshot with file systems at rest.
        SnapshotWithQuiesce = "snapshot_with_quiesce",
        /// Make the disks that its template describes.
        Provision = "provision",
        /// Start it.
        Start = "start",
        /// Start it on a host.
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
        /// Make it halted, whatever is recorded and whatever is there.
        PowerStateReset = "power_state_reset",
        /// End its domain and start it again.
        HardReboot = "hard_reboot",
        /// Write its memory to a disk and end its domain.
        Suspend = "suspend",
        /// Checkpoint, as a suspended machine sees it.
        Csvm = "csvm",
        /// Go on after a suspend.
        Resume = "resume",
        /// Go on after a suspend, on a host.
        ResumeOn = "resume_on",
        /// Move it to another host of the pool.
        PoolMigrate = "pool_migrate",
        /// Move it with its disks.
        MigrateSend = "migrate_send",
        /// Tell what it was started with.
        GetBootRecord = "get_boot_record",
        /// Send the guest a system request key.
        SendSysrq = "send_sysrq",
        /// Send the guest a trigger.
        SendTrigger = "send_trigger",
        /// Ask a service domain what it serves.
        QueryServices = "query_services",
        /// Shut down cleanly, and hard if that fails.
        Shutdown = "shutdown",
        /// Call something inside the guest.
        CallPlugin = "call_plugin",
        /// Change its memory target.
        ChangingMemoryLive = "changing_memory_live",
        /// Wait until it has reached its memory target.
        AwaitingMemoryLive = "awaiting_memory_live",
        /// Change the range of its memory target.
        ChangingDynamicRange = "changing_dynamic_range",
        /// Change its most and least memory.
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
        /// Change what its firmware has stored.
        ChangingNvram = "changing_NVRAM",
        /// Ask whether an operation would be let begin.
        AssertOperationValid = "assert_operation_valid",
        /// Read or record one of its metrics.
        DataSourceOp = "data_source_op",
        /// Work out its allowed operations again.
        UpdateAllowedOperations = "update_allowed_operations",
        /// Make a template of it, or a machine of a template.
        MakeIntoTemplate = "make_into_template",
        /// Make it from a file.
        Import = "import",
        /// Write it to a file.
        Export = "export",
        /// Write its settings to a file.
        MetadataExport = "metadata_export",
        /// Being put back to a snapshot.
        Reverting = "reverting",
        /// Forget it.
        Destroy = "destroy",
        /// Give it a virtual TPM.
        CreateVtpm = "create_vtpm",
    }
}
