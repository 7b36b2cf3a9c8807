//! Disks.

use super::prelude::*;

fields! { "VDI", VmAdmin;
    /// Its UUID.
    uuid: ro(Str),
    /// Its name.
    name_label: rc(Str).opt(),
    /// What it is for.
    name_description: rc(Str).opt(),
    /// What may be asked of it now.
    allowed_operations: ro(Set(&Enum(&enums::VDI_OPERATIONS))).opt().volatile(),
    /// What it is doing: from a task to an operation.
    current_operations: ro(Map(&Str, &Enum(&enums::VDI_OPERATIONS))).opt().volatile(),
    /// Where it is.
    SR: rc(Ref("SR")),
    /// Devices of machines that show it.
    VBDs: ro(Set(&Ref("VBD"))).inverse("VBD", "VDI"),
    /// Crash dumps on it.
    crash_dumps: ro(Set(&Ref("crashdump"))),
    /// Its size, in bytes.
    virtual_size: rc(Int),
    /// What it takes where it is, in bytes.
    physical_utilisation: ro(Int),
    /// What it is for.
    r#type: rc(Enum(&enums::VDI_TYPE)),
    /// Several machines may write to it at the same time.
    sharable: rc(Bool),
    /// Nobody may write to it.
    read_only: rc(Bool),
    /// Whatever clients keep with it.
    other_config: rw(PAIRS),
    /// Its storage holds a lock for it.
    storage_lock: ro(Bool),
    /// What it is called where it is.
    location: ro(Str).opt(),
    /// The toolstack knows how it is used.
    managed: ro(Bool),
    /// It is not where it was.
    missing: ro(Bool),
    /// Kept for old clients; none.
    parent: ro(Ref("VDI")),
    /// What its storage is told about it.
    xenstore_data: rw(PAIRS).opt(),
    /// What its driver keeps with it.
    sm_config: rw(PAIRS).opt(),
    /// It is a snapshot.
    is_a_snapshot: ro(Bool).opt(),
    /// The disk of which it is a snapshot.
    snapshot_of: ro(Ref("VDI")).opt(),
    /// Its snapshots.
    snapshots: ro(Set(&Ref("VDI"))).inverse("VDI", "snapshot_of"),
    /// When it was taken as a snapshot.
    snapshot_time: ro(Date).opt(),
    /// Words by which people sort.
    tags: rw(STRS).opt().writer(VmOperator),
    /// Hosts may keep copies of what they read from it.
    allow_caching: ro(Bool).opt(),
    /// What becomes of its contents when its machine boots.
    on_boot: ro(Enum(&enums::ON_BOOT)).or(Text("persist")),
    /// The pool whose state is on it.
    metadata_of_pool: ro(Ref("pool")).opt(),
    /// That state is the latest.
    metadata_latest: ro(Bool).opt(),
    /// It is a CD with the drivers for guests.
    is_tools_iso: ro(Bool).opt(),
    /// Its changed blocks are noted.
    cbt_enabled: ro(Bool).opt(),
}

messages! {
    /// Keeps it as it is.
    VmAdmin Long snapshot(vdi: Ref("VDI"); driver_params: PAIRS) -> Ref("VDI");
    /// Makes another one that shares what is equal.
    VmAdmin Long clone(vdi: Ref("VDI"); driver_params: PAIRS) -> Ref("VDI");
    /// Makes another one of its own, here or elsewhere.
    VmAdmin Long copy(vdi: Ref("VDI"), sr: Ref("SR"); base_vdi: Ref("VDI"), into_vdi: Ref("VDI"))
        -> Ref("VDI");
    /// Makes it larger; size in bytes.
    VmAdmin Long resize(vdi: Ref("VDI"), size: Int);
    /// Makes it larger while a machine uses it; size in bytes.
    VmAdmin Long resize_online(vdi: Ref("VDI"), size: Int);
    /// Makes one known that is there already.
    VmAdmin Long introduce(uuid: Str, name_label: Str, name_description: Str, SR: Ref("SR"),
        type: Enum(&enums::VDI_TYPE), sharable: Bool, read_only: Bool, other_config: PAIRS,
        location: Str; xenstore_data: PAIRS, sm_config: PAIRS, managed: Bool => Yes, virtual_size: Int,
        physical_utilisation: Int, metadata_of_pool: Ref("pool"), is_a_snapshot: Bool,
        snapshot_time: Date, snapshot_of: Ref("VDI")) -> Ref("VDI");
    /// Forgets it; its contents stay.
    VmAdmin Long forget(vdi: Ref("VDI"));
    /// Finds out again what its storage says of it.
    VmAdmin Long update(vdi: Ref("VDI"));
    /// Gives it another name.
    VmAdmin Long set_name_label(self: Ref("VDI"), value: Str);
    /// Says what it is for.
    VmAdmin Long set_name_description(self: Ref("VDI"), value: Str);
    /// Sets whether anybody may write to it.
    VmAdmin Long set_read_only(self: Ref("VDI"), value: Bool);
    /// Sets whether several machines may write to it at the same time.
    VmAdmin Long set_sharable(self: Ref("VDI"), value: Bool);
    /// Sets what becomes of its contents when its machine boots.
    VmAdmin Long set_on_boot(self: Ref("VDI"), value: Enum(&enums::ON_BOOT));
    /// Sets whether hosts may keep copies of what they read from it.
    VmAdmin Long set_allow_caching(self: Ref("VDI"), value: Bool);
    /// Moves it to another storage repository while a machine uses it.
    VmPowerAdmin Long pool_migrate(vdi: Ref("VDI"), sr: Ref("SR"), options: PAIRS) -> Ref("VDI");
    /// Begins to note its changed blocks.
    VmAdmin Long enable_cbt(self: Ref("VDI"));
    /// Notes its changed blocks no longer.
    VmAdmin Long disable_cbt(self: Ref("VDI"));
    /// Blocks that differ between two disks, as a bitmap in Base64.
    VmOperator Long list_changed_blocks(vdi_from: Ref("VDI"), vdi_to: Ref("VDI")) -> Str;
    /// Removes the contents of a snapshot and keeps which blocks had changed.
    VmAdmin Long data_destroy(self: Ref("VDI"));
    /// Where it can be read by NBD; nowhere, if it is of no network for that.
    VmAdmin Long get_nbd_info(self: Ref("VDI")) -> Set(&Record("vdi_nbd_server_info"));
}

/// The class.
pub static CLASS: Class =
    Class::new(("VDI", "A disk, wherever it is kept"), Role::VmAdmin, FIELDS, MESSAGES)
        .created(MessageKind::Long);
