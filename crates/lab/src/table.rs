//! Results as readable Markdown.

use std::fmt::Write;

use crate::comparison::Figure;
use crate::experiment::NOISY_CPUS;
use crate::results::{Cell, Compared, Results, Series};

mod bars;

/// Returns the whole report: the verdict and the bars, then the host, then the figures.
#[must_use]
pub fn markdown(results: &Results) -> String {
    let mut text = String::new();
    bars::write(&mut text, results);
    facts(&mut text, results);
    for cell in &results.cells {
        cell_table(&mut text, cell);
    }
    comparisons(&mut text, &results.compared);
    text
}

// Writing to a String cannot fail, so results of `write!` are dropped in this module.

fn facts(text: &mut String, results: &Results) {
    let (run, foreign_cpus) = (&results.run, results.foreign_cpus());
    let host = &run.host;
    let virtual_machine = if host.virtual_machine { ", virtual machine" } else { "" };
    let _ = writeln!(
        text,
        "- host: {}, {} CPUs, {} MiB, Linux {}{virtual_machine}",
        host.cpu_model, host.cpus, host.memory_mib, host.kernel
    );
    let _ = writeln!(
        text,
        "- load {:.2} before, {:.2} after; other work and steal took {foreign_cpus:.2} CPUs from \
         the most disturbed system (median of its samples){}",
        host.load_before,
        host.load_after,
        if foreign_cpus > NOISY_CPUS { ": noisy host, repeat on a quiet one" } else { "" },
    );
    for (name, version) in &run.versions {
        let _ = writeln!(text, "- {name}: {version}");
    }
    let samples = results.cells.iter().flat_map(|c| &c.systems).flat_map(|s| &s.samples);
    let repeats: f64 = samples.filter_map(|s| s.get("repeats")).sum();
    let _ = writeln!(
        text,
        "- {} rounds, systems taking turns within each; {repeats} turns repeated because of other work or steal\n",
        run.rounds
    );
    for note in &run.notes {
        let _ = writeln!(text, "{note}\n");
    }
}

/// Column: its heading, the metric, and the digits after the decimal point.
type Column = (&'static str, &'static str, usize);

/// Columns of a cell's table. A column appears if any system has its metric.
const COLUMNS: [Column; 75] = [
    ("frames/s", "frames_per_s", 0),
    ("frames/CPU s", "frames_per_cpu_s", 0),
    ("Gb/s", "gbit_per_s", 2),
    ("+- (sd) Gb/s", "gbit_sd", 2),
    ("sent again per Gb", "resent_per_gbit", 2),
    ("Gb/CPU s", "gbit_per_cpu_s", 2),
    ("Gb/CPU s of all", "gbit_per_busy_s", 2),
    ("worst queue / mean", "imbalance_worst", 2),
    ("its mean", "imbalance_mean", 2),
    ("lost", "lost_frames", 0),
    ("reactor wake-ups", "reactor_wakeups", 0),
    ("reactor turns", "reactor_turns", 0),
    ("voluntary switches", "voluntary_switches", 0),
    ("CPU % of one core", "cpu_percent", 3),
    ("seconds", "seconds", 1),
    ("MiB/s", "mib_per_s", 0),
    ("total / limit", "part_of_limit", 3),
    ("fastest / slowest", "max_over_min", 3),
    ("off the weights %", "weights_error_percent", 1),
    ("rate / floor", "floor_part", 3),
    ("rate / cap", "cap_part", 3),
    ("p50 us", "p50_us", 2),
    ("p99 us", "p99_us", 2),
    ("slowest client / mean", "slowest_share", 2),
    ("client CPUs", "client_cpus", 2),
    ("backend CPUs", "backend_cpus", 2),
    ("CPU us/request", "backend_cpu_us_per_request", 3),
    ("CPU us/request with the guest's", "cpu_us_per_request", 3),
    ("kicks/request", "kicks_per_request", 3),
    ("calls/request", "calls_per_request", 3),
    ("client sleeps/request", "sleeps_per_request", 3),
    ("image MiB", "image_mib", 0),
    ("late arrivals", "late_arrivals", 3),
    ("start ms", "start_ms", 0),
    ("stop ms", "stop_ms", 0),
    ("least ms", "least_ms", 0),
    ("chunks ms", "chunks_ms", 0),
    ("MiB/step", "mib_per_step", 3),
    ("server ms", "server_ms", 2),
    ("server p99 ms", "server_p99_ms", 2),
    ("cold ms", "cold_ms", 2),
    ("first call ms", "first_ms", 2),
    ("last tenth over first", "slowing", 2),
    ("answer MiB", "answer_mib", 2),
    ("disks made/s", "disks_per_s", 0),
    ("wake p50 ms", "wake_p50_ms", 2),
    ("wake p99 ms", "wake_p99_ms", 2),
    ("xe vm-list ms", "list_ms", 1),
    ("p50 ms", "p50_ms", 1),
    ("p99 ms", "p99_ms", 1),
    ("slowest ms", "max_ms", 1),
    ("slowest s", "slowest_s", 2),
    ("mean s", "mean_s", 2),
    ("fetched MiB", "fetched_mib", 1),
    ("last boot / second", "last_over_second", 2),
    ("first ready s", "first_ready_s", 1),
    ("half ready s", "half_ready_s", 1),
    ("all ready s", "all_ready_s", 1),
    ("last quarter / first", "quarter_ratio", 2),
    ("place s", "place_s", 1),
    ("devices s", "devices_s", 1),
    ("firmware s", "firmware_s", 1),
    ("kernel s", "kernel_s", 1),
    ("services s", "services_s", 1),
    ("MiB/guest", "pss_mib", 0),
    ("blocks fetched", "fetched", 0),
    ("disks that wait", "waiting", 0),
    ("guests that run", "running", 0),
    ("xe calls", "xe_calls", 0),
    ("xe p50 ms", "xe_p50_ms", 1),
    ("xe p99 ms", "xe_p99_ms", 1),
    ("pace", "pace", 2),
    ("guests' CPUs", "guests_cpus", 2),
    ("other CPUs", "other_cpus", 2),
    ("steal", "steal_cpus", 2),
];

