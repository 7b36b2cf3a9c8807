//! Hosts.

use super::prelude::*;

fields! { "host", PoolOperator;
    /// UUID.
    uuid: ro(Str),
    /// Name.
    name_label: rw(Str).opt(),
    /// Description.
    name_description: rw(Str).opt(),
    /// Memory that is not available for VMs, in bytes.
    memory_overhead: ro(Int).opt(),
    /// Operations that are currently allowed.
    allowed_operations: ro(Set(&Enum(&enums::HOST_ALLOWED_OPERATIONS))).opt().volatile(),
    /// Operations in progress, by task.
    current_operations: ro(Map(&Str, &Enum(&enums::HOST_ALLOWED_OPERATIONS))).opt().volatile(),
    /// Major version of the API.
    API_version_major: ro(Int),
    /// Minor version of the API.
    API_version_minor: ro(Int),
    /// Vendor of the API implementation.
    API_version_vendor: ro(Str),
    /// Details of the vendor's implementation.
    API_version_vendor_implementation: ro(PAIRS),
    /// True if VMs may be started on the host.
    enabled: ro(Bool),
    /// Product and versions of the software.
    software_version: rc(PAIRS),
    /// Additional settings of clients. Some keys are settings of the toolstack.
    other_config: rw(PAIRS),
    /// Types of VMs that the host can run.
    capabilities: rc(STRS),
    /// Configuration of the CPUs.
    cpu_configuration: ro(PAIRS),
    /// Scheduling policy.
    sched_policy: ro(Str),
    /// Supported boot loaders.
    supported_bootloaders: ro(STRS),
    /// VMs that run on the host.
    resident_VMs: ro(Set(&Ref("VM"))).inverse("VM", "resident_on"),
    /// Logging configuration.
    logging: rw(PAIRS),
    /// Network devices of the host.
    PIFs: ro(Set(&Ref("PIF"))).inverse("PIF", "host"),
    /// SR for the memory of suspended VMs.
    suspend_image_sr: rw(Ref("SR")),
    /// SR for crash dumps.
    crash_dump_sr: rw(Ref("SR")),
    /// Crash dumps of the host.
    crashdumps: ro(Set(&Ref("host_crashdump"))),
    /// Patches installed on the host.
    patches: ro(Set(&Ref("host_patch"))),
    /// Updates installed on the host.
    updates: ro(Set(&Ref("pool_update"))),
    /// Connections of the host to SRs.
    PBDs: ro(Set(&Ref("PBD"))).inverse("PBD", "host"),
    /// CPUs of the host.
    host_CPUs: ro(Set(&Ref("host_cpu"))).inverse("host_cpu", "host"),
    /// Summary of the CPUs.
    cpu_info: ro(PAIRS).opt(),
    /// Host name.
    hostname: rw(Str),
    /// Address.
    address: rw(Str),
    /// Metrics of the host.
    metrics: ro(Ref("host_metrics")),
    /// License parameters.
    license_params: ro(PAIRS),
    /// Disks through which the host detects live hosts.
    ha_statefiles: ro(STRS).opt(),
    /// Hosts that this host sees as live.
    ha_network_peers: ro(STRS).opt(),
    /// Blobs of data stored with the object, by name.
    blobs: ro(BLOBS).opt(),
    /// Tags for sorting.
    tags: rw(STRS).opt().writer(VmOperator),
    /// Type of the external directory for users.
    external_auth_type: ro(Str).opt(),
    /// Name of the external directory.
    external_auth_service_name: ro(Str).opt(),
    /// Settings of the external directory.
    external_auth_configuration: ro(PAIRS).opt(),
    /// Edition.
    edition: ro(Str).opt(),
    /// License server.
    license_server: rw(PAIRS).or(Pairs(&[("address", "localhost"), ("port", "27000")])),
    /// BIOS strings.
    bios_strings: ro(PAIRS).opt(),
    /// Method of remote power-on.
    power_on_mode: ro(Str).opt(),
    /// Settings of remote power-on.
    power_on_config: ro(PAIRS).opt(),
    /// SR for cached copies of read data.
    local_cache_sr: rc(Ref("SR")).opt(),
    /// Features of the chipset.
    chipset_info: ro(PAIRS).opt(),
    /// PCI devices of the host.
    PCIs: ro(Set(&Ref("PCI"))),
    /// GPUs of the host.
    PGPUs: ro(Set(&Ref("PGPU"))),
    /// USB devices of the host.
    PUSBs: ro(Set(&Ref("PUSB"))),
    /// True if the host accepts old TLS versions.
    ssl_legacy: rc(Bool).or(Yes),
    /// CPU settings of all VMs on the host.
    guest_VCPUs_params: rw(PAIRS).opt(),
    /// State of the host's own display.
    display: rw(Enum(&enums::HOST_DISPLAY)).or(Text("enabled")),
    /// Offered versions of the virtual hardware platform.
    virtual_hardware_platform_versions: ro(Set(&Int)).or(Ints(&[0])),
    /// VM that manages the host.
    control_domain: ro(Ref("VM")).opt(),
    /// Updates that require a reboot.
    updates_requiring_reboot: ro(Set(&Ref("pool_update"))),
    /// Features that can be enabled.
    features: ro(Set(&Ref("Feature"))),
    /// IQN of the iSCSI initiator.
    iscsi_iqn: rc(Str).opt(),
    /// True if the host uses several paths to storage.
    multipathing: rc(Bool).opt(),
    /// Certificates for UEFI guests.
    uefi_certificates: rc(Str).opt(),
    /// Certificates of the host.
    certificates: ro(Set(&Ref("Certificate"))),
    /// Available editions.
    editions: ro(STRS).opt(),
    /// Guidance of updates that is mandatory.
    pending_guidances: ro(Set(&Enum(&enums::UPDATE_GUIDANCES))).opt(),
    /// True if the host verifies the certificates of other hosts.
    tls_verification_enabled: ro(Bool).opt(),
    /// Time of the last software update.
    last_software_update: ro(Date).opt(),
    /// True if the host only accepts TLS.
    https_only: ro(Bool).opt(),
    /// Installation state of the latest updates.
    latest_synced_updates_applied:
        ro(Enum(&enums::LATEST_SYNCED_UPDATES_APPLIED_STATE)).or(Text("unknown")),
    /// Policy for the placement of VMs on NUMA nodes.
    numa_affinity_policy: ro(Enum(&enums::HOST_NUMA_AFFINITY_POLICY)).or(Text("default_policy")),
    /// Guidance of updates that is recommended.
    pending_guidances_recommended: ro(Set(&Enum(&enums::UPDATE_GUIDANCES))).opt(),
    /// Guidance of updates for their full effect.
    pending_guidances_full: ro(Set(&Enum(&enums::UPDATE_GUIDANCES))).opt(),
    /// Hash of the latest update.
    last_update_hash: ro(Str).opt(),
}

