//! SRs: storage repositories.

use super::prelude::*;

fields! { "SR", PoolOperator;
    /// UUID.
    uuid: ro(Str),
    /// Name.
    name_label: rc(Str).opt(),
    /// Description.
    name_description: rc(Str).opt(),
    /// Operations that are currently allowed.
    allowed_operations: ro(Set(&Enum(&enums::STORAGE_OPERATIONS))).opt().volatile(),
    /// Operations in progress, by task.
    current_operations: ro(Map(&Str, &Enum(&enums::STORAGE_OPERATIONS))).opt().volatile(),
    /// VDIs in the SR.
    VDIs: ro(Set(&Ref("VDI"))).inverse("VDI", "SR"),
    /// Connections of hosts to the SR.
    PBDs: ro(Set(&Ref("PBD"))).inverse("PBD", "SR"),
    /// Sum of the virtual sizes of its VDIs, in bytes.
    virtual_allocation: ro(Int),
    /// Used space in bytes.
    physical_utilisation: ro(Int),
    /// Total size in bytes.
    physical_size: rc(Int),
    /// SR type.
    r#type: rc(Str),
    /// Content type, for example `user` or `iso`.
    content_type: rc(Str),
    /// True if several hosts can use the SR at the same time.
    shared: ro(Bool),
    /// Additional settings of clients.
    other_config: rw(PAIRS),
    /// Tags for sorting.
    tags: rw(STRS).opt().writer(VmOperator),
    /// Settings of the driver.
    sm_config: rw(PAIRS).opt(),
    /// Blobs of data stored with the object, by name.
    blobs: ro(BLOBS).opt(),
    /// True if hosts may use the SR for cached copies of other storage.
    local_cache_enabled: ro(Bool).opt(),
    /// Disaster recovery task that introduced the SR.
    introduced_by: ro(Ref("DR_task")).opt(),
    /// True if the SR uses clustered locking between its hosts.
    clustered: ro(Bool).opt(),
    /// True if the SR contains the drivers for guests.
    is_tools_sr: ro(Bool).opt(),
}

messages! {
    /// Creates an SR and connects the host to it.
    PoolOperator Long create(host: Ref("host"), device_config: PAIRS, physical_size: Int,
        name_label: Str, name_description: Str, type: Str, content_type: Str, shared: Bool;
        sm_config: PAIRS) -> Ref("SR");
    /// Creates the record of an existing SR.
    PoolOperator Long introduce(uuid: Str, name_label: Str, name_description: Str, type: Str,
        content_type: Str, shared: Bool; sm_config: PAIRS) -> Ref("SR");
    /// Destroys the SR with its contents.
    PoolOperator Long destroy(sr: Ref("SR"));
    /// Removes the record of the SR. Its contents stay.
    PoolOperator Long forget(sr: Ref("SR"));
    /// Updates the size in the record.
    PoolOperator Long update(sr: Ref("SR"));
    /// Finds the VDIs in the SR and updates their records.
    VmPowerAdmin Long scan(sr: Ref("SR"));
    /// Finds SRs and returns them as XML.
    PoolOperator Long probe(host: Ref("host"), device_config: PAIRS, type: Str; sm_config: PAIRS)
        -> Str;
    /// Finds SRs.
    PoolOperator Long probe_ext(
        host: Ref("host"), device_config: PAIRS, type: Str; sm_config: PAIRS)
        -> Set(&Record("probe_result"));
    /// Returns the supported SR types.
    ReadOnly Short get_supported_types() -> STRS;
    /// Sets the name.
    PoolOperator Long set_name_label(sr: Ref("SR"), value: Str);
    /// Sets the description.
    PoolOperator Long set_name_description(sr: Ref("SR"), value: Str);
    /// Sets whether several hosts can use the SR at the same time.
    PoolOperator Long set_shared(sr: Ref("SR"), value: Bool);
    /// Sets the total size in bytes.
    PoolOperator Long set_physical_size(self: Ref("SR"), value: Int);
    /// Creates a blob for data stored with the object.
    PoolOperator Short create_new_blob(sr: Ref("SR"), name: Str, mime_type: Str; public: Bool)
        -> Ref("blob");
    /// Fails if the SR cannot hold a state file for high availability.
    PoolOperator Long assert_can_host_ha_statefile(sr: Ref("SR"));
    /// Fails if the SR cannot hold a copy of the state.
    PoolOperator Long assert_supports_database_replication(sr: Ref("SR"));
    /// Starts to replicate the state to the SR.
    PoolOperator Long enable_database_replication(sr: Ref("SR"));
    /// Stops replication of the state to the SR.
    PoolOperator Long disable_database_replication(sr: Ref("SR"));
    /// Returns the available data sources.
    ReadOnly Short get_data_sources(sr: Ref("SR")) -> SOURCES;
    /// Returns the current value of a data source.
    ReadOnly Short query_data_source(sr: Ref("SR"), data_source: Str) -> Float;
    /// Starts to record a data source.
    PoolOperator Short record_data_source(sr: Ref("SR"), data_source: Str);
    /// Deletes the recorded values of a data source.
    PoolOperator Short forget_data_source_archives(sr: Ref("SR"), data_source: Str);
}

/// Definition of the class.
pub static CLASS: Class =
    Class::new(("SR", "A place where disks are"), Role::PoolOperator, FIELDS, MESSAGES);
