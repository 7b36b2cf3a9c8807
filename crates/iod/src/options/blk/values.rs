//! Option values.

use clap::ValueEnum;
use model::spec::{Backend, FileRef, MAX_QUEUES, MAX_SERIAL_BYTES, parse_size, parse_time_ms};

/// Lowest number of a descriptor that is no standard stream.
const FIRST_FD: u32 = 3;

/// Caching on the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Cache {
    /// O_DIRECT.
    None,
    /// Through the page cache.
    Writeback,
}

/// Whether request times are recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Record {
    /// Record them (the default). `ringway lab run stats-cost` measures the cost on this host.
    On,
    /// Never read the clock.
    Off,
}

/// Behaviour on full storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Full {
    /// Wait for space.
    Wait,
    /// Fail.
    Error,
}

pub(super) fn backend(text: &str) -> Result<Backend, String> {
    let backend: Backend = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let is_stream = |file: &&FileRef| matches!(file, FileRef::Fd { fd } if *fd < FIRST_FD);
    if let Some(file) = backend.files().find(is_stream) {
        return Err(format!("{file} is a standard stream; hand in {FIRST_FD} or above"));
    }
    Ok(backend)
}

pub(super) fn size(text: &str) -> Result<u64, String> {
    parse_size(text).map_err(|error| error.problem)
}

pub(super) fn time(text: &str) -> Result<u64, String> {
    parse_time_ms(text).map_err(|error| error.problem)
}

pub(super) fn queues() -> clap::builder::RangedI64ValueParser<u16> {
    clap::value_parser!(u16).range(1..=i64::from(MAX_QUEUES))
}

pub(super) fn serial(text: &str) -> Result<String, String> {
    if text.len() > MAX_SERIAL_BYTES {
        return Err(format!("{} bytes long, virtio-blk carries {MAX_SERIAL_BYTES}", text.len()));
    }
    Ok(text.into())
}

pub(crate) fn mode(text: &str) -> Result<u32, String> {
    match u32::from_str_radix(text, 8) {
        Ok(mode) if mode <= 0o777 => Ok(mode),
        _ => Err("is not octal permissions such as 660".into()),
    }
}
