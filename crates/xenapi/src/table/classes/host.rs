//! Hosts.

use super::prelude::*;

fields! { "host", PoolOperator;
    /// Its UUID.
    uuid: ro(Str),
    /// Its name.
    name_label: rw(Str).opt(),
    /// What it is for.
    name_description: rw(Str).opt(),
    /// Memory that is not for machines, in bytes.
    memory_overhead: ro(Int).opt(),
    /// What may be asked of it now.
    allowed_operations: ro(Set(&Enum(&enums::HOST_ALLOWED_OPERATIONS))).opt().volatile(),
    /// What it is doing: from a task to an operation.
    current_operations: ro(Map(&Str, &Enum(&enums::HOST_ALLOWED_OPERATIONS))).opt().volatile(),
    /// The API's version.
    API_version_major: ro(Int),
    /// The API's version within the major one.
    API_version_minor: ro(Int),
    /// Who made the API.
    API_version_vendor: ro(Str),
    /// What that vendor says of it.
    API_version_vendor_implementation: ro(PAIRS),
    /// Machines may be started on it.
    enabled: ro(Bool),
    /// Product and versions of its software.
    software_version: rc(PAIRS),
    /// Whatever clients keep with it; some keys are settings of the toolstack.
    other_config: rw(PAIRS),
    /// Kinds of machines that it runs.
    capabilities: rc(STRS),
    /// How its CPUs are set up.
    cpu_configuration: ro(PAIRS),
    /// How it shares CPUs out.
    sched_policy: ro(Str),
    /// Boot loaders that it has.
    supported_bootloaders: ro(STRS),
    /// Machines that run on it.
    resident_VMs: ro(Set(&Ref("VM"))).inverse("VM", "resident_on"),
    /// Where it logs to.
    logging: rw(PAIRS),
    /// Its network devices.
    PIFs: ro(Set(&Ref("PIF"))).inverse("PIF", "host"),
    /// Where its suspended machines are kept.
    suspend_image_sr: rw(Ref("SR")),
    /// Where its crash dumps are kept.
    crash_dump_sr: rw(Ref("SR")),
    /// Its crash dumps.
    crashdumps: ro(Set(&Ref("host_crashdump"))),
    /// Patches installed on it.
    patches: ro(Set(&Ref("host_patch"))),
    /// Updates installed on it.
    updates: ro(Set(&Ref("pool_update"))),
    /// Its connections to storage.
    PBDs: ro(Set(&Ref("PBD"))).inverse("PBD", "host"),
    /// Its CPUs.
    host_CPUs: ro(Set(&Ref("host_cpu"))).inverse("host_cpu", "host"),
    /// Its CPUs in sum.
    cpu_info: ro(PAIRS).opt(),
    /// Its name in the network.
    hostname: rw(Str),
    /// Its address.
    address: rw(Str),
    /// What is measured of it.
    metrics: ro(Ref("host_metrics")),
    /// What its licence says.
    license_params: ro(PAIRS),
    /// Disks by which it sees that other hosts live.
    ha_statefiles: ro(STRS).opt(),
    /// Hosts that it sees living.
    ha_network_peers: ro(STRS).opt(),
    /// Data kept with it.
    blobs: ro(BLOBS).opt(),
    /// Words by which people sort.
    tags: rw(STRS).opt().writer(VmOperator),
    /// The kind of directory in which it looks up users.
    external_auth_type: ro(Str).opt(),
    /// The name of that directory.
    external_auth_service_name: ro(Str).opt(),
    /// Settings of that directory.
    external_auth_configuration: ro(PAIRS).opt(),
    /// Its edition.
    edition: ro(Str).opt(),
    /// Where licences come from.
    license_server: rw(PAIRS).or(Pairs(&[("address", "localhost"), ("port", "27000")])),
    /// What its firmware says.
    bios_strings: ro(PAIRS).opt(),
    /// How it can be powered on from afar.
    power_on_mode: ro(Str).opt(),
    /// Settings of that.
    power_on_config: ro(PAIRS).opt(),
    /// Storage on which it keeps copies of what it read.
    local_cache_sr: rc(Ref("SR")).opt(),
    /// What its chip set can do.
    chipset_info: ro(PAIRS).opt(),
    /// Its PCI devices.
    PCIs: ro(Set(&Ref("PCI"))),
    /// Its GPUs.
    PGPUs: ro(Set(&Ref("PGPU"))),
    /// Its USB devices.
    PUSBs: ro(Set(&Ref("PUSB"))),
    /// It speaks old versions of TLS.
    ssl_legacy: rc(Bool).or(Yes),
    /// CPU settings of all machines on it.
    guest_VCPUs_params: rw(PAIRS).opt(),
    /// Whether it shows something on its own screen.
    display: rw(Enum(&enums::HOST_DISPLAY)).or(Text("enabled")),
    /// Versions of virtual hardware that it offers.
    virtual_hardware_platform_versions: ro(Set(&Int)).or(Ints(&[0])),
    /// The machine that manages it.
    control_domain: ro(Ref("VM")).opt(),
    /// Updates that wait for a reboot.
    updates_requiring_reboot: ro(Set(&Ref("pool_update"))),
    /// Features that can be turned on.
    features: ro(Set(&Ref("Feature"))),
    /// Its name for iSCSI.
    iscsi_iqn: rc(Str).opt(),
    /// It uses several paths to storage.
    multipathing: rc(Bool).opt(),
    /// Certificates of UEFI guests.
    uefi_certificates: rc(Str).opt(),
    /// Its own certificates.
    certificates: ro(Set(&Ref("Certificate"))),
    /// Editions that it can become.
    editions: ro(STRS).opt(),
    /// What an update asks for at once.
    pending_guidances: ro(Set(&Enum(&enums::UPDATE_GUIDANCES))).opt(),
    /// It checks other hosts' certificates.
    tls_verification_enabled: ro(Bool).opt(),
    /// When its software was last updated.
    last_software_update: ro(Date).opt(),
    /// It answers over TLS only.
    https_only: ro(Bool).opt(),
    /// Whether the latest updates are installed.
    latest_synced_updates_applied:
        ro(Enum(&enums::LATEST_SYNCED_UPDATES_APPLIED_STATE)).or(Text("unknown")),
    /// How machines are placed on its NUMA nodes.
    numa_affinity_policy: ro(Enum(&enums::HOST_NUMA_AFFINITY_POLICY)).or(Text("default_policy")),
    /// What an update asks for soon.
    pending_guidances_recommended: ro(Set(&Enum(&enums::UPDATE_GUIDANCES))).opt(),
    /// What an update asks for some day.
    pending_guidances_full: ro(Set(&Enum(&enums::UPDATE_GUIDANCES))).opt(),
    /// The latest update, by its hash.
    last_update_hash: ro(Str).opt(),
}

