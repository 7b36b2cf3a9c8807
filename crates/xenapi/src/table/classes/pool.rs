//! The pool.

use super::prelude::*;

fields! { "pool", PoolOperator;
    /// Its UUID.
    uuid: ro(Str),
    /// Its name.
    name_label: rw(Str),
    /// What it is for.
    name_description: rw(Str),
    /// The host that decides.
    master: ro(Ref("host")),
    /// Where disks are made unless somebody says otherwise.
    default_SR: rw(Ref("SR")),
    /// Where suspended machines are kept.
    suspend_image_SR: rw(Ref("SR")),
    /// Where crash dumps are kept.
    crash_dump_SR: rw(Ref("SR")),
    /// Whatever clients keep with it.
    other_config: rw(PAIRS),
    /// Machines are started again on another host when theirs fails.
    ha_enabled: ro(Bool).opt(),
    /// Settings of that.
    ha_configuration: ro(PAIRS).opt(),
    /// Disks by which hosts see that others live.
    ha_statefiles: ro(STRS).opt(),
    /// Hosts that may fail before a machine is left without a place.
    ha_host_failures_to_tolerate: ro(Int).opt(),
    /// Failures for which there is a plan.
    ha_plan_exists_for: ro(Int).opt(),
    /// More may be started than there is a plan for.
    ha_allow_overcommit: rw(Bool).opt(),
    /// More is started than there is a plan for.
    ha_overcommitted: ro(Bool).opt(),
    /// Data kept with it.
    blobs: ro(BLOBS).opt(),
    /// Words by which people sort.
    tags: rw(STRS).opt().writer(VmOperator),
    /// What user interfaces keep with it.
    gui_config: rw(PAIRS).opt().writer(VmOperator),
    /// Settings of the health check.
    health_check_config: rw(PAIRS).opt(),
    /// The server that balances load.
    wlb_url: ro(Str).opt(),
    /// The user there.
    wlb_username: ro(Str).opt(),
    /// Load is balanced.
    wlb_enabled: rw(Bool).opt(),
    /// That server's certificate is checked.
    wlb_verify_cert: rw(Bool).opt(),
    /// Changes of the state are also written to a disk.
    redo_log_enabled: ro(Bool).opt(),
    /// That disk.
    redo_log_vdi: ro(Ref("VDI")).opt(),
    /// The address of the switches' controller.
    vswitch_controller: ro(Str).opt(),
    /// What the licence leaves out.
    restrictions: ro(PAIRS).opt(),
    /// Disks with copies of the state.
    metadata_VDIs: ro(Set(&Ref("VDI"))).inverse("VDI", "metadata_of_pool"),
    /// What keeps the hosts together.
    ha_cluster_stack: ro(Str).opt(),
    /// What may be asked of it now.
    allowed_operations: ro(Set(&Enum(&enums::POOL_ALLOWED_OPERATIONS))).opt().volatile(),
    /// What it is doing: from a task to an operation.
    current_operations: ro(Map(&Str, &Enum(&enums::POOL_ALLOWED_OPERATIONS))).opt().volatile(),
    /// What guests are told about their agent.
    guest_agent_config: ro(PAIRS).opt(),
    /// CPU features that all hosts have.
    cpu_info: ro(PAIRS).opt(),
    /// New machines get no vendor's device.
    policy_no_vendor_device: rw(Bool).opt(),
    /// Hosts are not patched while they run.
    live_patching_disabled: rw(Bool).opt(),
    /// Switches watch who wants which multicast.
    igmp_snooping_enabled: ro(Bool).opt(),
    /// Certificates of UEFI guests.
    uefi_certificates: rc(Str).opt(),
    /// Certificates of UEFI guests that somebody put in their place.
    custom_uefi_certificates: rc(Str).opt(),
    /// The secret of the hosts is being changed.
    is_psr_pending: rw(Bool).opt(),
    /// Hosts check each other's certificates.
    tls_verification_enabled: ro(Bool).opt(),
    /// Where updates come from.
    repositories: ro(Set(&Ref("Repository"))).opt(),
    /// Clients may log in by certificate.
    client_certificate_auth_enabled: ro(Bool).opt(),
    /// The name that such a certificate bears.
    client_certificate_auth_name: ro(Str).opt(),
    /// The proxy for updates.
    repository_proxy_url: ro(Str).opt(),
    /// The user at that proxy.
    repository_proxy_username: ro(Str).opt(),
    /// The password at that proxy.
    repository_proxy_password: ro(Ref("secret")).opt(),
    /// Memory is compressed when machines move.
    migration_compression: rw(Bool).opt(),
    /// The host that decides gets machines last.
    coordinator_bias: rw(Bool).or(Yes),
    /// Most logins of local users at a time.
    local_auth_max_threads: rc(Int).or(Whole(8)),
    /// Most logins of a directory's users at a time.
    ext_auth_max_threads: rc(Int).or(Whole(1)),
    /// The name of this pool in telemetry.
    telemetry_uuid: ro(Ref("secret")).opt(),
    /// How often telemetry is sent.
    telemetry_frequency: ro(Enum(&enums::TELEMETRY_FREQUENCY)).or(Text("weekly")),
    /// When telemetry is sent next.
    telemetry_next_collection: ro(Date).opt(),
    /// When updates were last fetched.
    last_update_sync: ro(Date).opt(),
    /// How often updates are fetched.
    update_sync_frequency: ro(Enum(&enums::UPDATE_SYNC_FREQUENCY)).or(Text("weekly")),
    /// The day of the week on which they are.
    update_sync_day: ro(Int).opt(),
    /// Updates are fetched.
    update_sync_enabled: ro(Bool).opt(),
}

messages! {
    /// Writes the state to every host: there is one, and it has written it.
    PoolOperator Long sync_database();
    /// Whether an extension of this name is installed.
    PoolAdmin Short has_extension(self: Ref("pool"), name: Str) -> Bool;
    /// What the licence permits, and until when.
    ReadOnly Short get_license_state(self: Ref("pool")) -> PAIRS;
}

/// The class.
pub static CLASS: Class =
    Class::new(("pool", "All that is managed together"), Role::PoolOperator, FIELDS, MESSAGES);
