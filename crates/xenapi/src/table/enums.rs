//! Values of every enumeration, in the order of the API.

use super::Enum;

macro_rules! enums {
    ($($(#[$doc:meta])+ $const:ident $name:ident: $($word:literal)+;)+) => {
        $($(#[$doc])+ pub const $const: Enum =
            Enum { name: stringify!($name), words: &[$($word),+] };)+

        /// All enumerations.
        pub const ALL: &[&Enum] = &[$(&$const),+];
    };
}

enums! {
    /// Power state of a VM.
    VM_POWER_STATE vm_power_state: "Halted" "Paused" "Running" "Suspended";
    /// Operations of a VM.
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
    /// Action after a guest powers off or reboots.
    ON_NORMAL_EXIT on_normal_exit: "destroy" "restart";
    /// Action after a soft reboot of a guest.
    ON_SOFTREBOOT_BEHAVIOR on_softreboot_behavior: "soft_reboot" "destroy" "restart" "preserve";
    /// Action after a crash of a guest.
    ON_CRASH_BEHAVIOUR on_crash_behaviour:
        "destroy" "coredump_and_destroy" "restart" "coredump_and_restart" "preserve"
        "rename_restart";
    /// Virtualization type of a VM.
    DOMAIN_TYPE domain_type: "hvm" "pv" "pv_in_pvh" "pvh" "unspecified";
    /// Yes, no, or unknown.
    TRISTATE_TYPE tristate_type: "yes" "no" "unspecified";
    /// Guidance after the installation of an update.
    UPDATE_GUIDANCES update_guidances:
        "reboot_host" "reboot_host_on_livepatch_failure" "reboot_host_on_kernel_livepatch_failure"
        "reboot_host_on_xen_livepatch_failure" "restart_toolstack" "restart_device_model"
        "restart_vm";
    /// Operations of a task.
    TASK_ALLOWED_OPERATIONS task_allowed_operations: "cancel" "destroy";
    /// Status of a task.
    TASK_STATUS_TYPE task_status_type: "pending" "success" "failure" "cancelling" "cancelled";
    /// Type of an event.
    EVENT_OPERATION event_operation: "add" "del" "mod";
    /// Operations of a pool.
    POOL_ALLOWED_OPERATIONS pool_allowed_operations:
        "ha_enable" "ha_disable" "cluster_create" "designate_new_master" "configure_repositories"
        "sync_updates" "get_updates" "apply_updates" "tls_verification_enable" "cert_refresh"
        "exchange_certificates_on_join" "exchange_ca_certificates_on_join"
        "copy_primary_host_certs" "eject";
    /// Frequency of telemetry.
    TELEMETRY_FREQUENCY telemetry_frequency: "daily" "weekly" "monthly";
    /// State of what guests need for secure boot.
    POOL_GUEST_SECUREBOOT_READINESS pool_guest_secureboot_readiness:
        "ready" "ready_no_dbx" "not_ready";
    /// Frequency of update downloads.
    UPDATE_SYNC_FREQUENCY update_sync_frequency: "daily" "weekly";
    /// Operations of a host.
    HOST_ALLOWED_OPERATIONS host_allowed_operations:
        "provision" "evacuate" "shutdown" "reboot" "power_on" "vm_start" "vm_resume" "vm_migrate"
        "apply_updates" "enable";
    /// Installation state of the latest updates.
    LATEST_SYNCED_UPDATES_APPLIED_STATE latest_synced_updates_applied_state:
        "yes" "no" "unknown";
    /// State of the host's own display.
    HOST_DISPLAY host_display: "enabled" "disable_on_reboot" "disabled" "enable_on_reboot";
    /// Placement of VMs on NUMA nodes.
    HOST_NUMA_AFFINITY_POLICY host_numa_affinity_policy: "any" "best_effort" "default_policy";
    /// Operations of a VBD.
    VBD_OPERATIONS vbd_operations:
        "attach" "eject" "insert" "plug" "unplug" "unplug_force" "pause" "unpause";
    /// Device type that a guest sees.
    VBD_TYPE vbd_type: "CD" "Disk" "Floppy";
    /// Access mode of a guest.
    VBD_MODE vbd_mode: "RO" "RW";
    /// Operations of a VDI.
    VDI_OPERATIONS vdi_operations:
        "clone" "copy" "resize" "resize_online" "snapshot" "mirror" "destroy" "forget" "update"
        "force_unlock" "generate_config" "enable_cbt" "disable_cbt" "data_destroy"
        "list_changed_blocks" "set_on_boot" "blocked";
    /// Purpose of a VDI.
    VDI_TYPE vdi_type:
        "system" "user" "ephemeral" "suspend" "crashdump" "ha_statefile" "metadata" "redo_log"
        "rrd" "pvs_cache" "cbt_metadata";
    /// Action on a disk's contents when its VM boots.
    ON_BOOT on_boot: "reset" "persist";
    /// Operations of an SR.
    STORAGE_OPERATIONS storage_operations:
        "scan" "destroy" "forget" "plug" "unplug" "update" "vdi_create" "vdi_introduce"
        "vdi_destroy" "vdi_resize" "vdi_clone" "vdi_snapshot" "vdi_mirror" "vdi_enable_cbt"
        "vdi_disable_cbt" "vdi_data_destroy" "vdi_list_changed_blocks" "vdi_set_on_boot"
        "pbd_create" "pbd_destroy";
    /// Operations of a VIF.
    VIF_OPERATIONS vif_operations: "attach" "plug" "unplug";
    /// Filtering of a VIF's traffic.
    VIF_LOCKING_MODE vif_locking_mode: "network_default" "locked" "unlocked" "disabled";
    /// Source of the guest's IPv4 address.
    VIF_IPV4_CONFIGURATION_MODE vif_ipv4_configuration_mode: "None" "Static";
    /// Source of the guest's IPv6 address.
    VIF_IPV6_CONFIGURATION_MODE vif_ipv6_configuration_mode: "None" "Static";
    /// Operations of a network.
    NETWORK_OPERATIONS network_operations: "attaching";
    /// Default filtering of a network's traffic, for VIFs without their own.
    NETWORK_DEFAULT_LOCKING_MODE network_default_locking_mode: "unlocked" "disabled";
    /// Purpose of a network.
    NETWORK_PURPOSE network_purpose: "nbd" "insecure_nbd";
    /// State of a switch's IGMP snooping.
    PIF_IGMP_STATUS pif_igmp_status: "enabled" "disabled" "unknown";
    /// Source of the host's IPv4 address.
    IP_CONFIGURATION_MODE ip_configuration_mode: "None" "DHCP" "Static";
    /// Source of the host's IPv6 address.
    IPV6_CONFIGURATION_MODE ipv6_configuration_mode: "None" "DHCP" "Static" "Autoconf";
    /// Primary address type.
    PRIMARY_ADDRESS_TYPE primary_address_type: "IPv4" "IPv6";
    /// Mode of a bond.
    BOND_MODE bond_mode: "balance-slb" "active-backup" "lacp";
    /// Protocol of a console.
    CONSOLE_PROTOCOL console_protocol: "vt100" "rfb" "rdp";
    /// Class of the object of a message.
    CLS cls: "VM" "Host" "SR" "Pool" "VMPP" "VMSS" "PVS_proxy" "VDI" "Certificate";
}
