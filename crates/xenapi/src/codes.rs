//! Error codes of the API, with a constructor function for each.

use crate::ApiError;

/// Error code with its meaning and its parameters.
#[derive(Debug, PartialEq, Eq)]
pub struct Code {
    /// Name on the wire.
    pub name: &'static str,
    /// Meaning in one or two sentences.
    pub(crate) doc: &'static str,
    /// Names of the parameters, in order.
    pub params: &'static [&'static str],
}

macro_rules! codes {
    ($($(#[doc = $doc:literal])+ $code:ident $function:ident($($param:ident),*);)+) => {
        $($(#[doc = $doc])+
        pub fn $function($($param: impl Into<String>),*) -> ApiError {
            ApiError::new(stringify!($code), [$($param.into()),*] as [String; _])
        })+

        /// All codes.
        pub const ALL: &[Code] = &[$(Code {
            name: stringify!($code),
            doc: concat!($($doc),+),
            params: &[$(stringify!($param)),*],
        }),+];
    };
}

codes! {
    /// There is no such call.
    MESSAGE_METHOD_UNKNOWN method_unknown(method);
    /// The call takes another number of parameters.
    MESSAGE_PARAMETER_COUNT_MISMATCH parameter_count(method, expected, received);
    /// There used to be such a call. It is gone.
    MESSAGE_REMOVED message_removed();
    /// The call is known and this server does not do it.
    NOT_IMPLEMENTED not_implemented(method);
    /// A value is of the wrong type, or is missing.
    FIELD_TYPE_ERROR field_type(field);
    /// A value is not one that can be used.
    INVALID_VALUE invalid_value(field, value);
    /// A value could be used elsewhere, but not here.
    VALUE_NOT_SUPPORTED value_not_supported(field, value, reason);
    /// The reference names nothing of this class. It may have been destroyed.
    HANDLE_INVALID handle_invalid(class, reference);
    /// No object of this class has this UUID.
    UUID_INVALID uuid_invalid(class, uuid);
    /// The map has this key already. Remove it before you add it.
    MAP_DUPLICATE_KEY map_duplicate_key(class, field, uuid, key);
    /// Another object of this class has this value, which must be unique.
    DB_UNIQUENESS_CONSTRAINT_VIOLATION db_uniqueness(class, field, value);
    /// Something in the server is broken. This is a mistake in the server, not in the call.
    INTERNAL_ERROR internal(message);
    /// The file system that holds this is full.
    OUT_OF_SPACE out_of_space(location);

    /// The session has ended, or never was. Log in again.
    SESSION_INVALID session_invalid(session);
    /// The login failed. If name or password is wrong, check both: they are in the server's password
    /// file, or with PAM those of its host.
    SESSION_AUTHENTICATION_FAILED authentication_failed(user, reason);
    /// The password is right, but the account has expired or has no role on this server. On the
    /// server, renew it, or add the user to the group ringway-admin or ringway-ro.
    SESSION_AUTHORIZATION_FAILED authorization_failed(user, reason);
    /// Only root of the host may do this.
    USER_IS_NOT_LOCAL_SUPERUSER not_local_superuser(msg);
    /// The new password was not taken. The old one holds.
    CHANGE_PASSWORD_REJECTED change_password_rejected(msg);
    /// The user's roles do not permit this call.
    RBAC_PERMISSION_DENIED permission_denied(permission, reason);
    /// There is no such role.
    ROLE_NOT_FOUND role_not_found();
    /// The user has this role already.
    ROLE_ALREADY_EXISTS role_already_exists();
    /// This user may log in already.
    SUBJECT_ALREADY_EXISTS subject_already_exists();

    /// Too many calls are under way. Try again when some of them have ended.
    TOO_MANY_PENDING_TASKS too_many_pending_tasks();
    /// The task was cancelled.
    TASK_CANCELLED task_cancelled(task);
    /// The token does not come from this server.
    EVENT_FROM_TOKEN_PARSE_FAILURE event_token(token);
    /// This is neither `*`, nor a class, nor a class with an object after a slash.
    EVENT_SUBSCRIPTION_PARSE_FAILURE event_subscription(subscription);

    /// This cannot be done now.
    OPERATION_NOT_ALLOWED operation_not_allowed(reason);
    /// Somebody has forbidden this operation of this object.
    OPERATION_BLOCKED operation_blocked(object, reason);
    /// Another operation of this object is under way, and did not end in time.
    OTHER_OPERATION_IN_PROGRESS other_operation(class, object, operation, task);

    /// The machine is in a state in which this cannot be done.
    VM_BAD_POWER_STATE bad_power_state(vm, expected, actual);
    /// This cannot be done to a template. Make a machine of it first.
    VM_IS_TEMPLATE vm_is_template(vm);
    /// This cannot be done to a snapshot. Make a machine of it first.
    VM_IS_SNAPSHOT vm_is_snapshot(vm);
    /// The guest's file systems could not be brought to rest, or not be let go on.
    VM_SNAPSHOT_WITH_QUIESCE_FAILED vm_quiesce_failed(vm, error);
    /// The guest took too long to bring its file systems to rest.
    VM_SNAPSHOT_WITH_QUIESCE_TIMEOUT vm_quiesce_timeout(vm);
    /// The guest has no agent that answers.
    VM_SNAPSHOT_WITH_QUIESCE_PLUGIN_DEOS_NOT_RESPOND vm_quiesce_no_agent(vm);
    /// Only a template can be provisioned. A machine has its disks already.
    PROVISION_ONLY_ALLOWED_ON_TEMPLATE provision_only_template();
    /// The guest has not said that it can do this.
    VM_LACKS_FEATURE vm_lacks_feature(vm);
    /// The guest has not said that it can shut down when asked.
    VM_LACKS_FEATURE_SHUTDOWN vm_lacks_shutdown(vm);
    /// The guest has no drivers for virtual devices.
    VM_MISSING_PV_DRIVERS vm_missing_drivers(vm);
    /// The guest was asked to shut down and did not do it in time.
    VM_SHUTDOWN_TIMEOUT vm_shutdown_timeout(vm, seconds);
    /// The host has too little free memory for this. Both are in bytes.
    HOST_NOT_ENOUGH_FREE_MEMORY not_enough_memory(needed, available);
    /// The bounds of a machine's memory must not cross.
    MEMORY_CONSTRAINT_VIOLATION memory_constraint(constraint);
    /// The program that runs the machine could not be started.
    FAILED_TO_START_EMULATOR emulator_failed(vm, program, reason);
    /// The machine cannot boot like this.
    BOOTLOADER_FAILED bootloader_failed(vm, reason);

    /// The machine has this device already.
    DEVICE_ALREADY_ATTACHED device_already_attached(device);
    /// The machine does not have this device now.
    DEVICE_ALREADY_DETACHED device_already_detached(device);
    /// Another device of this machine has this number.
    DEVICE_ALREADY_EXISTS device_already_exists(device);
    /// There is no device of this number.
    INVALID_DEVICE invalid_device(device);
    /// The device was not there in time.
    DEVICE_ATTACH_TIMEOUT device_attach_timeout(class, device);
    /// The device was not gone in time. It goes when the guest lets go of it.
    DEVICE_DETACH_TIMEOUT device_detach_timeout(class, device);
    /// The device cannot be attached.
    DEVICE_ATTACH_REJECTED device_attach_rejected(class, device, reason);
    /// The guest does not give this device back.
    DEVICE_DETACH_REJECTED device_detach_rejected(class, device, reason);
    /// This device stays in its machine while that runs.
    VBD_NOT_UNPLUGGABLE vbd_not_unpluggable(vbd);
    /// There is nothing in this drive.
    VBD_IS_EMPTY vbd_is_empty(vbd);
    /// There is something in this drive. Take it out first.
    VBD_NOT_EMPTY vbd_not_empty(vbd);
    /// What is in this device cannot be changed.
    VBD_NOT_REMOVABLE_MEDIA vbd_not_removable(vbd);
    /// A CD cannot be written to.
    VBD_CDS_MUST_BE_READONLY vbd_cds_are_read_only();

    /// The disk is in use.
    VDI_IN_USE vdi_in_use(vdi, operation);
    /// The disk cannot be written to.
    VDI_READONLY vdi_read_only(vdi);
    /// The disk is not where it was. Eject a CD that is gone; bring another image back, then scan the
    /// storage.
    VDI_MISSING vdi_missing(sr, vdi);
    /// A disk of this type cannot be used for this.
    VDI_INCOMPATIBLE_TYPE vdi_incompatible_type(vdi, vdi_type);
    /// The image is not one that this disk can take.
    IMPORT_ERROR import_error(reason);
    /// The connection ended before the image did. The disk has its former content.
    IMPORT_ERROR_PREMATURE_EOF import_cut();
    /// A VHD has no disk as large as this. The second is the largest size in bytes.
    VDI_TOO_LARGE vdi_too_large(vdi, maximum);
    /// The storage has too little room for this. Both are in bytes.
    SR_FULL sr_full(requested, maximum);
    /// The host is not connected to this storage.
    SR_NOT_ATTACHED sr_not_attached(sr);
    /// No host has a connection to this storage. Create one and plug it.
    SR_HAS_NO_PBDS sr_has_no_pbds(sr);
    /// A host is connected to this storage. Unplug the connection first.
    SR_HAS_PBD sr_has_pbd(sr);
    /// There are disks in this storage.
    SR_NOT_EMPTY sr_not_empty();
    /// There is storage with this UUID already.
    SR_UUID_EXISTS sr_uuid_exists(uuid);
    /// There is no driver for storage of this type.
    SR_UNKNOWN_DRIVER sr_unknown_driver(driver);
    /// The driver of this storage does not do this.
    SR_OPERATION_NOT_SUPPORTED sr_operation_not_supported(sr);
    /// The storage failed.
    SR_BACKEND_FAILURE sr_backend_failure(status, output, error);
    /// The host has a connection to this storage already.
    PBD_EXISTS pbd_exists(sr, host, pbd);

    /// Another network has this bridge. Use that network.
    BRIDGE_NAME_EXISTS bridge_name_exists(bridge);
    /// A machine has a device on this network.
    NETWORK_CONTAINS_VIF network_contains_vif(vifs);
    /// A host has a device on this network.
    NETWORK_CONTAINS_PIF network_contains_pif(pifs);
    /// The host has no network device of this name.
    PIF_DEVICE_NOT_FOUND pif_device_not_found();
    /// A network device of the host is known already.
    DUPLICATE_PIF_DEVICE_NAME duplicate_pif_device_name(device);
    /// The host has no network device of this name and Ethernet address.
    COULD_NOT_FIND_NETWORK_INTERFACE_WITH_SPECIFIED_DEVICE_NAME_AND_MAC_ADDRESS no_such_interface(device, mac);
    /// The host's own tools manage this network device.
    PIF_UNMANAGED pif_unmanaged(pif);
    /// The host is reached through this network device.
    PIF_IS_MANAGEMENT_INTERFACE pif_is_management(pif);
    /// This network device has hardware.
    PIF_IS_PHYSICAL pif_is_physical(pif);
    /// A tag of a VLAN is a number from 0 to 4094.
    VLAN_TAG_INVALID vlan_tag_invalid(vlan);
    /// This network device must stay up.
    PIF_DOES_NOT_ALLOW_UNPLUG pif_does_not_allow_unplug(pif);
    /// A device of a machine is plugged into this network.
    VIF_IN_USE vif_in_use(network, vif);
    /// This is no Ethernet address for one device. One is written as six bytes: 02:00:00:00:00:01.
    MAC_INVALID mac_invalid(mac);

    /// Machines cannot be started on this host now. Enable it first.
    HOST_DISABLED host_disabled(host);
    /// The host must be disabled first.
    HOST_NOT_DISABLED host_not_disabled();
    /// There is no other host on which this machine could run.
    NO_HOSTS_AVAILABLE no_hosts_available(vm);
    /// Machines that run here can go nowhere: each with its reason.
    CANNOT_EVACUATE_HOST cannot_evacuate_host(errors);
    /// There is no such plugin.
    XENAPI_MISSING_PLUGIN missing_plugin(name);
}
