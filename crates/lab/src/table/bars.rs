//! Beginning of a report: the verdict of the run, then a line for each bar.

use std::cmp::Reverse;
use std::fmt::Write;

use super::{peers, ratio, rounds};
use crate::comparison::{Figure, Side};
use crate::experiment::NOISY_CPUS;
use crate::results::{Compared, Results};
use crate::stats::Difference;
use crate::verdict::Verdict;

/// Writes the heading with the verdict, the counts, and the bars, the worst first.
pub(super) fn write(text: &mut String, results: &Results) {
    let run = &results.run;
    let verdict = results.verdict.map(|v| format!("{}: ", v.word())).unwrap_or_default();
    let about = [vec![format!("{} UTC", run.started_utc)], marks(results)].concat().join(", ");
    let _ = writeln!(text, "# {verdict}{} ({about})\n", run.experiment);
    let _ = writeln!(text, "{}\n", summary(results));
    let lines = lines(results);
    for line in &lines {
        let _ = writeln!(text, "- {line}");
    }
    if !lines.is_empty() {
        let _ = writeln!(text);
    }
}

fn marks(results: &Results) -> Vec<String> {
    results.marks().into_iter().map(str::to_owned).collect()
}

fn summary(results: &Results) -> String {
    let count = |verdict| {
        let judged = results.compared.iter().filter(|c| c.verdict == Some(verdict)).count();
        judged + if verdict == Verdict::Fail { results.unjudged.len() } else { 0 }
    };
    let [missed, undecided, met] = Verdict::ALL.map(count);
    match missed + undecided + met {
        0 if results.run.control => {
            "Peers are in the places of our systems, so nothing is promised.".to_owned()
        }
        0 => "Nothing is promised of these figures.".to_owned(),
        1 => "Of 1 bar".to_owned() + &counted(missed, undecided, met),
        bars => format!("Of {bars} bars") + &counted(missed, undecided, met),
    }
}

fn counted(missed: usize, undecided: usize, met: usize) -> String {
    let hint = match undecided {
        0 => "",
        _ => {
            " Undecided: the median misses the bar, but the spread is as large as its distance \
             from 1. Repeat with more rounds on a quiet host."
        }
    };
    format!(", {missed} missed, {undecided} undecided, {met} met.{hint}")
}

/// Returns the lines of all bars, the worst verdict first.
fn lines(results: &Results) -> Vec<String> {
    let judged = results.compared.iter().filter_map(|c| Some((c.verdict?, line(c)?)));
    let unjudged = &results.unjudged;
    let unjudged =
        unjudged.iter().map(|what| (Verdict::Fail, format!("{} {what}", Verdict::Fail.word())));
    let mut all: Vec<_> = judged.chain(unjudged).collect();
    all.sort_by_key(|(verdict, _)| Reverse(*verdict));
    all.into_iter().map(|(_, line)| line).collect()
}

pub(super) fn line(c: &Compared) -> Option<String> {
    let (bar, word) = (c.bar?, c.verdict?.word());
    let noisy = if c.other_cpus > NOISY_CPUS {
        format!(" (noisy host, other work and steal took {:.2} CPUs: repeat)", c.other_cpus)
    } else {
        String::new()
    };
    let near = c.bound.as_ref().map(|bound| {
        format!(
            "; or {:.2}x of {} (at least {}x; rounds {:.2}..{:.2}{})",
            bound.ratio.median,
            bound.system,
            bound.bar,
            bound.ratio.min,
            bound.ratio.max,
            if bound.holds { "" } else { "; slower than a peer, so it does not count" },
        )
    });
    let near = near.unwrap_or_default();
    let note = c.note.as_ref().map(|note| format!(" ({note})")).unwrap_or_default();
    let side = if c.side == Side::AtLeast { "at least" } else { "at most" };
    let unit = if c.difference == Difference::NotARatio { "" } else { "x" };
    // Requests per second are the usual metric, so the line does not name it.
    let of = if c.metric == "iops" { String::new() } else { format!(", {}", c.metric) };
    let what = match c.figure {
        Figure::Alone | Figure::Worst => c.ours.clone(),
        _ => format!("{} over {}", c.ours, peers(c)),
    };
    Some(format!(
        "{word} {}{unit} ({side} {bar}{unit}; rounds {}): {}{of}: {what}{near}{note}{noisy}",
        ratio(c.ratio.median, c),
        rounds(c),
        c.cell,
    ))
}