messages! {
    /// Enables the host, so that VMs may be started on it.
    PoolOperator Long enable(host: Ref("host"));
    /// Disables the host, so that no more VMs are started on it.
    PoolOperator Long disable(host: Ref("host"));
    /// Powers the host off. The host must be disabled and run no VMs.
    PoolOperator Long shutdown(host: Ref("host"));
    /// Reboots the host. The host must be disabled and run no VMs.
    PoolOperator Long reboot(host: Ref("host"));
    /// Migrates all VMs away from the host.
    PoolOperator Long evacuate(
        host: Ref("host"); network: Ref("network"), evacuate_batch_size: Int);
    /// Fails if the VMs of the host cannot be migrated away.
    PoolOperator Long assert_can_evacuate(host: Ref("host"));
    /// Returns the VMs that cannot be migrated away, each with the reason.
    ReadOnly Long get_vms_which_prevent_evacuation(self: Ref("host")) -> Map(&Ref("VM"), &STRS);
    /// Prepares the host to receive a migrated VM.
    VmPowerAdmin Long migrate_receive(
        host: Ref("host"), network: Ref("network"), options: PAIRS) -> PAIRS;
    /// Returns the host's time in UTC.
    ReadOnly Short get_servertime(host: Ref("host")) -> Date;
    /// Returns the host's local time.
    ReadOnly Short get_server_localtime(host: Ref("host")) -> Date;
    /// Returns the memory that is free for VMs, in bytes.
    ReadOnly Short compute_free_memory(host: Ref("host")) -> Int;
    /// Returns the memory that is not available for VMs, in bytes.
    ReadOnly Short compute_memory_overhead(host: Ref("host")) -> Int;
    /// Returns the management PIF.
    PoolOperator Short get_management_interface(host: Ref("host")) -> Ref("PIF");
    /// Makes this PIF the management interface.
    PoolOperator Long management_reconfigure(pif: Ref("PIF"));
    /// Disables the management interface.
    PoolOperator Long management_disable();
    /// Returns the certificate with which the host serves TLS, as PEM.
    ReadOnly Short get_server_certificate(host: Ref("host")) -> Str;
    /// Returns the names of all messages.
    ReadOnly Short list_methods() -> STRS;
    /// Returns the kernel's log.
    PoolOperator Long dmesg(host: Ref("host")) -> Str;
    /// Sets the host name.
    PoolOperator Long set_hostname_live(host: Ref("host"), hostname: Str);
    /// Restarts the toolstack.
    PoolOperator Long restart_agent(host: Ref("host"));
    /// Runs a function of a plugin.
    PoolAdmin Long call_plugin(host: Ref("host"), plugin: Str, fn: Str, args: PAIRS) -> Str;
    /// Returns whether an extension with this name is installed.
    PoolAdmin Short has_extension(host: Ref("host"), name: Str) -> Bool;
    /// Calls an extension.
    PoolAdmin Long call_extension(host: Ref("host"), call: Str) -> Str;
    /// Returns the available data sources.
    ReadOnly Short get_data_sources(host: Ref("host")) -> SOURCES;
    /// Returns the current value of a data source.
    ReadOnly Short query_data_source(host: Ref("host"), data_source: Str) -> Float;
    /// Starts to record a data source.
    PoolOperator Short record_data_source(host: Ref("host"), data_source: Str);
    /// Deletes the recorded values of a data source.
    PoolOperator Short forget_data_source_archives(host: Ref("host"), data_source: Str);
}

/// Definition of the class.
pub static CLASS: Class =
    Class::new(("host", "A computer that runs machines"), Role::PoolOperator, FIELDS, MESSAGES);
