//! What holds a NIC back.

use std::io::Write;
use std::process::ExitCode;

use anyhow::Context;
use model::report::{NicStats, PortStats, Stats, WayStats};
use model::why::{NicFacts, NicVerdict, bytes, duration, judge_nic};
use serde_json::json;

use super::{Format, Why, polled};
use crate::table;

/// Says why a NIC is not served at all.
pub(super) fn tell_refused(
    asked: &Why,
    nic: &NicStats,
    verdict: &NicVerdict,
) -> anyhow::Result<ExitCode> {
    let mut output = std::io::stdout().lock();
    match asked.format {
        Format::Json => {
            serde_json::to_writer(&mut output, &json!({ "verdict": verdict, "nic": nic }))?;
            writeln!(output)?;
        }
        Format::Text => write!(output, "{}", said(verdict))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Says it.
pub(super) fn tell(asked: &Why, earlier: &Stats, now: &Stats) -> anyhow::Result<ExitCode> {
    let gone = "the NIC has gone meanwhile";
    let facts = NicFacts::new(earlier, now, &asked.disk).context(gone)?;
    let port = now.ports.iter().find(|one| one.id == asked.disk).context(gone)?;
    let verdict = judge_nic(&facts);
    let mut output = std::io::stdout().lock();
    match asked.format {
        Format::Json => {
            let told = json!({ "verdict": verdict, "nic": port });
            serde_json::to_writer(&mut output, &told)?;
            writeln!(output)?;
        }
        Format::Text => write!(output, "{}", told(&verdict, port))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// The sentence first, then what it rests on.
fn told(verdict: &NicVerdict, port: &PortStats) -> String {
    let mut text = said(verdict);
    text += "\nSince it was plugged in:\n";
    text += &format!("{}\n", ways(port));
    if !port.each_queue.is_empty() {
        let moves = port.moves;
        text += &format!("\n{}\n{moves} moves of flows between queues.\n", queues(port));
    }
    if let Some(polling) = &port.polling {
        text += &format!("\n{}\n", polled(polling));
    }
    if !port.flows.is_empty() {
        text += &format!("\nLargest flows that it sends of late:\n{}\n", flows(port));
    }
    text
}

/// What is said first.
fn said(verdict: &NicVerdict) -> String {
    let mut text = format!("{}\n", verdict.sentence);
    if let Some(step) = &verdict.next {
        text += &format!("Next: {step}\n");
    }
    if let Some(polling) = &verdict.polling {
        text += &format!("{polling}\n");
    }
    text
}

fn ways(port: &PortStats) -> comfy_table::Table {
    let mut table = table::new(&["way", "frames", "bytes", "lost"], 1);
    for (name, way) in [("sent", &port.sent), ("got", &port.got)] {
        table.add_row([name.into(), way.frames.to_string(), bytes(way.bytes), lost(way)]);
    }
    table
}

fn lost(way: &WayStats) -> String {
    let all = way.drops.iter().map(|(reason, count)| format!("{count} {reason}"));
    all.collect::<Vec<_>>().join(", ")
}

fn queues(port: &PortStats) -> comfy_table::Table {
    let header =
        ["queue", "reactor", "sent", "got", "waited", "ring to ring", "p99", "held", "looks"];
    let mut table = table::new(&header, 9);
    for pair in &port.each_queue {
        let times = [pair.residence.p50_us, pair.residence.p99_us];
        let [median, p99] = times.map(|us| duration(us / 1e6));
        table.add_row([
            pair.index.to_string(),
            pair.reactor.to_string(),
            pair.sent.frames.to_string(),
            pair.got.frames.to_string(),
            pair.waited.to_string(),
            median,
            p99,
            duration(pair.held_seconds),
            pair.polling.reason.name().into(),
        ]);
    }
    table
}

fn flows(port: &PortStats) -> comfy_table::Table {
    let mut table = table::new(&["from", "to", "protocol", "nic", "part"], 5);
    for flow in &port.flows {
        table.add_row([
            flow.from.clone(),
            flow.to.clone(),
            flow.protocol.clone(),
            flow.nic.clone().unwrap_or_else(|| "-".into()),
            format!("{:.0}%", flow.share * 100.0),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use model::why::NicCause;

    use super::*;

    #[test]
    fn the_sentence_comes_first() {
        let mut port = PortStats { id: "a".into(), ..PortStats::default() };
        port.got.drops.insert("no-buffer".into(), 4);
        let verdict = NicVerdict {
            cause: NicCause::Buffers,
            sentence: "a waits for its guest.".into(),
            next: Some("look at it".into()),
            polling: None,
        };
        let text = told(&verdict, &port);
        assert!(text.starts_with("a waits for its guest.\nNext: look at it\n"), "{text}");
        assert!(text.contains("4 no-buffer"), "{text}");
    }
}
