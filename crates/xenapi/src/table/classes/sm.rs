//! Kinds of storage.

use super::prelude::*;

fields! { "SM", PoolOperator;
    /// Its UUID.
    uuid: ro(Str),
    /// Its name.
    name_label: ro(Str).opt(),
    /// What it is for.
    name_description: ro(Str).opt(),
    /// The type that its storage repositories have.
    r#type: ro(Str),
    /// Who made it.
    vendor: ro(Str),
    /// Whose it is.
    copyright: ro(Str),
    /// Its version.
    version: ro(Str),
    /// The version of the interface that it needs.
    required_api_version: ro(Str),
    /// Settings that it takes, each with what it means.
    configuration: ro(PAIRS),
    /// What it can do.
    capabilities: ro(STRS).opt(),
    /// What it can do, each with the version of how.
    features: ro(Map(&Str, &Int)).opt(),
    /// Whatever clients keep with it.
    other_config: rw(PAIRS).opt(),
    /// Its program.
    driver_filename: ro(Str).opt(),
    /// What keeps hosts together that share it.
    required_cluster_stack: ro(STRS).opt(),
}

/// The class.
pub static CLASS: Class = Class::new(("SM", "A kind of storage"), Role::PoolOperator, FIELDS, &[]);
