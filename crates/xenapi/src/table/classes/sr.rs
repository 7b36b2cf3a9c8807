//! Storage repositories.

use super::prelude::*;

fields! { "SR", PoolOperator;
    /// Its UUID.
    uuid: ro(Str),
    /// Its name.
    name_label: rc(Str).opt(),
    /// What it is for.
    name_description: rc(Str).opt(),
    /// What may be asked of it now.
    allowed_operations: ro(Set(&Enum(&enums::STORAGE_OPERATIONS))).opt().volatile(),
    /// What it is doing: from a task to an operation.
    current_operations: ro(Map(&Str, &Enum(&enums::STORAGE_OPERATIONS))).opt().volatile(),
    /// Its disks.
    VDIs: ro(Set(&Ref("VDI"))).inverse("VDI", "SR"),
    /// Hosts' connections to it.
    PBDs: ro(Set(&Ref("PBD"))).inverse("PBD", "SR"),
    /// Sizes of its disks in sum, in bytes.
    virtual_allocation: ro(Int),
    /// What is taken of it, in bytes.
    physical_utilisation: ro(Int),
    /// How large it is, in bytes.
    physical_size: rc(Int),
    /// The kind of storage.
    r#type: rc(Str),
    /// What it holds: `user`, `iso` and the like.
    content_type: rc(Str),
    /// Several hosts can use it at the same time.
    shared: ro(Bool),
    /// Whatever clients keep with it.
    other_config: rw(PAIRS),
    /// Words by which people sort.
    tags: rw(STRS).opt().writer(VmOperator),
    /// What its driver keeps with it.
    sm_config: rw(PAIRS).opt(),
    /// Data kept with it.
    blobs: ro(BLOBS).opt(),
    /// Hosts keep copies on it of what they read elsewhere.
    local_cache_enabled: ro(Bool).opt(),
    /// The recovery that made it known.
    introduced_by: ro(Ref("DR_task")).opt(),
    /// Hosts that use it watch each other.
    clustered: ro(Bool).opt(),
    /// It holds the drivers for guests.
    is_tools_sr: ro(Bool).opt(),
}

messages! {
    /// Makes one, and connects the host to it.
    PoolOperator Long create(host: Ref("host"), device_config: PAIRS, physical_size: Int,
        name_label: Str, name_description: Str, type: Str, content_type: Str, shared: Bool;
        sm_config: PAIRS) -> Ref("SR");
    /// Makes one known that is there already.
    PoolOperator Long introduce(uuid: Str, name_label: Str, name_description: Str, type: Str,
        content_type: Str, shared: Bool; sm_config: PAIRS) -> Ref("SR");
    /// Removes it with all that it holds.
    PoolOperator Long destroy(sr: Ref("SR"));
    /// Forgets it; what it holds stays.
    PoolOperator Long forget(sr: Ref("SR"));
    /// Finds out its size again.
    PoolOperator Long update(sr: Ref("SR"));
    /// Finds out again which disks it holds.
    VmPowerAdmin Long scan(sr: Ref("SR"));
    /// Looks for storage repositories, told as XML.
    PoolOperator Long probe(host: Ref("host"), device_config: PAIRS, type: Str; sm_config: PAIRS)
        -> Str;
    /// Looks for storage repositories.
    PoolOperator Long probe_ext(
        host: Ref("host"), device_config: PAIRS, type: Str; sm_config: PAIRS)
        -> Set(&Record("probe_result"));
    /// Kinds of storage that can be had.
    ReadOnly Short get_supported_types() -> STRS;
    /// Gives it another name.
    PoolOperator Long set_name_label(sr: Ref("SR"), value: Str);
    /// Says what it is for.
    PoolOperator Long set_name_description(sr: Ref("SR"), value: Str);
    /// Sets whether several hosts can use it at the same time.
    PoolOperator Long set_shared(sr: Ref("SR"), value: Bool);
    /// Says how large it is, in bytes.
    PoolOperator Long set_physical_size(self: Ref("SR"), value: Int);
    /// Makes a place for data kept with it.
    PoolOperator Short create_new_blob(sr: Ref("SR"), name: Str, mime_type: Str; public: Bool)
        -> Ref("blob");
    /// Fails if hosts cannot see each other live by it.
    PoolOperator Long assert_can_host_ha_statefile(sr: Ref("SR"));
    /// Fails if it cannot hold a copy of the state.
    PoolOperator Long assert_supports_database_replication(sr: Ref("SR"));
    /// Begins to keep a copy of the state on it.
    PoolOperator Long enable_database_replication(sr: Ref("SR"));
    /// Keeps no copy of the state on it any more.
    PoolOperator Long disable_database_replication(sr: Ref("SR"));
    /// What can be measured of it.
    ReadOnly Short get_data_sources(sr: Ref("SR")) -> SOURCES;
    /// What is measured of it now, by name.
    ReadOnly Short query_data_source(sr: Ref("SR"), data_source: Str) -> Float;
    /// Begins to keep what is measured.
    PoolOperator Short record_data_source(sr: Ref("SR"), data_source: Str);
    /// Forgets what was measured.
    PoolOperator Short forget_data_source_archives(sr: Ref("SR"), data_source: Str);
}

/// The class.
pub static CLASS: Class =
    Class::new(("SR", "A place where disks are"), Role::PoolOperator, FIELDS, MESSAGES);
