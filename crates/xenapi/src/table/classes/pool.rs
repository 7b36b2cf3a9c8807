//! Pool.

use super::prelude::*;

fields! { "pool", PoolOperator;
    /// UUID.
    uuid: ro(Str),
    /// Name.
    name_label: rw(Str),
    /// Description.
    name_description: rw(Str),
    /// Host that coordinates the pool.
    master: ro(Ref("host")),
    /// Default SR for new VDIs.
    default_SR: rw(Ref("SR")),
    /// SR for the memory of suspended VMs.
    suspend_image_SR: rw(Ref("SR")),
    /// SR for crash dumps.
    crash_dump_SR: rw(Ref("SR")),
    /// Additional settings of clients.
    other_config: rw(PAIRS),
    /// True if high availability restarts VMs of failed hosts on other hosts.
    ha_enabled: ro(Bool).opt(),
    /// Settings of high availability.
    ha_configuration: ro(PAIRS).opt(),
    /// Disks through which hosts detect live hosts.
    ha_statefiles: ro(STRS).opt(),
    /// Number of host failures after which all protected VMs can still run.
    ha_host_failures_to_tolerate: ro(Int).opt(),
    /// Number of host failures for which a plan exists.
    ha_plan_exists_for: ro(Int).opt(),
    /// True if more VMs may be started than the plan covers.
    ha_allow_overcommit: rw(Bool).opt(),
    /// True if more VMs run than the plan covers.
    ha_overcommitted: ro(Bool).opt(),
    /// Blobs of data stored with the object, by name.
    blobs: ro(BLOBS).opt(),
    /// Tags for sorting.
    tags: rw(STRS).opt().writer(VmOperator),
    /// Settings of user interfaces.
    gui_config: rw(PAIRS).opt().writer(VmOperator),
    /// Settings of the health check.
    health_check_config: rw(PAIRS).opt(),
    /// URL of the workload balancing server.
    wlb_url: ro(Str).opt(),
    /// User name at the workload balancing server.
    wlb_username: ro(Str).opt(),
    /// True if workload balancing is enabled.
    wlb_enabled: rw(Bool).opt(),
    /// True if the certificate of the workload balancing server is verified.
    wlb_verify_cert: rw(Bool).opt(),
    /// True if changes of the state are also written to a redo log.
    redo_log_enabled: ro(Bool).opt(),
    /// VDI of the redo log.
    redo_log_vdi: ro(Ref("VDI")).opt(),
    /// Address of the vSwitch controller.
    vswitch_controller: ro(Str).opt(),
    /// Restrictions of the license.
    restrictions: ro(PAIRS).opt(),
    /// VDIs with copies of the pool's state.
    metadata_VDIs: ro(Set(&Ref("VDI"))).inverse("VDI", "metadata_of_pool"),
    /// Cluster stack of high availability.
    ha_cluster_stack: ro(Str).opt(),
    /// Operations that are currently allowed.
    allowed_operations: ro(Set(&Enum(&enums::POOL_ALLOWED_OPERATIONS))).opt().volatile(),
    /// Operations in progress, by task.
    current_operations: ro(Map(&Str, &Enum(&enums::POOL_ALLOWED_OPERATIONS))).opt().volatile(),
    /// Configuration of guest agents.
    guest_agent_config: ro(PAIRS).opt(),
    /// CPU features that all hosts have.
    cpu_info: ro(PAIRS).opt(),
    /// True if new VMs get no vendor device.
    policy_no_vendor_device: rw(Bool).opt(),
    /// True if live patching is disabled.
    live_patching_disabled: rw(Bool).opt(),
    /// True if IGMP snooping is enabled.
    igmp_snooping_enabled: ro(Bool).opt(),
    /// Certificates for UEFI guests.
    uefi_certificates: rc(Str).opt(),
    /// Certificates for UEFI guests that replace the default ones.
    custom_uefi_certificates: rc(Str).opt(),
    /// True while the pool secret is being rotated.
    is_psr_pending: rw(Bool).opt(),
    /// True if hosts verify each other's certificates.
    tls_verification_enabled: ro(Bool).opt(),
    /// Repositories for updates.
    repositories: ro(Set(&Ref("Repository"))).opt(),
    /// True if clients may log in with a certificate.
    client_certificate_auth_enabled: ro(Bool).opt(),
    /// Name that such a client certificate must have.
    client_certificate_auth_name: ro(Str).opt(),
    /// Proxy for updates.
    repository_proxy_url: ro(Str).opt(),
    /// User name at the proxy.
    repository_proxy_username: ro(Str).opt(),
    /// Password at the proxy.
    repository_proxy_password: ro(Ref("secret")).opt(),
    /// True if memory is compressed during migration.
    migration_compression: rw(Bool).opt(),
    /// True if the coordinator is the last choice for new VMs.
    coordinator_bias: rw(Bool).or(Yes),
    /// Most concurrent logins of local users.
    local_auth_max_threads: rc(Int).or(Whole(8)),
    /// Most concurrent logins of directory users.
    ext_auth_max_threads: rc(Int).or(Whole(1)),
    /// UUID of the pool in telemetry.
    telemetry_uuid: ro(Ref("secret")).opt(),
    /// Frequency of telemetry.
    telemetry_frequency: ro(Enum(&enums::TELEMETRY_FREQUENCY)).or(Text("weekly")),
    /// Time of the next telemetry collection.
    telemetry_next_collection: ro(Date).opt(),
    /// Time of the last update download.
    last_update_sync: ro(Date).opt(),
    /// Frequency of update downloads.
    update_sync_frequency: ro(Enum(&enums::UPDATE_SYNC_FREQUENCY)).or(Text("weekly")),
    /// Day of the week for update downloads.
    update_sync_day: ro(Int).opt(),
    /// True if update downloads are enabled.
    update_sync_enabled: ro(Bool).opt(),
}

messages! {
    /// Writes the state to every host. The only host has already written it.
    PoolOperator Long sync_database();
    /// Returns all records as text, in the form that `ringwayd --import` reads.
    PoolAdmin Short dump_database() -> Str;
    /// Returns whether an extension with this name is installed.
    PoolAdmin Short has_extension(self: Ref("pool"), name: Str) -> Bool;
    /// Creates a VLAN on the device of this name, on each host.
    PoolOperator Long create_VLAN(device: Str, network: Ref("network"), VLAN: Int)
        -> Set(&Ref("PIF"));
    /// Creates a VLAN on this PIF, and on that of its name of each other host.
    PoolOperator Long create_VLAN_from_PIF(pif: Ref("PIF"), network: Ref("network"), VLAN: Int)
        -> Set(&Ref("PIF"));
    /// Makes the PIFs of a network the management interfaces.
    PoolOperator Long management_reconfigure(network: Ref("network"));
    /// Returns whether guests with UEFI could use secure boot.
    PoolOperator Short get_guest_secureboot_readiness(self: Ref("pool"))
        -> Enum(&enums::POOL_GUEST_SECUREBOOT_READINESS);
    /// Returns the license state and its expiry.
    ReadOnly Short get_license_state(self: Ref("pool")) -> PAIRS;
}

/// Definition of the class.
pub static CLASS: Class =
    Class::new(("pool", "All that is managed together"), Role::PoolOperator, FIELDS, MESSAGES);
