//! Fields of VMs.

use super::super::prelude::*;

fields! { "VM", VmAdmin;
    /// UUID.
    uuid: ro(Str),
    /// Operations that are currently allowed.
    allowed_operations: ro(Set(&Enum(&enums::VM_OPERATIONS))).opt().volatile(),
    /// Operations in progress, by task.
    current_operations: ro(Map(&Str, &Enum(&enums::VM_OPERATIONS))).opt().volatile(),
    /// Name.
    name_label: rw(Str).opt(),
    /// Description.
    name_description: rw(Str).opt(),
    /// Power state.
    power_state: rc(Enum(&enums::VM_POWER_STATE)).opt(),
    /// Version number from the creator of the VM.
    user_version: rw(Int),
    /// True for a template, which is never started, only cloned.
    is_a_template: rw(Bool),
    /// True for a template of the product.
    is_default_template: ro(Bool).opt(),
    /// VDI with the memory of a suspended VM.
    suspend_VDI: rc(Ref("VDI")).opt(),
    /// Host on which the VM runs.
    resident_on: ro(Ref("host")),
    /// Host on which the VM is about to run.
    scheduled_to_be_resident_on: ro(Ref("host")).opt(),
    /// Preferred host.
    affinity: rw(Ref("host")).writer(VmPowerAdmin),
    /// Memory that the VM needs besides its guest memory, in bytes.
    memory_overhead: ro(Int).opt(),
    /// Target of the current memory, in bytes.
    memory_target: rc(Int).opt(),
    /// Upper limit of memory at any time, in bytes.
    memory_static_max: rc(Int),
    /// Current upper limit of memory, in bytes.
    memory_dynamic_max: rc(Int),
    /// Current lower limit of memory, in bytes.
    memory_dynamic_min: rc(Int),
    /// Least memory with which the guest works, in bytes.
    memory_static_min: rc(Int),
    /// Scheduling parameters of the virtual CPUs: weight, cap, mask.
    VCPUs_params: rw(PAIRS),
    /// Most virtual CPUs.
    VCPUs_max: rc(Int),
    /// Virtual CPUs at start.
    VCPUs_at_startup: rc(Int),
    /// Action after a soft reboot of the guest.
    actions_after_softreboot: rw(Enum(&enums::ON_SOFTREBOOT_BEHAVIOR)).opt(),
    /// Action after the guest powers off.
    actions_after_shutdown: rw(Enum(&enums::ON_NORMAL_EXIT)),
    /// Action after the guest reboots.
    actions_after_reboot: rw(Enum(&enums::ON_NORMAL_EXIT)),
    /// Action after the guest crashes.
    actions_after_crash: rc(Enum(&enums::ON_CRASH_BEHAVIOUR)),
    /// Consoles of the VM.
    consoles: ro(Set(&Ref("console"))).inverse("console", "VM"),
    /// VIFs of the VM.
    VIFs: ro(Set(&Ref("VIF"))).inverse("VIF", "VM"),
    /// VBDs of the VM.
    VBDs: ro(Set(&Ref("VBD"))).inverse("VBD", "VM"),
    /// USB devices of the VM.
    VUSBs: ro(Set(&Ref("VUSB"))),
    /// Crash dumps of the VM.
    crash_dumps: ro(Set(&Ref("crashdump"))),
    /// TPMs of the VM.
    VTPMs: ro(Set(&Ref("VTPM"))),
    /// Boot loader that finds the kernel.
    PV_bootloader: rw(Str),
    /// Path of the kernel on the host.
    PV_kernel: rw(Str),
    /// Path of the initial RAM disk on the host.
    PV_ramdisk: rw(Str),
    /// Command line of the kernel.
    PV_args: rw(Str),
    /// Arguments of the boot loader.
    PV_bootloader_args: rw(Str),
    /// Command line of the kernel for legacy guests.
    PV_legacy_args: rw(Str),
    /// Boot policy. If empty, the VM boots its kernel, otherwise firmware.
    HVM_boot_policy: rc(Str),
    /// Parameters of the firmware boot, for example devices and their order.
    HVM_boot_params: rw(PAIRS),
    /// Multiplier of the memory for shadow pages.
    HVM_shadow_multiplier: rc(Float).or(Number(1.0)),
    /// Platform settings.
    platform: rw(PAIRS),
    /// PCI devices of the host that are passed to the VM.
    PCI_bus: rw(Str),
    /// Additional settings of clients. Some keys are settings of the toolstack.
    other_config: rw(PAIRS),
    /// Domain number, or -1 while the VM does not run.
    domid: ro(Int).or(Whole(-1)),
    /// Domain architecture. Empty while the VM does not run.
    domarch: ro(Str),
    /// CPU features of the last boot.
    last_boot_CPU_flags: rc(PAIRS).opt(),
    /// True if the VM manages the host.
    is_control_domain: ro(Bool),
    /// Metrics of the VM.
    metrics: ro(Ref("VM_metrics")),
    /// Metrics that the guest reports.
    guest_metrics: ro(Ref("VM_guest_metrics")),
    /// Record of the VM at its last boot.
    last_booted_record: rc(Str).opt(),
    /// Limits of the settings, as XML.
    recommendations: rw(Str),
    /// Data for the guest's xenstore.
    xenstore_data: rw(PAIRS).opt(),
    /// True if high availability restarts the VM after a host failure.
    ha_always_run: rc(Bool).opt(),
    /// Restart priority for high availability.
    ha_restart_priority: rc(Str).opt(),
    /// True for a snapshot, which is never started, only cloned.
    is_a_snapshot: ro(Bool).opt(),
    /// VM of which this one is a snapshot.
    snapshot_of: ro(Ref("VM")).opt(),
    /// Snapshots of the VM.
    snapshots: ro(Set(&Ref("VM"))).inverse("VM", "snapshot_of"),
    /// Time of the snapshot.
    snapshot_time: ro(Date).opt(),
    /// Identifier of the snapshot outside the pool.
    transportable_snapshot_id: ro(Str).opt(),
    /// Blobs of data stored with the object, by name.
    blobs: ro(BLOBS).opt(),
    /// Tags for sorting.
    tags: rw(STRS).opt().writer(VmOperator),
    /// Blocked operations, each with the reason.
    blocked_operations: rw(Map(&Enum(&enums::VM_OPERATIONS), &Str)).opt(),
    /// Information about the VM at the time of the snapshot.
    snapshot_info: ro(PAIRS).opt(),
    /// Record of the VM at the time of the snapshot.
    snapshot_metadata: ro(Str).opt(),
    /// VM from which this one was created.
    parent: ro(Ref("VM")).opt(),
    /// VMs that were created from this one.
    children: ro(Set(&Ref("VM"))).inverse("VM", "parent"),
    /// BIOS strings.
    bios_strings: ro(PAIRS).opt(),
    /// Protection policy.
    protection_policy: rc(Ref("VMPP")).opt(),
    /// True if the protection policy took the snapshot.
    is_snapshot_from_vmpp: rc(Bool).opt(),
    /// Snapshot schedule.
    snapshot_schedule: rc(Ref("VMSS")).opt(),
    /// True if a snapshot schedule took the snapshot.
    is_vmss_snapshot: rc(Bool).opt(),
    /// Appliance with which the VM starts and stops.
    appliance: rc(Ref("VM_appliance")).opt(),
    /// Delay before the next VM of the appliance starts, in seconds.
    start_delay: rc(Int).opt(),
    /// Delay before the next VM of the appliance stops, in seconds.
    shutdown_delay: rc(Int).opt(),
    /// Position in the start order of the appliance.
    order: rc(Int).opt(),
    /// Virtual GPUs of the VM.
    VGPUs: ro(Set(&Ref("VGPU"))),
    /// PCI devices of the host that are attached now.
    attached_PCIs: ro(Set(&Ref("PCI"))),
    /// SR for the memory when the VM is suspended.
    suspend_SR: rw(Ref("SR")).opt(),
    /// Number of recoveries.
    version: rc(Int).opt(),
    /// Generation id, which changes with each revert and clone.
    generation_id: rc(Str).or(Text("0:0")),
    /// Required version of the virtual hardware platform.
    hardware_platform_version: rw(Int).opt(),
    /// True if the VM has the vendor device, through which Windows finds drivers.
    has_vendor_device: rc(Bool).opt(),
    /// True if a setting takes effect only at the next boot.
    requires_reboot: ro(Bool).opt(),
    /// Permanent name of the template from which the VM was created.
    reference_label: rc(Str).opt(),
    /// Virtualization type.
    domain_type: rc(Enum(&enums::DOMAIN_TYPE)).or(Text("unspecified")),
    /// UEFI variables.
    NVRAM: rc(PAIRS).opt(),
    /// Guidance of updates that is mandatory.
    pending_guidances: ro(Set(&Enum(&enums::UPDATE_GUIDANCES))).opt(),
    /// Guidance of updates that is recommended.
    pending_guidances_recommended: ro(Set(&Enum(&enums::UPDATE_GUIDANCES))).opt(),
    /// Guidance of updates for their full effect.
    pending_guidances_full: ro(Set(&Enum(&enums::UPDATE_GUIDANCES))).opt(),
}
