//! Messages of class `pool`.

use std::collections::BTreeMap;

use error_causes::error_chain;
use xenapi::{Value, codes};

use crate::dispatch::generic::nothing;
use crate::dispatch::{Args, CallResult, Ctx, Handler};
use crate::persistence;

pub(super) const CALLS: super::Calls = &[
    ("pool.dump_database", Handler::Long(|ctx, _| Box::pin(dump_database(ctx)))),
    ("pool.sync_database", Handler::Short(sync_database)),
    ("pool.has_extension", Handler::Short(has_extension)),
    ("pool.get_guest_secureboot_readiness", Handler::Short(secureboot_readiness)),
    ("pool.get_license_state", Handler::Short(license_state)),
];

/// Writes nothing: answered changes are already stored.
fn sync_database(_: &Ctx, _: &Args) -> CallResult {
    Ok(nothing())
}

/// Copies all records, on a thread of its own because they may be many.
async fn dump_database(ctx: Ctx) -> CallResult {
    let copied = tokio::task::spawn_blocking(move || persistence::copy(&ctx.app.db)).await;
    let broken = |why: &dyn std::error::Error| codes::internal(error_chain(why));
    let text = copied.map_err(|error| broken(&error))?.map_err(|error| broken(&error))?;
    String::from_utf8(text).map(Value::Str).map_err(|error| broken(&error))
}

fn has_extension(_: &Ctx, _: &Args) -> CallResult {
    Ok(Value::Bool(false))
}

/// Returns that no guest can use secure boot, because there is no UEFI firmware.
fn secureboot_readiness(_: &Ctx, _: &Args) -> CallResult {
    Ok(Value::text("not_ready"))
}

/// Returns a licence that permits everything and never expires.
fn license_state(_: &Ctx, _: &Args) -> CallResult {
    let says = [("edition", "free"), ("expiry", "never")];
    let says = says.map(|(key, value)| (key.to_owned(), Value::text(value)));
    Ok(Value::Map(BTreeMap::from(says)))
}
