//! Validates configured values and fills in defaults.

use std::num::NonZero;
use std::path::Path;
use std::thread::available_parallelism;
use std::time::Duration;

use model::admission::StepLimits;
use model::boot_pace::default_places;
use model::sizing::Sizing;
use toolstack::cgroup::{INSTANCE, Weights, check_name};

use super::written::{WrittenIdentity, WrittenLimits, WrittenSlices, WrittenWeb};
use super::{SliceSettings, WebSettings};
use crate::bootstrap::Product;
use crate::options::SlicesMode;

/// Longest time that can be configured.
const TIME_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// Returns the limits of concurrent steps. Defaults depend on the size of the host.
pub(super) fn limits(written: &WrittenLimits, sizes: &Sizing) -> Result<StepLimits, String> {
    let usual = StepLimits { host: sizes.steps.value, ..StepLimits::default() };
    let limits = StepLimits {
        host: written.worker_pool_size.unwrap_or(usual.host),
        machine: written.machine.unwrap_or(usual.machine),
        sr: written.sr.unwrap_or(usual.sr),
        boots: written.boots.unwrap_or_else(usual_boots),
        stuck: written.stuck_ms.map_or(usual.stuck, Duration::from_millis),
        ..usual
    };
    limits.validate().map_err(|error| error.to_string())?;
    Ok(limits)
}

fn usual_boots() -> u16 {
    default_places(available_parallelism().map_or(1, NonZero::get))
}

/// Checks that a time is between 1 s and [`TIME_MAX`], if it is given.
pub(super) fn within(name: &str, seconds: Option<u64>) -> Result<Option<Duration>, String> {
    let most = TIME_MAX.as_secs();
    match seconds {
        Some(seconds) if seconds == 0 || seconds > most => {
            Err(format!("{name} = {seconds}: give 1 to {most}"))
        }
        given => Ok(given.map(Duration::from_secs)),
    }
}

pub(super) fn product(written: WrittenIdentity) -> Result<Product, String> {
    Ok(Product {
        brand: written.product_brand.unwrap_or_else(|| "Ringway".to_owned()),
        version: numbers("identity.product-version", written.product_version, "7.0.0")?,
        platform: numbers("identity.platform-version", written.platform_version, "2.1.0")?,
    })
}

/// Checks that each origin is a scheme, a host and perhaps a port, as browsers send it.
pub(super) fn web(written: WrittenWeb) -> Result<WebSettings, String> {
    let origins = written.origins.unwrap_or_default();
    let is_origin = |text: &String| {
        let host = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
        host.is_some_and(|host| {
            !host.is_empty() && host.chars().all(|c| c.is_ascii_graphic() && !"/?#@*".contains(c))
        })
    };
    if let Some(bad) = origins.iter().find(|text| !is_origin(text)) {
        return Err(format!("web.origins: {bad:?}: give SCHEME://HOST[:PORT], as https://xo.lan"));
    }
    Ok(WebSettings { directory: written.directory, origins })
}

/// Checks that a version consists of numbers separated by dots.
fn numbers(name: &str, given: Option<String>, usual: &str) -> Result<String, String> {
    let text = given.unwrap_or_else(|| usual.to_owned());
    if text.split('.').all(|part| part.parse::<u32>().is_ok()) {
        return Ok(text);
    }
    Err(format!("{name} = {text:?}: give numbers with dots between them, as {usual}"))
}

/// Resolves the control group settings. A daemon with its own state directory has its own groups.
pub(super) fn slices(
    asked: Option<SlicesMode>,
    written: WrittenSlices,
    own_state: Option<&Path>,
) -> Result<SliceSettings, String> {
    let usual = Weights::default();
    let weights = Weights {
        control: written.control_weight.unwrap_or(usual.control),
        datapath: written.datapath_weight.unwrap_or(usual.datapath),
        guests: written.guests_weight.unwrap_or(usual.guests),
    };
    weights.check().map_err(|error| format!("slices: {error}"))?;
    let name = written.name.unwrap_or_else(|| own_state.map_or_else(|| INSTANCE.into(), named));
    check_name(&name).map_err(|error| format!("slices.name: {error}"))?;
    Ok(SliceSettings { mode: asked.or(written.mode).unwrap_or_default(), name, weights })
}

/// Returns a name for a state directory. Collisions are unlikely (FNV-1a, 32 bits).
fn named(state: &Path) -> String {
    let hash =
        state.as_os_str().as_encoded_bytes().iter().fold(0x811c_9dc5_u32, |hash, byte| {
            (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193)
        });
    format!("{INSTANCE}{hash:08x}")
}
