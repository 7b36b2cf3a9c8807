//! Scales and their ticks: pure functions of numbers.

/// Mapping from values to positions on an axis.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Scale {
    log: bool,
    low: f64,
    high: f64,
    /// Values with grid lines and numbers.
    pub(super) ticks: Vec<f64>,
}

/// Most ticks of a linear scale, without the one at 0.
const TICKS_MAX: f64 = 5.0;

impl Scale {
    /// Returns a scale that contains all values. A linear scale starts at 0.
    pub(super) fn holding(values: &[f64], log: bool) -> Self {
        let usable = values.iter().copied().filter(|v| v.is_finite() && (!log || *v > 0.0));
        let (low, high) = usable
            .fold((f64::INFINITY, 0.0f64), |(low, high), value| (low.min(value), high.max(value)));
        if log && high > 0.0 { Self::logarithmic(low, high) } else { Self::linear(high) }
    }

    fn linear(high: f64) -> Self {
        let high = if high > 0.0 { high } else { 1.0 };
        let step = nice(high / TICKS_MAX);
        let count = (high / step).ceil();
        let ticks: Vec<f64> = (0..=count as u32).map(|i| f64::from(i) * step).collect();
        Self { log: false, low: 0.0, high: count * step, ticks }
    }

    /// Returns a logarithmic scale whose ends are 1, 2 or 5 times a power of ten. A short scale has
    /// a tick at each of these.
    fn logarithmic(low: f64, high: f64) -> Self {
        let decades = high.log10().floor() - low.log10().floor();
        let steps: &[f64] = if decades <= 3.0 { &[1.0, 2.0, 5.0] } else { &[1.0] };
        let (from, to) = (low.log10().floor() as i32, high.log10().floor() as i32 + 1);
        let all = (from..=to).flat_map(|e| steps.iter().map(move |s| s * 10f64.powi(e)));
        let all: Vec<f64> = all.collect();
        // The factors leave a margin for rounding at both ends.
        let low = all.iter().copied().filter(|t| *t <= low * 1.000_001).fold(all[0], f64::max);
        let above = all.iter().copied().filter(|t| *t >= high * 0.999_999);
        let high = above.fold(f64::INFINITY, f64::min).min(10f64.powi(to));
        let high = if high > low { high } else { low * 10.0 };
        let ticks = all.into_iter().filter(|t| *t >= low * 0.999_999 && *t <= high * 1.000_001);
        Self { log: true, low, high, ticks: ticks.collect() }
    }

    /// Returns the position of a value, from 0 to 1.
    pub(super) fn part(&self, value: f64) -> f64 {
        let part = if self.log {
            (value.max(self.low) / self.low).ln() / (self.high / self.low).ln()
        } else {
            (value - self.low) / (self.high - self.low)
        };
        part.clamp(0.0, 1.0)
    }
}

/// Returns the least 1, 2 or 5 times a power of ten that is not below `value`.
fn nice(value: f64) -> f64 {
    let power = 10f64.powf(value.log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|step| step * power);
    steps.into_iter().find(|step| *step >= value * 0.999_999).unwrap_or(value)
}

/// Formats a number as short as possible: `0.05`, `12.5`, `350k`, `2M`.
pub(super) fn short(value: f64) -> String {
    let (scaled, unit) = match value.abs() {
        v if v >= 1e9 => (value / 1e9, "G"),
        v if v >= 1e6 => (value / 1e6, "M"),
        v if v >= 1e4 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let digits = match scaled.abs() {
        v if v == 0.0 || v >= 100.0 => 0,
        v if v >= 10.0 => 1,
        v if v >= 1.0 => 2,
        v if v >= 0.01 => 3,
        _ => 5,
    };
    let text = format!("{scaled:.digits$}");
    let text =
        if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{text}{unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        let cases = [
            (0.0, "0"),
            (0.05, "0.05"),
            (0.004, "0.004"),
            (1.5, "1.5"),
            (12.5, "12.5"),
            (100.0, "100"),
            (5000.0, "5000"),
            (350_000.0, "350k"),
            (12_345.0, "12.3k"),
            (2e6, "2M"),
        ];
        for (value, text) in cases {
            assert_eq!(short(value), text);
        }
    }

    #[test]
    fn linear_scales_begin_at_zero_and_end_at_a_round_number() {
        let scale = Scale::holding(&[3.0, 9.3], false);
        assert_eq!(scale.ticks, [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
        assert_eq!((scale.part(0.0), scale.part(5.0), scale.part(99.0)), (0.0, 0.5, 1.0));
        assert_eq!(Scale::holding(&[], false).ticks.last(), Some(&1.0));
        assert_eq!(Scale::holding(&[0.0, f64::NAN], true).ticks.first(), Some(&0.0));
    }

    #[test]
    fn logarithmic_scales_hold_their_values() {
        let scale = Scale::holding(&[0.4, 61.0], true);
        assert_eq!(scale.ticks, [0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0]);
        assert!((scale.part(10.0) - 0.629).abs() < 0.001, "{}", scale.part(10.0));
        let wide = Scale::holding(&[1.0, 1e6], true);
        assert_eq!((wide.ticks.len(), wide.part(1e3)), (7, 0.5));
        let same = Scale::holding(&[10.0, 10.0], true);
        assert_eq!((same.ticks.first(), same.part(10.0)), (Some(&10.0), 0.0));
    }
}