messages! {
    /// Machines may be started on it again.
    PoolOperator Long enable(host: Ref("host"));
    /// Machines are no longer started on it.
    PoolOperator Long disable(host: Ref("host"));
    /// Powers it off; it must be disabled and empty.
    PoolOperator Long shutdown(host: Ref("host"));
    /// Boots it again; it must be disabled and empty.
    PoolOperator Long reboot(host: Ref("host"));
    /// Moves its machines away.
    PoolOperator Long evacuate(
        host: Ref("host"); network: Ref("network"), evacuate_batch_size: Int);
    /// Fails if its machines cannot be moved away.
    PoolOperator Long assert_can_evacuate(host: Ref("host"));
    /// Machines that cannot be moved away, each with the reason.
    ReadOnly Long get_vms_which_prevent_evacuation(self: Ref("host")) -> Map(&Ref("VM"), &STRS);
    /// Makes it ready to take a machine from elsewhere.
    VmPowerAdmin Long migrate_receive(
        host: Ref("host"), network: Ref("network"), options: PAIRS) -> PAIRS;
    /// Its time, in UTC.
    ReadOnly Short get_servertime(host: Ref("host")) -> Date;
    /// Its time, where it stands.
    ReadOnly Short get_server_localtime(host: Ref("host")) -> Date;
    /// Memory that is free for machines, in bytes.
    ReadOnly Short compute_free_memory(host: Ref("host")) -> Int;
    /// Memory that is not for machines, in bytes.
    ReadOnly Short compute_memory_overhead(host: Ref("host")) -> Int;
    /// The device by which it is managed.
    PoolOperator Short get_management_interface(host: Ref("host")) -> Ref("PIF");
    /// Names of all messages.
    ReadOnly Short list_methods() -> STRS;
    /// The kernel's messages.
    PoolOperator Long dmesg(host: Ref("host")) -> Str;
    /// Gives it another name in the network.
    PoolOperator Long set_hostname_live(host: Ref("host"), hostname: Str);
    /// Starts the toolstack again.
    PoolOperator Long restart_agent(host: Ref("host"));
    /// Runs a function of a plugin.
    PoolAdmin Long call_plugin(host: Ref("host"), plugin: Str, fn: Str, args: PAIRS) -> Str;
    /// Whether an extension of this name is installed.
    PoolAdmin Short has_extension(host: Ref("host"), name: Str) -> Bool;
    /// Calls an extension.
    PoolAdmin Long call_extension(host: Ref("host"), call: Str) -> Str;
    /// What can be measured of it.
    ReadOnly Short get_data_sources(host: Ref("host")) -> SOURCES;
    /// What is measured of it now, by name.
    ReadOnly Short query_data_source(host: Ref("host"), data_source: Str) -> Float;
    /// Begins to keep what is measured.
    PoolOperator Short record_data_source(host: Ref("host"), data_source: Str);
    /// Forgets what was measured.
    PoolOperator Short forget_data_source_archives(host: Ref("host"), data_source: Str);
}

/// The class.
pub static CLASS: Class =
    Class::new(("host", "A computer that runs machines"), Role::PoolOperator, FIELDS, MESSAGES);
