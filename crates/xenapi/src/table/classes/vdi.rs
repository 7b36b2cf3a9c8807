//! VDIs: virtual disk images.

use super::prelude::*;

fields! { "VDI", VmAdmin;
    /// UUID.
    uuid: ro(Str),
    /// Name.
    name_label: rc(Str).opt(),
    /// Description.
    name_description: rc(Str).opt(),
    /// Operations that are currently allowed.
    allowed_operations: ro(Set(&Enum(&enums::VDI_OPERATIONS))).opt().volatile(),
    /// Operations in progress, by task.
    current_operations: ro(Map(&Str, &Enum(&enums::VDI_OPERATIONS))).opt().volatile(),
    /// SR of the disk.
    SR: rc(Ref("SR")),
    /// VBDs that use the disk.
    VBDs: ro(Set(&Ref("VBD"))).inverse("VBD", "VDI"),
    /// Crash dumps on the disk.
    crash_dumps: ro(Set(&Ref("crashdump"))),
    /// Size in bytes.
    virtual_size: rc(Int),
    /// Space that the disk uses in its SR, in bytes.
    physical_utilisation: ro(Int),
    /// Purpose of the disk.
    r#type: rc(Enum(&enums::VDI_TYPE)),
    /// True if several VMs may write to the disk at the same time.
    sharable: rc(Bool),
    /// True if the disk is read-only.
    read_only: rc(Bool),
    /// Additional settings of clients.
    other_config: rw(PAIRS),
    /// True if the storage holds a lock for the disk.
    storage_lock: ro(Bool),
    /// Location of the disk in its SR.
    location: ro(Str).opt(),
    /// True if the toolstack manages the use of the disk.
    managed: ro(Bool),
    /// True if the disk is missing from its SR.
    missing: ro(Bool),
    /// Always null, for old clients.
    parent: ro(Ref("VDI")),
    /// Data about the disk for its storage.
    xenstore_data: rw(PAIRS).opt(),
    /// Settings of the driver.
    sm_config: rw(PAIRS).opt(),
    /// True for a snapshot.
    is_a_snapshot: ro(Bool).opt(),
    /// Disk of which this one is a snapshot.
    snapshot_of: ro(Ref("VDI")).opt(),
    /// Snapshots of the disk.
    snapshots: ro(Set(&Ref("VDI"))).inverse("VDI", "snapshot_of"),
    /// Time of the snapshot.
    snapshot_time: ro(Date).opt(),
    /// Tags for sorting.
    tags: rw(STRS).opt().writer(VmOperator),
    /// True if hosts may cache data of the disk.
    allow_caching: ro(Bool).opt(),
    /// Action on the contents when the VM boots.
    on_boot: ro(Enum(&enums::ON_BOOT)).or(Text("persist")),
    /// Pool whose state is on the disk.
    metadata_of_pool: ro(Ref("pool")).opt(),
    /// True if the disk has the latest state of that pool.
    metadata_latest: ro(Bool).opt(),
    /// True for a CD with the drivers for guests.
    is_tools_iso: ro(Bool).opt(),
    /// True if changed block tracking is enabled.
    cbt_enabled: ro(Bool).opt(),
}

messages! {
    /// Creates a snapshot.
    VmAdmin Long snapshot(vdi: Ref("VDI"); driver_params: PAIRS) -> Ref("VDI");
    /// Creates a clone that shares equal data.
    VmAdmin Long clone(vdi: Ref("VDI"); driver_params: PAIRS) -> Ref("VDI");
    /// Creates a full copy, in the same SR or another.
    VmAdmin Long copy(vdi: Ref("VDI"), sr: Ref("SR"); base_vdi: Ref("VDI"), into_vdi: Ref("VDI"))
        -> Ref("VDI");
    /// Enlarges the disk to this size in bytes.
    VmAdmin Long resize(vdi: Ref("VDI"), size: Int);
    /// Enlarges the disk to this size in bytes while a VM uses it.
    VmAdmin Long resize_online(vdi: Ref("VDI"), size: Int);
    /// Creates the record of an existing disk.
    VmAdmin Long introduce(uuid: Str, name_label: Str, name_description: Str, SR: Ref("SR"),
        type: Enum(&enums::VDI_TYPE), sharable: Bool, read_only: Bool, other_config: PAIRS,
        location: Str; xenstore_data: PAIRS, sm_config: PAIRS, managed: Bool => Yes, virtual_size: Int,
        physical_utilisation: Int, metadata_of_pool: Ref("pool"), is_a_snapshot: Bool,
        snapshot_time: Date, snapshot_of: Ref("VDI")) -> Ref("VDI");
    /// Removes the record of the disk. Its contents stay.
    VmAdmin Long forget(vdi: Ref("VDI"));
    /// Updates the record from the storage.
    VmAdmin Long update(vdi: Ref("VDI"));
    /// Sets the name.
    VmAdmin Long set_name_label(self: Ref("VDI"), value: Str);
    /// Sets the description.
    VmAdmin Long set_name_description(self: Ref("VDI"), value: Str);
    /// Sets whether the disk is read-only.
    VmAdmin Long set_read_only(self: Ref("VDI"), value: Bool);
    /// Sets whether several VMs may write to the disk at the same time.
    VmAdmin Long set_sharable(self: Ref("VDI"), value: Bool);
    /// Sets the action on the contents when the VM boots.
    VmAdmin Long set_on_boot(self: Ref("VDI"), value: Enum(&enums::ON_BOOT));
    /// Sets whether hosts may cache data of the disk.
    VmAdmin Long set_allow_caching(self: Ref("VDI"), value: Bool);
    /// Migrates the disk to another SR while a VM uses it.
    VmPowerAdmin Long pool_migrate(vdi: Ref("VDI"), sr: Ref("SR"), options: PAIRS) -> Ref("VDI");
    /// Enables changed block tracking.
    VmAdmin Long enable_cbt(self: Ref("VDI"));
    /// Disables changed block tracking.
    VmAdmin Long disable_cbt(self: Ref("VDI"));
    /// Returns the blocks that differ between two disks, as a bitmap in Base64.
    VmOperator Long list_changed_blocks(vdi_from: Ref("VDI"), vdi_to: Ref("VDI")) -> Str;
    /// Deletes the contents of a snapshot but preserves its changed block information.
    VmAdmin Long data_destroy(self: Ref("VDI"));
    /// Returns the addresses for reading the disk over NBD. Empty without a network for NBD.
    VmAdmin Long get_nbd_info(self: Ref("VDI")) -> Set(&Record("vdi_nbd_server_info"));
}

/// Definition of the class.
pub static CLASS: Class =
    Class::new(("VDI", "A disk, wherever it is kept"), Role::VmAdmin, FIELDS, MESSAGES)
        .created(MessageKind::Long);
