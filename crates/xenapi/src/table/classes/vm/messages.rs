//! Messages of VMs.

use super::super::prelude::*;

/// Map from a VDI to its destination SR.
const DISKS: Type = Map(&Ref("VDI"), &Ref("SR"));
/// Map from a VIF to its destination network.
const DEVICES: Type = Map(&Ref("VIF"), &Ref("network"));
/// Map from a virtual GPU to its destination GPU group.
const GPUS: Type = Map(&Ref("VGPU"), &Ref("GPU_group"));

messages! {
    /// Starts the VM.
    VmOperator Long start(vm: Ref("VM"), start_paused: Bool, force: Bool);
    /// Starts the VM on this host.
    VmPowerAdmin Long start_on(vm: Ref("VM"), host: Ref("host"), start_paused: Bool, force: Bool);
    /// Requests the guest to power off, and waits for it.
    VmOperator Long clean_shutdown(vm: Ref("VM"));
    /// Ends the VM at once.
    VmOperator Long hard_shutdown(vm: Ref("VM"));
    /// Requests the guest to power off. If the guest does not, ends the VM.
    VmOperator Long shutdown(vm: Ref("VM"));
    /// Requests the guest to reboot.
    VmOperator Long clean_reboot(vm: Ref("VM"));
    /// Ends the VM at once and starts it again.
    VmOperator Long hard_reboot(vm: Ref("VM"));
    /// Pauses the virtual CPUs.
    VmOperator Long pause(vm: Ref("VM"));
    /// Resumes the virtual CPUs.
    VmOperator Long unpause(vm: Ref("VM"));
    /// Writes the memory to storage and ends the VM.
    VmOperator Long suspend(vm: Ref("VM"));
    /// Resumes a suspended VM.
    VmOperator Long resume(vm: Ref("VM"), start_paused: Bool, force: Bool);
    /// Resumes a suspended VM on this host.
    VmPowerAdmin Long resume_on(vm: Ref("VM"), host: Ref("host"), start_paused: Bool, force: Bool);
    /// Sets the power state to halted, whatever the actual state.
    PoolOperator Long power_state_reset(vm: Ref("VM"));
    /// Creates a snapshot of the disks, with a new name.
    VmPowerAdmin Long snapshot(vm: Ref("VM"), new_name: Str; ignore_vdis: Set(&Ref("VDI")))
        -> Ref("VM");
    /// Creates a snapshot of the disks after the guest has quiesced its file systems.
    VmPowerAdmin Long snapshot_with_quiesce(vm: Ref("VM"), new_name: Str) -> Ref("VM");
    /// Creates a snapshot of the disks and the memory.
    VmPowerAdmin Long checkpoint(vm: Ref("VM"), new_name: Str) -> Ref("VM");
    /// Reverts the VM to this snapshot.
    VmPowerAdmin Long revert(snapshot: Ref("VM"));
    /// Creates a clone whose disks share equal data.
    VmAdmin Long clone(vm: Ref("VM"), new_name: Str) -> Ref("VM");
    /// Creates a full copy with separate disks.
    VmAdmin Long copy(vm: Ref("VM"), new_name: Str, sr: Ref("SR")) -> Ref("VM");
    /// Creates the disks that the template defines.
    VmAdmin Long provision(vm: Ref("VM"));
    /// Migrates the running VM to another host of the pool.
    VmPowerAdmin Long pool_migrate(vm: Ref("VM"), host: Ref("host"), options: PAIRS);
    /// Migrates the VM with its disks.
    VmPowerAdmin Long migrate_send(vm: Ref("VM"), dest: PAIRS, live: Bool, vdi_map: DISKS,
        vif_map: DEVICES, options: PAIRS; vgpu_map: GPUS) -> Ref("VM");
    /// Fails if `migrate_send` would.
    VmPowerAdmin Long assert_can_migrate(vm: Ref("VM"), dest: PAIRS, live: Bool, vdi_map: DISKS,
        vif_map: DEVICES, options: PAIRS; vgpu_map: GPUS);
    /// Sets the four memory limits, in bytes.
    VmPowerAdmin Long set_memory_limits(self: Ref("VM"), static_min: Int, static_max: Int,
        dynamic_min: Int, dynamic_max: Int);
    /// Sets all memory limits except the least, in bytes.
    VmPowerAdmin Long set_memory(self: Ref("VM"), value: Int);
    /// Sets the upper limit of memory at any time, in bytes.
    VmPowerAdmin Long set_memory_static_max(self: Ref("VM"), value: Int);
    /// Sets the least memory with which the guest works, in bytes.
    VmPowerAdmin Long set_memory_static_min(self: Ref("VM"), value: Int);
    /// Sets the static minimum and maximum of memory, in bytes.
    VmPowerAdmin Long set_memory_static_range(self: Ref("VM"), min: Int, max: Int);
    /// Sets the current upper limit of memory, in bytes.
    VmPowerAdmin Long set_memory_dynamic_max(self: Ref("VM"), value: Int);
    /// Sets the current lower limit of memory, in bytes.
    VmPowerAdmin Long set_memory_dynamic_min(self: Ref("VM"), value: Int);
    /// Sets the dynamic minimum and maximum of memory, in bytes.
    VmPowerAdmin Long set_memory_dynamic_range(self: Ref("VM"), min: Int, max: Int);
    /// Sets the target of the current memory, in bytes.
    VmPowerAdmin Long set_memory_target_live(self: Ref("VM"), target: Int);
    /// Waits until the memory reaches its target.
    ReadOnly Long wait_memory_target_live(self: Ref("VM"));
    /// Returns the memory that the VM needs besides its guest memory, in bytes.
    ReadOnly Short compute_memory_overhead(vm: Ref("VM")) -> Int;
    /// Returns the largest guest memory that fits into this total, in bytes.
    ReadOnly Short maximise_memory(self: Ref("VM"), total: Int, approximate: Bool) -> Int;
    /// Returns whether the guest gives memory back on request.
    ReadOnly Short get_cooperative(self: Ref("VM")) -> Bool;
    /// Sets the most virtual CPUs.
    VmAdmin Long set_VCPUs_max(self: Ref("VM"), value: Int);
    /// Sets the virtual CPUs at start.
    VmAdmin Long set_VCPUs_at_startup(self: Ref("VM"), value: Int);
    /// Sets the current number of virtual CPUs.
    VmAdmin Long set_VCPUs_number_live(self: Ref("VM"), nvcpu: Int);
    /// Adds a current scheduling parameter of the virtual CPUs.
    VmAdmin Long add_to_VCPUs_params_live(self: Ref("VM"), key: Str, value: Str);
    /// Sets the multiplier of the memory for shadow pages.
    VmPowerAdmin Long set_HVM_shadow_multiplier(self: Ref("VM"), value: Float);
    /// Sets the current multiplier of the memory for shadow pages.
    VmPowerAdmin Long set_shadow_multiplier_live(self: Ref("VM"), multiplier: Float);
    /// Sets the action after the guest crashes.
    VmAdmin Short set_actions_after_crash(
        self: Ref("VM"), value: Enum(&enums::ON_CRASH_BEHAVIOUR));
    /// Sets the boot policy.
    VmAdmin Short set_HVM_boot_policy(self: Ref("VM"), value: Str);
    /// Sets the virtualization type.
    VmAdmin Short set_domain_type(self: Ref("VM"), value: Enum(&enums::DOMAIN_TYPE));
    /// Sets the UEFI variables.
    VmAdmin Short set_NVRAM(self: Ref("VM"), value: PAIRS);
    /// Adds a UEFI variable.
    VmAdmin Short add_to_NVRAM(self: Ref("VM"), key: Str, value: Str);
    /// Sets a UEFI variable.
    VmAdmin Short set_in_NVRAM(self: Ref("VM"), key: Str, value: Str);
    /// Removes a UEFI variable.
    VmAdmin Short remove_from_NVRAM(self: Ref("VM"), key: Str);
    /// Sets the BIOS strings.
    VmAdmin Short set_bios_strings(self: Ref("VM"), value: PAIRS);
    /// Copies the BIOS strings of the host.
    VmAdmin Short copy_bios_strings(vm: Ref("VM"), host: Ref("host"));
    /// Sets whether the VM has the vendor device.
    VmAdmin Short set_has_vendor_device(self: Ref("VM"), value: Bool);
    /// Sets the VDI with the memory of a suspended VM.
    PoolOperator Short set_suspend_VDI(self: Ref("VM"), value: Ref("VDI"));
    /// Sets the position in the start order of the appliance.
    PoolOperator Short set_order(self: Ref("VM"), value: Int);
    /// Sets the delay before the next VM of the appliance starts, in seconds.
    PoolOperator Short set_start_delay(self: Ref("VM"), value: Int);
    /// Sets the delay before the next VM of the appliance stops, in seconds.
    PoolOperator Short set_shutdown_delay(self: Ref("VM"), value: Int);
    /// Sets the restart priority for high availability.
    PoolOperator Short set_ha_restart_priority(self: Ref("VM"), value: Str);
    /// Sets whether high availability restarts the VM after a host failure.
    PoolOperator Short set_ha_always_run(self: Ref("VM"), value: Bool);
    /// Returns the device numbers that the next VBD may have.
    ReadOnly Short get_allowed_VBD_devices(vm: Ref("VM")) -> STRS;
    /// Returns the device numbers that the next VIF may have.
    ReadOnly Short get_allowed_VIF_devices(vm: Ref("VM")) -> STRS;
    /// Returns the hosts on which the VM could run.
    ReadOnly Short get_possible_hosts(vm: Ref("VM")) -> Set(&Ref("host"));
    /// Fails if the VM could not run on this host.
    ReadOnly Short assert_can_boot_here(self: Ref("VM"), host: Ref("host"));
    /// Fails if the VM could not run on another host.
    ReadOnly Short assert_agile(self: Ref("VM"));
    /// Fails if the operation is not currently allowed.
    ReadOnly Short assert_operation_valid(self: Ref("VM"), op: Enum(&enums::VM_OPERATIONS));
    /// Updates the allowed operations.
    PoolAdmin Short update_allowed_operations(self: Ref("VM"));
    /// Returns the record of the VM at its last boot.
    ReadOnly Short get_boot_record(self: Ref("VM")) -> Record("VM");
    /// Sends a SysRq key to the guest's kernel.
    PoolAdmin Long send_sysrq(vm: Ref("VM"), key: Str);
    /// Sends a trigger to the VM, for debugging.
    PoolAdmin Long send_trigger(vm: Ref("VM"), trigger: Str);
    /// Calls a plugin about the VM.
    VmOperator Long call_plugin(vm: Ref("VM"), plugin: Str, fn: Str, args: PAIRS) -> Str;
    /// Returns the services that the VM offers to the toolstack.
    PoolAdmin Long query_services(self: Ref("VM")) -> PAIRS;
    /// Creates a blob for data stored with the object.
    VmPowerAdmin Short create_new_blob(vm: Ref("VM"), name: Str, mime_type: Str; public: Bool)
        -> Ref("blob");
    /// Returns the available data sources.
    ReadOnly Short get_data_sources(self: Ref("VM")) -> SOURCES;
    /// Returns the current value of a data source.
    ReadOnly Short query_data_source(self: Ref("VM"), data_source: Str) -> Float;
    /// Starts to record a data source.
    VmAdmin Short record_data_source(self: Ref("VM"), data_source: Str);
    /// Deletes the recorded values of a data source.
    VmAdmin Short forget_data_source_archives(self: Ref("VM"), data_source: Str);
}