fn cell_table(text: &mut String, cell: &Cell) {
    let has = |metric: &str| cell.systems.iter().any(|s| s.summary.contains_key(metric));
    let columns: Vec<Column> = COLUMNS.into_iter().filter(|column| has(column.1)).collect();
    let heads: Vec<&str> = columns.iter().map(|column| column.0).collect();
    let iops = has("iops");
    let (first, line) = if iops { (" IOPS | +- |", "--:|--:|") } else { ("", "") };
    let _ = writeln!(text, "## {}\n", cell.title);
    let _ = writeln!(text, "| system |{first} {} |", heads.join(" | "));
    let _ = writeln!(text, "|---|{line}{}", "--:|".repeat(columns.len()));
    for series in &cell.systems {
        let _ = writeln!(text, "{}", row(series, iops, &columns));
    }
    let _ = writeln!(text);
}

fn row(series: &Series, iops: bool, columns: &[Column]) -> String {
    let mut line = format!("| {} |", series.name);
    match series.summary.get("iops") {
        Some(summary) => {
            let spread = summary.relative_half_spread() * 100.0;
            let _ = write!(line, " {} | {spread:.0} % |", thousands(summary.median));
        }
        None if iops => line.push_str(" | |"),
        None => {}
    }
    for (_, metric, digits) in columns {
        match series.summary.get(*metric) {
            Some(summary) => {
                let _ = write!(line, " {:.digits$} |", summary.median);
            }
            None => line.push_str(" |"),
        }
    }
    line
}

fn comparisons(text: &mut String, compared: &[Compared]) {
    if compared.is_empty() {
        return;
    }
    let _ = writeln!(text, "## Ratios\n");
    let _ = writeln!(text, "| cell | ours | over | of | median ratio | rounds | shown |");
    let _ = writeln!(text, "|---|---|---|---|--:|--:|---|");
    for c in compared {
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {} | {} |",
            c.cell,
            c.ours,
            peers(c),
            c.metric,
            ratio(c.ratio.median, c),
            rounds(c),
            c.difference.words()
        );
    }
    let _ = writeln!(
        text,
        "\nRatios are taken pairwise within a round. \"No difference shown\": the spread of the ratios \
         is as large as their distance from 1.\n"
    );
}

/// Formats a ratio. Uses three digits near 1, and where the bar has hundredths.
fn ratio(value: f64, compared: &Compared) -> String {
    let near = (compared.ratio.median - 1.0).abs() < 0.1;
    let fine = near || compared.bar.is_some_and(|bar| (bar * 10.0).fract() > 0.0);
    if fine { format!("{value:.3}") } else { format!("{value:.2}") }
}

/// Formats the range of the rounds, and for many rounds also the middle half.
fn rounds(compared: &Compared) -> String {
    let all = &compared.ratio;
    let of = |value| ratio(value, compared);
    let whole = format!("{}..{}", of(all.min), of(all.max));
    if (all.low, all.high) == (all.min, all.max) {
        return whole;
    }
    format!("{whole}, half of them {}..{}", of(all.low), of(all.high))
}

fn peers(compared: &Compared) -> String {
    let list = compared.peers.join(" and ");
    match (compared.figure, compared.peers.as_slice()) {
        (Figure::Alone | Figure::Worst, _) => "-".to_owned(),
        (Figure::Kept, [first, second]) => format!("{first}, as a part of the gain of {second}"),
        (Figure::OverSum, [_, _, ..]) => format!("the sum of {list}"),
        (Figure::OverLeader, [_, _, ..]) => format!("the best of {list} by its median"),
        (_, [_, _, _, ..]) => format!("the best of {list}"),
        (_, [_, _]) => format!("the better of {list}"),
        _ => list,
    }
}

/// Formats a whole number with thin spaces between groups: 1 234 567.
fn thousands(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i) % 3 == 0 {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests;
