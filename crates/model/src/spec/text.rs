//! Sizes and times as text.

use super::{MAX_DISK_BYTES, SpecError, refuse};

/// Parses a size in bytes, optionally with a suffix K, M, G or T (powers of 1024). `KiB` and the
/// like are accepted.
///
/// # Errors
/// Field `size`: not a number, unknown suffix, or more than [`MAX_DISK_BYTES`].
pub fn parse_size(text: &str) -> Result<u64, SpecError> {
    let trimmed = text.trim();
    let digits = trimmed.bytes().take_while(u8::is_ascii_digit).count();
    let (number, suffix) = trimmed.split_at(digits);
    let unit: u64 = match suffix.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "t" | "tib" => 1 << 40,
        _ => return refuse("size", format!("{text:?} has an unknown suffix; use K, M, G or T")),
    };
    let bytes = number.parse::<u64>().ok().and_then(|n| n.checked_mul(unit));
    match bytes {
        Some(bytes) if bytes <= MAX_DISK_BYTES => Ok(bytes),
        Some(_) => refuse("size", format!("{text:?} is more than {MAX_DISK_BYTES} bytes")),
        None => refuse("size", format!("{text:?} is not a size; write for example 512M or 8G")),
    }
}

/// Parses a time in seconds, optionally with a suffix `ms`, `s` or `m`. Returns milliseconds.
///
/// # Errors
/// Field `time`: not a number, or an unknown suffix.
pub fn parse_time_ms(text: &str) -> Result<u64, SpecError> {
    let trimmed = text.trim();
    let digits = trimmed.bytes().take_while(u8::is_ascii_digit).count();
    let (number, suffix) = trimmed.split_at(digits);
    let unit: u64 = match suffix {
        "ms" => 1,
        "" | "s" => 1000,
        "m" => 60_000,
        _ => return refuse("time", format!("{text:?} has an unknown suffix; use ms, s or m")),
    };
    let parsed = number.parse::<u64>().ok().and_then(|n| n.checked_mul(unit));
    let problem = || format!("{text:?} is not a time; write for example 500ms or 30s");
    parsed.map_or_else(|| refuse("time", problem()), Ok)
}
