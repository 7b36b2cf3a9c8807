//! What can be asked of a machine.

use super::super::prelude::*;

/// From a disk to the storage repository to which it goes.
const DISKS: Type = Map(&Ref("VDI"), &Ref("SR"));
/// From a network device to the network to which it goes.
const DEVICES: Type = Map(&Ref("VIF"), &Ref("network"));
/// From a GPU to the group from which it gets another.
const GPUS: Type = Map(&Ref("VGPU"), &Ref("GPU_group"));

messages! {
    /// Starts it.
    VmOperator Long start(vm: Ref("VM"), start_paused: Bool, force: Bool);
    /// Starts it on this host.
    VmPowerAdmin Long start_on(vm: Ref("VM"), host: Ref("host"), start_paused: Bool, force: Bool);
    /// Asks its guest to power off.
    VmOperator Long clean_shutdown(vm: Ref("VM"));
    /// Ends it at once.
    VmOperator Long hard_shutdown(vm: Ref("VM"));
    /// Asks its guest to power off; ends it if the guest does not.
    VmOperator Long shutdown(vm: Ref("VM"));
    /// Asks its guest to reboot.
    VmOperator Long clean_reboot(vm: Ref("VM"));
    /// Ends it at once and starts it again.
    VmOperator Long hard_reboot(vm: Ref("VM"));
    /// Stops its CPUs.
    VmOperator Long pause(vm: Ref("VM"));
    /// Lets its CPUs run again.
    VmOperator Long unpause(vm: Ref("VM"));
    /// Writes its memory to storage and ends it.
    VmOperator Long suspend(vm: Ref("VM"));
    /// Goes on where `suspend` ended it.
    VmOperator Long resume(vm: Ref("VM"), start_paused: Bool, force: Bool);
    /// Goes on, on this host, where `suspend` ended it.
    VmPowerAdmin Long resume_on(vm: Ref("VM"), host: Ref("host"), start_paused: Bool, force: Bool);
    /// Takes it for halted, whatever it is.
    PoolOperator Long power_state_reset(vm: Ref("VM"));
    /// Keeps its disks as they are, under a new name.
    VmPowerAdmin Long snapshot(vm: Ref("VM"), new_name: Str; ignore_vdis: Set(&Ref("VDI")))
        -> Ref("VM");
    /// The same, after its guest has brought its files in order.
    VmPowerAdmin Long snapshot_with_quiesce(vm: Ref("VM"), new_name: Str) -> Ref("VM");
    /// Keeps its disks and its memory as they are.
    VmPowerAdmin Long checkpoint(vm: Ref("VM"), new_name: Str) -> Ref("VM");
    /// Puts the machine back to this snapshot.
    VmPowerAdmin Long revert(snapshot: Ref("VM"));
    /// Makes another one with disks that share what is equal.
    VmAdmin Long clone(vm: Ref("VM"), new_name: Str) -> Ref("VM");
    /// Makes another one with disks of its own.
    VmAdmin Long copy(vm: Ref("VM"), new_name: Str, sr: Ref("SR")) -> Ref("VM");
    /// Makes the disks that its template asks for.
    VmAdmin Long provision(vm: Ref("VM"));
    /// Moves it, while it runs, to another host of the pool.
    VmPowerAdmin Long pool_migrate(vm: Ref("VM"), host: Ref("host"), options: PAIRS);
    /// Moves it with its disks.
    VmPowerAdmin Long migrate_send(vm: Ref("VM"), dest: PAIRS, live: Bool, vdi_map: DISKS,
        vif_map: DEVICES, options: PAIRS; vgpu_map: GPUS) -> Ref("VM");
    /// Fails if `migrate_send` would.
    VmPowerAdmin Long assert_can_migrate(vm: Ref("VM"), dest: PAIRS, live: Bool, vdi_map: DISKS,
        vif_map: DEVICES, options: PAIRS; vgpu_map: GPUS);
    /// Sets the four bounds of its memory, in bytes.
    VmPowerAdmin Long set_memory_limits(self: Ref("VM"), static_min: Int, static_max: Int,
        dynamic_min: Int, dynamic_max: Int);
    /// Sets its memory: all bounds but the least, in bytes.
    VmPowerAdmin Long set_memory(self: Ref("VM"), value: Int);
    /// Sets the most memory that it can ever have, in bytes.
    VmPowerAdmin Long set_memory_static_max(self: Ref("VM"), value: Int);
    /// Sets the least memory with which it works, in bytes.
    VmPowerAdmin Long set_memory_static_min(self: Ref("VM"), value: Int);
    /// Sets both, in bytes.
    VmPowerAdmin Long set_memory_static_range(self: Ref("VM"), min: Int, max: Int);
    /// Sets the most memory that it may have now, in bytes.
    VmPowerAdmin Long set_memory_dynamic_max(self: Ref("VM"), value: Int);
    /// Sets the least memory that it may have now, in bytes.
    VmPowerAdmin Long set_memory_dynamic_min(self: Ref("VM"), value: Int);
    /// Sets both, in bytes.
    VmPowerAdmin Long set_memory_dynamic_range(self: Ref("VM"), min: Int, max: Int);
    /// Sets the memory that it is to have now, in bytes.
    VmPowerAdmin Long set_memory_target_live(self: Ref("VM"), target: Int);
    /// Waits until it has that memory.
    ReadOnly Long wait_memory_target_live(self: Ref("VM"));
    /// Memory that it needs beside its own, in bytes.
    ReadOnly Short compute_memory_overhead(vm: Ref("VM")) -> Int;
    /// Most memory for it that fits into this much, in bytes.
    ReadOnly Short maximise_memory(self: Ref("VM"), total: Int, approximate: Bool) -> Int;
    /// Whether its guest gives memory back when asked.
    ReadOnly Short get_cooperative(self: Ref("VM")) -> Bool;
    /// Sets the most CPUs that it can have.
    VmAdmin Long set_VCPUs_max(self: Ref("VM"), value: Int);
    /// Sets the CPUs with which it starts.
    VmAdmin Long set_VCPUs_at_startup(self: Ref("VM"), value: Int);
    /// Sets the CPUs that it has now.
    VmAdmin Long set_VCPUs_number_live(self: Ref("VM"), nvcpu: Int);
    /// Sets how its CPUs are shared out now.
    VmAdmin Long add_to_VCPUs_params_live(self: Ref("VM"), key: Str, value: Str);
    /// Sets how much memory is kept for shadow pages.
    VmPowerAdmin Long set_HVM_shadow_multiplier(self: Ref("VM"), value: Float);
    /// Sets how much memory is kept for shadow pages now.
    VmPowerAdmin Long set_shadow_multiplier_live(self: Ref("VM"), multiplier: Float);
    /// Sets what follows when its guest crashes.
    VmAdmin Short set_actions_after_crash(
        self: Ref("VM"), value: Enum(&enums::ON_CRASH_BEHAVIOUR));
    /// Sets whether it boots by firmware.
    VmAdmin Short set_HVM_boot_policy(self: Ref("VM"), value: Str);
    /// Sets how it is virtualised.
    VmAdmin Short set_domain_type(self: Ref("VM"), value: Enum(&enums::DOMAIN_TYPE));
    /// Sets what UEFI keeps.
    VmAdmin Short set_NVRAM(self: Ref("VM"), value: PAIRS);
    /// Sets one thing that UEFI keeps.
    VmAdmin Short add_to_NVRAM(self: Ref("VM"), key: Str, value: Str);
    /// Removes one thing that UEFI keeps.
    VmAdmin Short remove_from_NVRAM(self: Ref("VM"), key: Str);
    /// Sets what its firmware says.
    VmAdmin Short set_bios_strings(self: Ref("VM"), value: PAIRS);
    /// Lets its firmware say what the host's says.
    VmAdmin Short copy_bios_strings(vm: Ref("VM"), host: Ref("host"));
    /// Sets whether it has the vendor's device.
    VmAdmin Short set_has_vendor_device(self: Ref("VM"), value: Bool);
    /// Sets where its memory is while it is suspended.
    PoolOperator Short set_suspend_VDI(self: Ref("VM"), value: Ref("VDI"));
    /// Sets its place among those that start together.
    PoolOperator Short set_order(self: Ref("VM"), value: Int);
    /// Sets how long the next one waits when it starts, in seconds.
    PoolOperator Short set_start_delay(self: Ref("VM"), value: Int);
    /// Sets how long the next one waits when it stops, in seconds.
    PoolOperator Short set_shutdown_delay(self: Ref("VM"), value: Int);
    /// Sets what is done for it when its host fails.
    PoolOperator Short set_ha_restart_priority(self: Ref("VM"), value: Str);
    /// Sets whether it is started again when its host fails.
    PoolOperator Short set_ha_always_run(self: Ref("VM"), value: Bool);
    /// Numbers that its next disk device may have.
    ReadOnly Short get_allowed_VBD_devices(vm: Ref("VM")) -> STRS;
    /// Numbers that its next network device may have.
    ReadOnly Short get_allowed_VIF_devices(vm: Ref("VM")) -> STRS;
    /// Hosts on which it could run.
    ReadOnly Short get_possible_hosts(vm: Ref("VM")) -> Set(&Ref("host"));
    /// Fails if it could not run on this host.
    ReadOnly Short assert_can_boot_here(self: Ref("VM"), host: Ref("host"));
    /// Fails if it could not run on another host.
    ReadOnly Short assert_agile(self: Ref("VM"));
    /// Fails if this may not be asked of it now.
    ReadOnly Short assert_operation_valid(self: Ref("VM"), op: Enum(&enums::VM_OPERATIONS));
    /// Finds out again what may be asked of it.
    PoolAdmin Short update_allowed_operations(self: Ref("VM"));
    /// Its record as it was when it last booted.
    ReadOnly Short get_boot_record(self: Ref("VM")) -> Record("VM");
    /// Presses a key of its kernel's debugger.
    PoolAdmin Long send_sysrq(vm: Ref("VM"), key: Str);
    /// Sends it an interrupt for debugging.
    PoolAdmin Long send_trigger(vm: Ref("VM"), trigger: Str);
    /// Calls a plugin about it.
    VmOperator Long call_plugin(vm: Ref("VM"), plugin: Str, fn: Str, args: PAIRS) -> Str;
    /// Services that it offers to the toolstack.
    PoolAdmin Long query_services(self: Ref("VM")) -> PAIRS;
    /// Makes a place for data kept with it.
    VmPowerAdmin Short create_new_blob(vm: Ref("VM"), name: Str, mime_type: Str; public: Bool)
        -> Ref("blob");
    /// What can be measured of it.
    ReadOnly Short get_data_sources(self: Ref("VM")) -> SOURCES;
    /// What is measured of it now, by name.
    ReadOnly Short query_data_source(self: Ref("VM"), data_source: Str) -> Float;
    /// Begins to keep what is measured.
    VmAdmin Short record_data_source(self: Ref("VM"), data_source: Str);
    /// Forgets what was measured.
    VmAdmin Short forget_data_source_archives(self: Ref("VM"), data_source: Str);
}
