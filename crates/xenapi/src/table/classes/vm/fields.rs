//! What a machine is.

use super::super::prelude::*;

fields! { "VM", VmAdmin;
    /// Its UUID.
    uuid: ro(Str),
    /// What may be asked of it now.
    allowed_operations: ro(Set(&Enum(&enums::VM_OPERATIONS))).opt().volatile(),
    /// What it is doing: from a task to an operation.
    current_operations: ro(Map(&Str, &Enum(&enums::VM_OPERATIONS))).opt().volatile(),
    /// Its name.
    name_label: rw(Str).opt(),
    /// What it is for.
    name_description: rw(Str).opt(),
    /// Whether it runs.
    power_state: rc(Enum(&enums::VM_POWER_STATE)).opt(),
    /// A version that its maker gave it.
    user_version: rw(Int),
    /// It is a template: never started, only cloned.
    is_a_template: rw(Bool),
    /// It is a template that came with the product.
    is_default_template: ro(Bool).opt(),
    /// Where its memory is while it is suspended.
    suspend_VDI: rc(Ref("VDI")).opt(),
    /// The host on which it runs.
    resident_on: ro(Ref("host")),
    /// The host on which it is about to run.
    scheduled_to_be_resident_on: ro(Ref("host")).opt(),
    /// The host on which it had best be started.
    affinity: rw(Ref("host")).writer(VmPowerAdmin),
    /// Memory that it needs beside its own, in bytes.
    memory_overhead: ro(Int).opt(),
    /// Memory that it is to have now, in bytes.
    memory_target: rc(Int).opt(),
    /// Most memory that it can ever have, in bytes.
    memory_static_max: rc(Int),
    /// Most memory that it may have now, in bytes.
    memory_dynamic_max: rc(Int),
    /// Least memory that it may have now, in bytes.
    memory_dynamic_min: rc(Int),
    /// Least memory with which it works, in bytes.
    memory_static_min: rc(Int),
    /// How its CPUs are shared out: weight, cap, mask.
    VCPUs_params: rw(PAIRS),
    /// Most CPUs that it can have.
    VCPUs_max: rc(Int),
    /// CPUs with which it starts.
    VCPUs_at_startup: rc(Int),
    /// What follows when its guest reboots softly.
    actions_after_softreboot: rw(Enum(&enums::ON_SOFTREBOOT_BEHAVIOR)).opt(),
    /// What follows when its guest powers off.
    actions_after_shutdown: rw(Enum(&enums::ON_NORMAL_EXIT)),
    /// What follows when its guest reboots.
    actions_after_reboot: rw(Enum(&enums::ON_NORMAL_EXIT)),
    /// What follows when its guest crashes.
    actions_after_crash: rc(Enum(&enums::ON_CRASH_BEHAVIOUR)),
    /// Its consoles.
    consoles: ro(Set(&Ref("console"))).inverse("console", "VM"),
    /// Its network devices.
    VIFs: ro(Set(&Ref("VIF"))).inverse("VIF", "VM"),
    /// Its disk devices.
    VBDs: ro(Set(&Ref("VBD"))).inverse("VBD", "VM"),
    /// Its USB devices.
    VUSBs: ro(Set(&Ref("VUSB"))),
    /// Its crash dumps.
    crash_dumps: ro(Set(&Ref("crashdump"))),
    /// Its TPMs.
    VTPMs: ro(Set(&Ref("VTPM"))),
    /// The program that finds its kernel.
    PV_bootloader: rw(Str),
    /// The path of its kernel on the host.
    PV_kernel: rw(Str),
    /// The path of its initial RAM disk on the host.
    PV_ramdisk: rw(Str),
    /// The kernel's command line.
    PV_args: rw(Str),
    /// Arguments of the program that finds its kernel.
    PV_bootloader_args: rw(Str),
    /// The kernel's command line for guests of long ago.
    PV_legacy_args: rw(Str),
    /// Empty: it boots its kernel; else it boots by firmware.
    HVM_boot_policy: rc(Str),
    /// How firmware boots: from which devices, in which order.
    HVM_boot_params: rw(PAIRS),
    /// How much memory is kept for shadow pages, as a multiple.
    HVM_shadow_multiplier: rc(Float).or(Number(1.0)),
    /// What kind of computer it is.
    platform: rw(PAIRS),
    /// PCI devices of the host that it has.
    PCI_bus: rw(Str),
    /// Whatever clients keep with it; some keys are settings of the toolstack.
    other_config: rw(PAIRS),
    /// The number of its domain; -1 while it does not run.
    domid: ro(Int).or(Whole(-1)),
    /// The architecture of its domain; empty while it does not run.
    domarch: ro(Str),
    /// What the CPUs could do on which it was last booted.
    last_boot_CPU_flags: rc(PAIRS).opt(),
    /// It manages the host.
    is_control_domain: ro(Bool),
    /// What is measured of it.
    metrics: ro(Ref("VM_metrics")),
    /// What its guest tells.
    guest_metrics: ro(Ref("VM_guest_metrics")),
    /// Its record as it was when it last booted.
    last_booted_record: rc(Str).opt(),
    /// Bounds of its settings, as XML.
    recommendations: rw(Str),
    /// What its guest finds in its own store.
    xenstore_data: rw(PAIRS).opt(),
    /// It is started again when its host fails.
    ha_always_run: rc(Bool).opt(),
    /// How much is done for that.
    ha_restart_priority: rc(Str).opt(),
    /// It is a snapshot: never started, only cloned.
    is_a_snapshot: ro(Bool).opt(),
    /// The machine of which it is a snapshot.
    snapshot_of: ro(Ref("VM")).opt(),
    /// Its snapshots.
    snapshots: ro(Set(&Ref("VM"))).inverse("VM", "snapshot_of"),
    /// When it was taken as a snapshot.
    snapshot_time: ro(Date).opt(),
    /// The name of this snapshot elsewhere.
    transportable_snapshot_id: ro(Str).opt(),
    /// Data kept with it.
    blobs: ro(BLOBS).opt(),
    /// Words by which people sort.
    tags: rw(STRS).opt().writer(VmOperator),
    /// Operations that are refused, each with the reason.
    blocked_operations: rw(Map(&Enum(&enums::VM_OPERATIONS), &Str)).opt(),
    /// How it was when it was taken as a snapshot.
    snapshot_info: ro(PAIRS).opt(),
    /// Its record when it was taken as a snapshot.
    snapshot_metadata: ro(Str).opt(),
    /// The machine from which it comes.
    parent: ro(Ref("VM")).opt(),
    /// Machines that come from it.
    children: ro(Set(&Ref("VM"))).inverse("VM", "parent"),
    /// What its firmware says.
    bios_strings: ro(PAIRS).opt(),
    /// The policy by which it was protected.
    protection_policy: rc(Ref("VMPP")).opt(),
    /// That policy took it as a snapshot.
    is_snapshot_from_vmpp: rc(Bool).opt(),
    /// When snapshots of it are taken.
    snapshot_schedule: rc(Ref("VMSS")).opt(),
    /// Such a schedule took it as a snapshot.
    is_vmss_snapshot: rc(Bool).opt(),
    /// The machines with which it starts and stops.
    appliance: rc(Ref("VM_appliance")).opt(),
    /// How long the next one waits when it starts, in seconds.
    start_delay: rc(Int).opt(),
    /// How long the next one waits when it stops, in seconds.
    shutdown_delay: rc(Int).opt(),
    /// Its place among those that start together.
    order: rc(Int).opt(),
    /// Its GPUs.
    VGPUs: ro(Set(&Ref("VGPU"))),
    /// PCI devices of the host that it has now.
    attached_PCIs: ro(Set(&Ref("PCI"))),
    /// Where its memory goes when it is suspended.
    suspend_SR: rw(Ref("SR")).opt(),
    /// How often it was recovered.
    version: rc(Int).opt(),
    /// Its generation: another after each revert and clone.
    generation_id: rc(Str).or(Text("0:0")),
    /// The version of virtual hardware that it needs.
    hardware_platform_version: rw(Int).opt(),
    /// It has the vendor's device by which Windows finds drivers.
    has_vendor_device: rc(Bool).opt(),
    /// A setting waits for its next boot.
    requires_reboot: ro(Bool).opt(),
    /// The template from which it comes, by a name that never changes.
    reference_label: rc(Str).opt(),
    /// How it is virtualised.
    domain_type: rc(Enum(&enums::DOMAIN_TYPE)).or(Text("unspecified")),
    /// What UEFI keeps.
    NVRAM: rc(PAIRS).opt(),
    /// What an update asks for at once.
    pending_guidances: ro(Set(&Enum(&enums::UPDATE_GUIDANCES))).opt(),
    /// What an update asks for soon.
    pending_guidances_recommended: ro(Set(&Enum(&enums::UPDATE_GUIDANCES))).opt(),
    /// What an update asks for some day.
    pending_guidances_full: ro(Set(&Enum(&enums::UPDATE_GUIDANCES))).opt(),
}
