//! Parsers of booleans and sizes.

/// Parses a boolean.
pub(crate) fn flag(text: &str) -> Option<bool> {
    let lower = text.to_ascii_lowercase();
    if ["true", "t", "yes", "y", "1"].contains(&lower.as_str()) {
        return Some(true);
    }
    ["false", "f", "no", "n", "0"].contains(&lower.as_str()).then_some(false)
}

/// Parses a size in bytes: a number with an optional unit. Units are powers of 1024.
pub(crate) fn size(text: &str) -> Option<i64> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at_checked(end)?;
    let shift = match unit.trim_start().to_ascii_lowercase().as_str() {
        "" | "b" | "bytes" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => return None,
    };
    digits.parse::<i64>().ok()?.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn yes_and_no() {
        for yes in ["true", "T", "yes", "Y", "1"] {
            assert_eq!(flag(yes), Some(true), "{yes}");
        }
        for no in ["false", "F", "NO", "n", "0"] {
            assert_eq!(flag(no), Some(false), "{no}");
        }
        for none in ["", "2", "ja", "truee"] {
            assert_eq!(flag(none), None, "{none}");
        }
    }

    #[test]
    fn sizes() {
        for (text, bytes) in [
            ("0", 0),
            ("512", 512),
            ("512 bytes", 512),
            ("1k", 1 << 10),
            ("3MiB", 3 << 20),
            ("10 GB", 10 << 30),
            ("2TiB", 2 << 40),
            ("9223372036854775807", i64::MAX),
        ] {
            assert_eq!(size(text), Some(bytes), "{text}");
        }
        for none in ["", "G", "-1", "1.5G", "1 x", "9223372036854775808", "8388608TiB", "1é"] {
            assert_eq!(size(none), None, "{none}");
        }
    }
}
