//! What is there before anybody has asked for anything.
//!
//! The first start makes the pool, its host with the control domain, a storage repository, a
//! network and two templates. Every start tells again what may be another by then: the host's CPUs,
//! its memory, its software; and the roles, which are kept in memory only.

mod facts;
mod host;
mod storage;
mod templates;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use xenapi::table::{Role, network, pool, role};
use xenapi::{ApiError, Date, Value};

pub use facts::{CpuFacts, HostFacts};
pub(crate) use host::measured;
pub use storage::{DefaultSr, make_sr};

use crate::db::{Ref, Tx};

/// What the records tell of the product.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Product {
    /// Clients do what they do for a brand that they know.
    pub brand: String,
    /// Numbers with dots between them.
    pub version: String,
    /// Numbers with dots between them.
    pub platform: String,
}

/// What a start knows.
#[derive(Clone, Debug)]
pub struct BootstrapInput<'a> {
    /// The host.
    pub host: &'a HostFacts,
    /// Where it is reached.
    pub address: &'a str,
    /// What it runs.
    pub product: &'a Product,
    /// Types of storage that it has drivers for.
    pub kinds: &'a [&'static str],
    /// The bridge of the internal network.
    pub bridge: &'a str,
    /// Directories from which machines may boot.
    pub boot: &'a [PathBuf],
    /// What is told of the control groups.
    pub slices: &'a str,
    /// Now.
    pub now: Date,
}

/// Whether this is the first start.
pub fn is_first(tx: &Tx<'_>) -> bool {
    tx.view().count(&pool::CLASS) == 0
}

/// Makes what the first start makes, with this storage.
///
/// # Errors
/// None but that of a broken table.
pub fn create_initial(
    tx: &mut Tx<'_>,
    setup: &BootstrapInput<'_>,
    sr: &DefaultSr,
) -> Result<(), ApiError> {
    let host = host::make(tx, setup)?;
    let place = storage::record(tx, &host, sr)?;
    let fields = vec![
        (pool::Field::name_label.into(), Value::text("")),
        (pool::Field::master.into(), host.value()),
        (pool::Field::default_SR.into(), place.value()),
        (pool::Field::suspend_image_SR.into(), place.value()),
        (pool::Field::crash_dump_SR.into(), place.value()),
    ];
    tx.create(&pool::CLASS, fields)?;
    internal_network(tx, setup.bridge)?;
    templates::make(tx, setup.boot)
}

/// Tells what may have become another since the last start.
///
/// # Errors
/// None but that of a broken table.
pub fn refresh(tx: &mut Tx<'_>, setup: &BootstrapInput<'_>) -> Result<(), ApiError> {
    roles(tx)?;
    storage::kinds(tx, setup.kinds, &setup.product.version)?;
    host::tell(tx, setup)
}

fn internal_network(tx: &mut Tx<'_>, bridge: &str) -> Result<Ref, ApiError> {
    let what = "Machines on it reach each other, and nothing else";
    let fields = vec![
        (network::Field::name_label.into(), Value::text("Internal network")),
        (network::Field::name_description.into(), Value::text(what)),
        (network::Field::bridge.into(), Value::text(bridge)),
    ];
    tx.create(&network::CLASS, fields)
}

fn roles(tx: &mut Tx<'_>) -> Result<(), ApiError> {
    for one in Role::ALL {
        if tx.view().by_uuid(&role::CLASS, one.uuid()).is_ok() {
            continue;
        }
        let fields = vec![
            (role::Field::uuid.into(), Value::text(one.uuid())),
            (role::Field::name_label.into(), Value::text(one.name())),
            (role::Field::name_description.into(), Value::text(one.description())),
        ];
        tx.create(&role::CLASS, fields)?;
    }
    Ok(())
}

/// From text to text.
fn pairs<const N: usize>(pairs: [(&str, &str); N]) -> Value {
    all_pairs(&pairs)
}

fn all_pairs(pairs: &[(&str, &str)]) -> Value {
    let pairs = pairs.iter().map(|(key, value)| ((*key).to_owned(), Value::text(*value)));
    Value::Map(pairs.collect())
}

fn number(number: u64) -> Value {
    Value::Int(i64::try_from(number).unwrap_or(i64::MAX))
}

fn count(number: usize) -> Value {
    Value::Int(i64::try_from(number).unwrap_or(i64::MAX))
}

/// A path as a record holds it.
fn path(path: &Path) -> Value {
    Value::text(path.to_string_lossy())
}
