//! The words of every enumeration, in the order that the API has.

use super::Enum;

macro_rules! enums {
    ($($(#[$doc:meta])+ $const:ident $name:ident: $($word:literal)+;)+) => {
        $($(#[$doc])+ pub const $const: Enum =
            Enum { name: stringify!($name), words: &[$($word),+] };)+

        /// All of them.
        pub const ALL: &[&Enum] = &[$(&$const),+];
    };
}

enums! {
    /// Whether a machine runs.
    VM_POWER_STATE vm_power_state: "Halted" "Paused" "Running" "Suspended";
    /// What may be asked of a machine.
    VM_OPERATIONS vm_operations:
        "snapshot" "clone" "copy" "create_template" "revert" "checkpoint" "snapshot_with_quiesce"
        "provision" "start" "start_on" "pause" "unpause" "clean_shutdown" "clean_reboot"
        "hard_shutdown" "power_state_reset" "hard_reboot" "suspend" "csvm" "resume" "resume_on"
        "pool_migrate" "migrate_send" "get_boot_record" "send_sysrq" "send_trigger"
        "query_services" "shutdown" "call_plugin" "changing_memory_live" "awaiting_memory_live"
        "changing_dynamic_range" "changing_static_range" "changing_memory_limits"
        "changing_shadow_memory" "changing_shadow_memory_live" "changing_VCPUs"
        "changing_VCPUs_live" "changing_NVRAM" "assert_operation_valid" "data_source_op"
        "update_allowed_operations" "make_into_template" "import" "export" "metadata_export"
        "reverting" "destroy" "create_vtpm";
    /// What follows when a guest powers off or reboots.
    ON_NORMAL_EXIT on_normal_exit: "destroy" "restart";
    /// What follows when a guest reboots softly.
    ON_SOFTREBOOT_BEHAVIOR on_softreboot_behavior: "soft_reboot" "destroy" "restart" "preserve";
    /// What follows when a guest crashes.
    ON_CRASH_BEHAVIOUR on_crash_behaviour:
        "destroy" "coredump_and_destroy" "restart" "coredump_and_restart" "preserve"
        "rename_restart";
    /// How a machine is virtualised.
    DOMAIN_TYPE domain_type: "hvm" "pv" "pv_in_pvh" "pvh" "unspecified";
    /// Yes, no, or not known.
    TRISTATE_TYPE tristate_type: "yes" "no" "unspecified";
    /// What an update asks for when it is installed.
    UPDATE_GUIDANCES update_guidances:
        "reboot_host" "reboot_host_on_livepatch_failure" "reboot_host_on_kernel_livepatch_failure"
        "reboot_host_on_xen_livepatch_failure" "restart_toolstack" "restart_device_model"
        "restart_vm";
    /// What may be asked of a task.
    TASK_ALLOWED_OPERATIONS task_allowed_operations: "cancel" "destroy";
    /// How far a task is.
    TASK_STATUS_TYPE task_status_type: "pending" "success" "failure" "cancelling" "cancelled";
    /// What an event tells.
    EVENT_OPERATION event_operation: "add" "del" "mod";
    /// What may be asked of a pool.
    POOL_ALLOWED_OPERATIONS pool_allowed_operations:
        "ha_enable" "ha_disable" "cluster_create" "designate_new_master" "configure_repositories"
        "sync_updates" "get_updates" "apply_updates" "tls_verification_enable" "cert_refresh"
        "exchange_certificates_on_join" "exchange_ca_certificates_on_join"
        "copy_primary_host_certs" "eject";
    /// How often telemetry is sent.
    TELEMETRY_FREQUENCY telemetry_frequency: "daily" "weekly" "monthly";
    /// How often updates are fetched.
    UPDATE_SYNC_FREQUENCY update_sync_frequency: "daily" "weekly";
    /// What may be asked of a host.
    HOST_ALLOWED_OPERATIONS host_allowed_operations:
        "provision" "evacuate" "shutdown" "reboot" "power_on" "vm_start" "vm_resume" "vm_migrate"
        "apply_updates" "enable";
    /// Whether the latest updates are installed.
    LATEST_SYNCED_UPDATES_APPLIED_STATE latest_synced_updates_applied_state:
        "yes" "no" "unknown";
    /// Whether the host shows something on its own screen.
    HOST_DISPLAY host_display: "enabled" "disable_on_reboot" "disabled" "enable_on_reboot";
    /// How machines are placed on NUMA nodes.
    HOST_NUMA_AFFINITY_POLICY host_numa_affinity_policy: "any" "best_effort" "default_policy";
    /// What may be asked of a virtual disk device.
    VBD_OPERATIONS vbd_operations:
        "attach" "eject" "insert" "plug" "unplug" "unplug_force" "pause" "unpause";
    /// What a guest sees of it.
    VBD_TYPE vbd_type: "CD" "Disk" "Floppy";
    /// Whether a guest may write.
    VBD_MODE vbd_mode: "RO" "RW";
    /// What may be asked of a disk.
    VDI_OPERATIONS vdi_operations:
        "clone" "copy" "resize" "resize_online" "snapshot" "mirror" "destroy" "forget" "update"
        "force_unlock" "generate_config" "enable_cbt" "disable_cbt" "data_destroy"
        "list_changed_blocks" "set_on_boot" "blocked";
    /// What a disk is for.
    VDI_TYPE vdi_type:
        "system" "user" "ephemeral" "suspend" "crashdump" "ha_statefile" "metadata" "redo_log"
        "rrd" "pvs_cache" "cbt_metadata";
    /// What becomes of a disk's contents when its machine boots.
    ON_BOOT on_boot: "reset" "persist";
    /// What may be asked of a storage repository.
    STORAGE_OPERATIONS storage_operations:
        "scan" "destroy" "forget" "plug" "unplug" "update" "vdi_create" "vdi_introduce"
        "vdi_destroy" "vdi_resize" "vdi_clone" "vdi_snapshot" "vdi_mirror" "vdi_enable_cbt"
        "vdi_disable_cbt" "vdi_data_destroy" "vdi_list_changed_blocks" "vdi_set_on_boot"
        "pbd_create" "pbd_destroy";
    /// What may be asked of a virtual network device.
    VIF_OPERATIONS vif_operations: "attach" "plug" "unplug";
    /// Which traffic a virtual network device lets through.
    VIF_LOCKING_MODE vif_locking_mode: "network_default" "locked" "unlocked" "disabled";
    /// How the guest gets its IPv4 address.
    VIF_IPV4_CONFIGURATION_MODE vif_ipv4_configuration_mode: "None" "Static";
    /// How the guest gets its IPv6 address.
    VIF_IPV6_CONFIGURATION_MODE vif_ipv6_configuration_mode: "None" "Static";
    /// What may be asked of a network.
    NETWORK_OPERATIONS network_operations: "attaching";
    /// Which traffic a network lets through when a device does not say it.
    NETWORK_DEFAULT_LOCKING_MODE network_default_locking_mode: "unlocked" "disabled";
    /// What a network may be used for.
    NETWORK_PURPOSE network_purpose: "nbd" "insecure_nbd";
    /// Whether a switch watches who wants which multicast.
    PIF_IGMP_STATUS pif_igmp_status: "enabled" "disabled" "unknown";
    /// How the host gets its IPv4 address.
    IP_CONFIGURATION_MODE ip_configuration_mode: "None" "DHCP" "Static";
    /// How the host gets its IPv6 address.
    IPV6_CONFIGURATION_MODE ipv6_configuration_mode: "None" "DHCP" "Static" "Autoconf";
    /// Which kind of address is the first.
    PRIMARY_ADDRESS_TYPE primary_address_type: "IPv4" "IPv6";
    /// How several network cards act as one.
    BOND_MODE bond_mode: "balance-slb" "active-backup" "lacp";
    /// What a console speaks.
    CONSOLE_PROTOCOL console_protocol: "vt100" "rfb" "rdp";
    /// What a message is about.
    CLS cls: "VM" "Host" "SR" "Pool" "VMPP" "VMSS" "PVS_proxy" "VDI" "Certificate";
}
