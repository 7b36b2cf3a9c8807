//! Calls on golden images: `golden.warm`, `golden.cancel`, `golden.export_boot_set`,
//! `golden.import_boot_set`, `golden.clean`.

use std::time::Duration;

use model::rpc::{Call, RpcError};
use serde_json::Value;

use crate::disk_registry::DiskRegistry;
use crate::error::failed;

/// Runs a call on a golden image.
///
/// # Errors
/// No disk uses the image, or the cache directory cannot be used.
pub(crate) fn run(call: Call, disk_registry: &DiskRegistry) -> Result<Value, RpcError> {
    let identity =
        |image: &str| disk_registry.golden_identity(image).unwrap_or_else(|| image.to_owned());
    let done = match call {
        Call::GoldenWarm(warm) => golden::warm(&identity(&warm.image), warm.rate),
        Call::GoldenCancel(of) => golden::cancel_warm(&identity(&of.image)),
        Call::GoldenExport(of) => {
            let set = golden::export_boot_set(&identity(&of.image)).map_err(failed)?;
            return serde_json::to_value(set).map_err(failed);
        }
        Call::GoldenClean(clean) => {
            let unused = Duration::from_secs(clean.unused_seconds);
            let files = golden::clean_up(&clean.cache, clean.keep, unused).map_err(failed)?;
            return serde_json::to_value(files).map_err(failed);
        }
        Call::GoldenImport(import) => golden::import_boot_set(&import.cache, &import.boot_set),
        _ => Ok(()),
    };
    done.map_err(failed)?;
    Ok(Value::Object(Default::default()))
}
