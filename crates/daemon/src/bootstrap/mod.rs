//! Creates the first records and refreshes them at each start.
//!
//! The first start creates the pool, its host with the control domain, an SR, a network and two
//! templates. Every start updates facts that may have changed: the host's CPUs, memory and
//! software. It also creates the roles, which live in memory only.

mod facts;
mod host;
mod storage;
mod templates;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use toolstack::sr::SrDriver;
use xenapi::table::{Role, console, network, pool, role, vif};
use xenapi::{ApiError, Date, Value};

pub use facts::{CpuFacts, HostFacts};
pub(crate) use host::measured;
pub use storage::{DefaultSr, make_sr};

use crate::db::{Object, Ref, Tx};
use crate::records::{effects, fields};

/// Product identity shown in the records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Product {
    /// Brand. Clients enable features for brands that they know.
    pub brand: String,
    /// Product version: numbers separated by dots.
    pub version: String,
    /// Platform version: numbers separated by dots.
    pub platform: String,
}

/// Inputs of bootstrap.
#[derive(Clone, Debug)]
pub struct BootstrapInput<'a> {
    /// Facts about the host.
    pub host: &'a HostFacts,
    /// Address of the host.
    pub address: &'a str,
    /// URL of the server without a path, for consoles.
    pub url: &'a str,
    /// Product identity.
    pub product: &'a Product,
    /// Drivers of the SR types.
    pub kinds: &'a [Arc<dyn SrDriver>],
    /// Bridge of the internal network.
    pub bridge: &'a str,
    /// Directories from which VMs may boot.
    pub boot: &'a [PathBuf],
    /// State of the control groups, shown as `control_slice` in `software_version`.
    pub slices: &'a str,
    /// Current time.
    pub now: Date,
}

/// Returns whether this is the first start.
pub fn is_first(tx: &Tx<'_>) -> bool {
    tx.view().count(&pool::CLASS) == 0
}

/// Creates the records of the first start, with this SR as default.
///
/// # Errors
/// Only if the class table is inconsistent, which is a bug.
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

/// Updates records of facts that may have changed since the last start.
///
/// # Errors
/// Only if the class table is inconsistent, which is a bug.
pub fn refresh(tx: &mut Tx<'_>, setup: &BootstrapInput<'_>) -> Result<(), ApiError> {
    roles(tx)?;
    consoles(tx, setup.url)?;
    interfaces(tx)?;
    storage::kinds(tx, setup.kinds, &setup.product.version)?;
    templates::refresh(tx)?;
    host::refresh(tx, setup)
}

/// Updates the URLs of the consoles, because the port or the address may have changed.
fn consoles(tx: &mut Tx<'_>, url: &str) -> Result<(), ApiError> {
    let all: Vec<Ref> = tx.view().all(&console::CLASS).map(Object::reference).cloned().collect();
    all.iter().try_for_each(|one| effects::locate_console(tx, one, url))
}

/// Makes the VIFs show the MTU of their networks, which applies to them. Earlier versions recorded
/// what the client had said.
fn interfaces(tx: &mut Tx<'_>) -> Result<(), ApiError> {
    let all: Vec<Ref> = tx.view().all(&vif::CLASS).map(Object::reference).cloned().collect();
    for one in all {
        let net = fields::reference(&tx.view(), &one, vif::Field::network)?;
        // A VIF without its network stays as it is.
        if let Ok(mtu) = tx.view().get(&net, network::Field::MTU).cloned() {
            tx.set(&one, vif::Field::MTU, mtu)?;
        }
    }
    Ok(())
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

/// Builds a map from text to text.
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

/// Converts a path to a record value.
fn path(path: &Path) -> Value {
    Value::text(path.to_string_lossy())
}
