//! Medians, spreads and ratios: pure functions of numbers.
//!
//! Two systems are compared by the ratios of neighbouring samples: sample `i` of one over sample
//! `i` of the other, taken right after it. The median of the ratios is the result. Their spread
//! decides whether a difference was shown.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Least number of samples for which the spread is the interquartile range. Below it, the spread is
/// the whole range.
const QUARTILES_FROM: usize = 8;

/// Order statistics of one metric over the rounds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Number of samples.
    pub count: usize,
    /// Median.
    pub median: f64,
    /// Smallest value.
    pub min: f64,
    /// Largest value.
    pub max: f64,
    /// Lower border of the spread: first quartile, or the smallest of fewer than 8 samples.
    pub low: f64,
    /// Upper border of the spread: third quartile, or the largest of fewer than 8 samples.
    pub high: f64,
}

impl Summary {
    /// Summarizes samples. Returns `None` without samples, or if one is not a number.
    #[must_use]
    pub fn of(samples: &[f64]) -> Option<Self> {
        if samples.iter().any(|s| s.is_nan()) {
            return None;
        }
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let median = quantile(&sorted, 0.5)?;
        let (low, high) = if sorted.len() < QUARTILES_FROM {
            (min, max)
        } else {
            (quantile(&sorted, 0.25)?, quantile(&sorted, 0.75)?)
        };
        Some(Self { count: sorted.len(), median, min, max, low, high })
    }

    /// Returns the width of the spread in the metric's unit.
    #[must_use]
    pub fn spread(&self) -> f64 {
        self.high - self.low
    }

    /// Returns half the spread as a share of the median: the "plus or minus" of a table.
    #[must_use]
    pub fn relative_half_spread(&self) -> f64 {
        if self.median == 0.0 { 0.0 } else { self.spread() / 2.0 / self.median.abs() }
    }
}

/// Returns a quantile of sorted samples, linear between neighbours. `q` is from 0 to 1.
fn quantile(sorted: &[f64], q: f64) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    let position = q * last as f64;
    let below = position.floor();
    let index = below as usize;
    let left = *sorted.get(index)?;
    let right = *sorted.get((index + 1).min(last))?;
    Some(left + (right - left) * (position - below))
}

/// Returns the ratios of ours over theirs, round by round. Skips rounds that lack a value or in
/// which theirs is 0.
#[must_use]
pub fn ratios(ours: &[f64], theirs: &[f64]) -> Vec<f64> {
    let pairs = ours.iter().zip(theirs);
    pairs.filter(|(_, theirs)| **theirs != 0.0).map(|(ours, theirs)| ours / theirs).collect()
}

/// Difference that a set of ratios shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Difference {
    /// Ours is higher by more than the spread.
    Higher,
    /// Ours is lower by more than the spread.
    Lower,
    /// The spread is as large as the gap, or larger.
    NoDifferenceShown,
    /// The figures are no ratios.
    NotARatio,
}

impl Difference {
    /// Judges ratios by their summary, on a logarithmic scale, so that 2x and 0.5x are the same
    /// gap. A difference is shown if the gap between the median and 1 exceeds the spread.
    #[must_use]
    pub fn of(ratios: &Summary) -> Self {
        let gap = ratios.median.ln();
        let spread = (ratios.high / ratios.low).ln();
        // With a ratio of 0, gap and spread are infinite or not a number, which shows no
        // difference.
        if !gap.is_finite() || !spread.is_finite() || gap.abs() <= spread {
            return Self::NoDifferenceShown;
        }
        if gap > 0.0 { Self::Higher } else { Self::Lower }
    }

    /// Returns the text for a table.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Self::Higher => "higher",
            Self::Lower => "lower",
            Self::NoDifferenceShown => "no difference shown",
            Self::NotARatio => "-",
        }
    }
}

/// Returns a percentile of the values, or 0 without values.
pub(crate) fn percentile(values: &mut [f64], percent: usize) -> f64 {
    values.sort_by(f64::total_cmp);
    let at = (values.len() * percent / 100).min(values.len().saturating_sub(1));
    values.get(at).copied().unwrap_or_default()
}

/// Returns median, 99th percentile and maximum of the pauses, in milliseconds.
pub(crate) fn pause_metrics(pauses: &[Duration]) -> [(String, f64); 3] {
    let mut ms: Vec<_> = pauses.iter().map(|pause| pause.as_secs_f64() * 1e3).collect();
    [("p50_ms", 50), ("p99_ms", 99), ("max_ms", 100)]
        .map(|(name, percent)| (name.to_owned(), percentile(&mut ms, percent)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn difference(ratios: &[f64]) -> Difference {
        Difference::of(&Summary::of(ratios).unwrap())
    }

    #[test]
    fn medians_and_spreads() {
        let odd = Summary::of(&[3.0, 1.0, 2.0]).unwrap();
        assert_eq!((odd.median, odd.min, odd.max, odd.low, odd.high), (2.0, 1.0, 3.0, 1.0, 3.0));
        assert_eq!(odd.relative_half_spread(), 0.5);
        let even = Summary::of(&[1.0, 2.0, 3.0, 10.0]).unwrap();
        assert_eq!((even.median, even.spread()), (2.5, 9.0));
        let many: Vec<f64> = (0..=8).map(f64::from).collect();
        let many = Summary::of(&many).unwrap();
        assert_eq!((many.low, many.median, many.high, many.max), (2.0, 4.0, 6.0, 8.0));
        assert_eq!(Summary::of(&[7.0]).unwrap().spread(), 0.0);
        assert!(Summary::of(&[]).is_none() && Summary::of(&[1.0, f64::NAN]).is_none());
    }

    #[test]
    fn ratios_pair_neighbours() {
        assert_eq!(ratios(&[2.0, 9.0, 5.0], &[1.0, 3.0]), [2.0, 3.0]);
        assert_eq!(ratios(&[2.0, 9.0], &[0.0, 3.0]), [3.0]);
    }

    #[test]
    fn a_difference_is_shown_only_beyond_the_spread() {
        assert_eq!(difference(&[2.0, 2.1, 1.9]), Difference::Higher);
        assert_eq!(difference(&[0.5, 0.52, 0.48]), Difference::Lower);
        assert_eq!(difference(&[1.05, 0.9, 1.2]), Difference::NoDifferenceShown);
        // Always ahead, but by anything between 1.1 and 2.5: the spread exceeds the gap.
        assert_eq!(difference(&[1.1, 1.5, 2.5]), Difference::NoDifferenceShown);
        assert_eq!(difference(&[3.0, 5.0, 9.0]), Difference::Higher);
        assert_eq!(difference(&[1.0, 1.0, 1.0]), Difference::NoDifferenceShown);
        assert_eq!(difference(&[0.0, 0.0]), Difference::NoDifferenceShown);
    }

    #[test]
    fn percentiles_are_of_the_sorted_values() {
        let mut values: Vec<f64> = (0..100).rev().map(f64::from).collect();
        assert_eq!((percentile(&mut values, 50), percentile(&mut values, 99)), (50.0, 99.0));
        assert_eq!(percentile(&mut [3.0], 99), 3.0);
    }
}
