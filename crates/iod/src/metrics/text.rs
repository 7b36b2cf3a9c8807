//! The text format: <https://prometheus.io/docs/specs/om/open_metrics_spec/>

use std::fmt::{Display, Write};

/// Type of a family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MetricType {
    /// Value that only grows. Its samples end in `_total`, and in `_created` for the start of
    /// counting.
    Counter,
    /// Value that rises and falls.
    Gauge,
    /// Histogram. Its samples end in `_bucket`, `_sum` and `_count`.
    Histogram,
    /// Information. Its samples end in `_info` and have the value 1.
    Info,
    /// One sample for each state.
    StateSet,
}

/// Page of metrics.
#[derive(Debug, Default)]
pub(super) struct Page(String);

/// One family of a page.
#[derive(Debug)]
pub(super) struct Family<'a> {
    page: &'a mut Page,
    name: &'static str,
    kind: MetricType,
}

/// Label names and values.
pub(super) type Labels<'a> = [(&'static str, &'a str)];

impl Page {
    /// Begins a family. All its samples must come before the next family begins.
    pub(super) fn family(
        &mut self,
        name: &'static str,
        kind: MetricType,
        unit: Option<&str>,
        help: &str,
    ) -> Family<'_> {
        let word = match kind {
            MetricType::Counter => "counter",
            MetricType::Gauge => "gauge",
            MetricType::Histogram => "histogram",
            MetricType::Info => "info",
            MetricType::StateSet => "stateset",
        };
        self.line(format_args!("# TYPE {name} {word}"));
        if let Some(unit) = unit {
            self.line(format_args!("# UNIT {name} {unit}"));
        }
        self.line(format_args!("# HELP {name} {}", escaped(help)));
        Family { page: self, name, kind }
    }

    /// Ends the page and returns its text.
    pub(super) fn end(mut self) -> String {
        self.line(format_args!("# EOF"));
        self.0
    }

    fn line(&mut self, text: std::fmt::Arguments<'_>) {
        // Writing to a string does not fail.
        let _ = writeln!(self.0, "{text}");
    }

    fn sample(&mut self, name: &str, suffix: &str, labels: &Labels<'_>, value: impl Display) {
        self.0.push_str(name);
        self.0.push_str(suffix);
        for (at, (label, text)) in labels.iter().enumerate() {
            let before = if at == 0 { '{' } else { ',' };
            let _ = write!(self.0, "{before}{label}=\"{}\"", escaped(text));
        }
        let close = if labels.is_empty() { "" } else { "}" };
        let _ = writeln!(self.0, "{close} {value}");
    }
}

impl Family<'_> {
    /// Adds a counter and the start of counting in seconds since 1970, if known.
    pub(super) fn count(&mut self, labels: &Labels<'_>, value: impl Display, since: Option<f64>) {
        self.add(labels, value);
        self.created(labels, since);
    }

    fn created(&mut self, labels: &Labels<'_>, since: Option<f64>) {
        if let Some(since) = since {
            self.page.sample(self.name, "_created", labels, format_args!("{since:.3}"));
        }
    }

    /// Adds a sample of a counter, gauge or state.
    pub(super) fn add(&mut self, labels: &Labels<'_>, value: impl Display) {
        let suffix = match self.kind {
            MetricType::Counter => "_total",
            MetricType::Info => "_info",
            MetricType::Gauge | MetricType::StateSet | MetricType::Histogram => "",
        };
        self.page.sample(self.name, suffix, labels, value);
    }

    /// Adds a histogram: counts up to each bound in seconds, then the total count and the sum.
    pub(super) fn histogram(
        &mut self,
        labels: &Labels<'_>,
        buckets: impl Iterator<Item = (f64, u64)>,
        (count, sum_seconds): (u64, f64),
        since: Option<f64>,
    ) {
        for (bound, count) in buckets {
            let bound = decimal(bound);
            self.bucket(labels, &bound, count);
        }
        self.bucket(labels, "+Inf", count);
        self.page.sample(self.name, "_sum", labels, sum_seconds);
        self.page.sample(self.name, "_count", labels, count);
        self.created(labels, since);
    }

    fn bucket(&mut self, labels: &Labels<'_>, bound: &str, count: u64) {
        let labels = [labels, &[("le", bound)]].concat();
        self.page.sample(self.name, "_bucket", &labels, count);
    }
}

/// Formats a bound in canonical form, with a decimal point.
fn decimal(bound: f64) -> String {
    if bound.fract() == 0.0 { format!("{bound:.1}") } else { bound.to_string() }
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_is_that_of_the_specification() {
        let mut page = Page::default();
        page.family("a_bytes", MetricType::Counter, Some("bytes"), "What \"a\" is.").count(
            &[],
            3,
            Some(1e9),
        );
        let mut family = page.family("b_seconds", MetricType::Histogram, Some("seconds"), "B.");
        family.histogram(
            &[("d", "x\"\n\\")],
            [(1e-5, 1), (1.0, 2)].into_iter(),
            (3, 0.5),
            Some(2.5),
        );
        assert_eq!(
            page.end(),
            "# TYPE a_bytes counter\n# UNIT a_bytes bytes\n# HELP a_bytes What \\\"a\\\" is.\n\
             a_bytes_total 3\na_bytes_created 1000000000.000\n# TYPE b_seconds histogram\n# UNIT b_seconds seconds\n\
             # HELP b_seconds B.\nb_seconds_bucket{d=\"x\\\"\\n\\\\\",le=\"0.00001\"} 1\n\
             b_seconds_bucket{d=\"x\\\"\\n\\\\\",le=\"1.0\"} 2\n\
             b_seconds_bucket{d=\"x\\\"\\n\\\\\",le=\"+Inf\"} 3\n\
             b_seconds_sum{d=\"x\\\"\\n\\\\\"} 0.5\nb_seconds_count{d=\"x\\\"\\n\\\\\"} 3\n\
             b_seconds_created{d=\"x\\\"\\n\\\\\"} 2.500\n# EOF\n"
        );
    }
}
