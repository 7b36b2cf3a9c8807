//! Formats durations and sizes for sentences.

/// Formats a duration in seconds with a suitable unit.
pub fn duration(seconds: f64) -> String {
    let (value, unit) = match seconds {
        s if s < 1e-3 => (s * 1e6, "us"),
        s if s < 1.0 => (s * 1e3, "ms"),
        s if s < 120.0 => (s, "s"),
        s if s < 7200.0 => (s / 60.0, "min"),
        s => (s / 3600.0, "h"),
    };
    if value < 9.95 { format!("{value:.1} {unit}") } else { format!("{value:.0} {unit}") }
}

/// Formats bytes with the largest unit that gives a whole number or one decimal.
pub fn bytes(count: u64) -> String {
    let units = ["bytes", "KiB", "MiB", "GiB", "TiB"];
    let mut value = count as f64;
    let mut at = 0;
    while value >= 1024.0 && at + 1 < units.len() {
        value /= 1024.0;
        at += 1;
    }
    let unit = units.get(at).copied().unwrap_or_default();
    if value.fract() == 0.0 { format!("{value:.0} {unit}") } else { format!("{value:.1} {unit}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        for (seconds, text) in [
            (0.0, "0.0 us"),
            (0.000_012_3, "12 us"),
            (0.003_21, "3.2 ms"),
            (0.45, "450 ms"),
            (12.34, "12 s"),
            (180.0, "3.0 min"),
            (9000.0, "2.5 h"),
        ] {
            assert_eq!(duration(seconds), text);
        }
        for (count, text) in [(512, "512 bytes"), (4096, "4 KiB"), (1_572_864, "1.5 MiB")] {
            assert_eq!(bytes(count), text);
        }
    }
}
