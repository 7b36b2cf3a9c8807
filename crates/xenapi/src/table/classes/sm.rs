//! Storage managers: drivers for types of SRs.

use super::prelude::*;

fields! { "SM", PoolOperator;
    /// UUID.
    uuid: ro(Str),
    /// Name.
    name_label: ro(Str).opt(),
    /// Description.
    name_description: ro(Str).opt(),
    /// SR type that the driver supports.
    r#type: ro(Str),
    /// Vendor.
    vendor: ro(Str),
    /// Copyright.
    copyright: ro(Str),
    /// Version.
    version: ro(Str),
    /// Required version of the storage interface.
    required_api_version: ro(Str),
    /// Supported settings, each with its description.
    configuration: ro(PAIRS),
    /// Capabilities.
    capabilities: ro(STRS).opt(),
    /// Features, each with its version.
    features: ro(Map(&Str, &Int)).opt(),
    /// Additional settings of clients.
    other_config: rw(PAIRS).opt(),
    /// File name of the driver.
    driver_filename: ro(Str).opt(),
    /// Cluster stacks that shared SRs of this type require.
    required_cluster_stack: ro(STRS).opt(),
}

/// Definition of the class.
pub static CLASS: Class = Class::new(("SM", "A kind of storage"), Role::PoolOperator, FIELDS, &[]);
