//! Evidence on a NIC.

use std::collections::BTreeMap;

use model::diagnosis::{NicVerdict, bytes, duration};
use model::report::{DirectionStats, PortStats};

use super::disk::polled;
use super::report;
use crate::table;

/// Returns the sentence, followed by the evidence.
pub(super) fn report_text(verdict: &NicVerdict, port: &PortStats) -> String {
    let mut text = verdict_text(verdict);
    text += &report::broken_rings(&port.broken_rings);
    text += "\nSince it was plugged in:\n";
    text += &format!("{}\n", ways(port));
    let sizes = sizes(port);
    if !sizes.is_empty() {
        text += &format!("\n{sizes}\n");
    }
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

/// Returns the verdict's sentences.
pub(super) fn verdict_text(verdict: &NicVerdict) -> String {
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
    for (name, way) in [("sent", &port.tx), ("got", &port.rx)] {
        table.add_row([name.into(), way.frames.to_string(), bytes(way.bytes), lost(way)]);
    }
    table
}

/// Returns the dropped frames by reason; empty if there are none.
fn lost(way: &DirectionStats) -> String {
    let all = way.drops.iter().map(|(reason, count)| format!("{count} {reason}"));
    all.collect::<Vec<_>>().join(", ")
}

/// Returns a table of frames by size class over all queues, without empty classes.
fn sizes(port: &PortStats) -> comfy_table::Table {
    let mut sums = BTreeMap::<u64, [u64; 2]>::new();
    for pair in &port.each_queue {
        for (at, way) in [&pair.tx, &pair.rx].into_iter().enumerate() {
            for size in way.sizes.iter().filter(|size| size.frames > 0) {
                let sum = sums.entry(size.up_to.unwrap_or(u64::MAX)).or_default();
                sum[at] = sum[at].saturating_add(size.frames);
            }
        }
    }
    let mut table = table::new(&["frames of up to", "sent", "got"], 3);
    for (up_to, counts) in sums {
        let size = if up_to == u64::MAX { "more".into() } else { format!("{up_to} bytes") };
        let [sent, got] = counts.map(|count| count.to_string());
        table.add_row([size, sent, got]);
    }
    table
}

fn queues(port: &PortStats) -> comfy_table::Table {
    let header = [
        "queue",
        "reactor",
        "sent",
        "lost of sent",
        "got",
        "lost for it",
        "waited",
        "ring to ring",
        "p99",
        "held",
        "looks",
    ];
    let mut table = table::new(&header, header.len());
    for pair in &port.each_queue {
        let times = [pair.residence.p50_us, pair.residence.p99_us];
        let [median, p99] = times.map(|us| duration(us / 1e6));
        table.add_row([
            pair.index.to_string(),
            pair.reactor.to_string(),
            pair.tx.frames.to_string(),
            lost(&pair.tx),
            pair.rx.frames.to_string(),
            lost(&pair.rx),
            pair.backlogged.to_string(),
            median,
            p99,
            duration(pair.throttled_seconds),
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
    use model::diagnosis::NicCause;
    use model::report::{Latency, PairStats, PollReason, QueuePolling, SizeCount};

    use super::*;

    #[test]
    fn sizes_are_those_of_all_queues() {
        let way = |frames: [u64; 3]| {
            let sizes = [Some(64), Some(128), None].into_iter().zip(frames);
            let sizes = sizes.map(|(up_to, frames)| SizeCount { up_to, frames }).collect();
            DirectionStats { sizes, ..DirectionStats::default() }
        };
        let of = |sent, got| pair(way(sent), way(got));
        let each_queue = vec![of([5, 0, 1], [0, 0, 0]), of([2, 0, 0], [0, 0, 9])];
        let port = PortStats { each_queue, ..PortStats::default() };
        let shown = sizes(&port).to_string();
        let rows: Vec<_> = shown.lines().filter(|line| line.starts_with('│')).collect();
        assert_eq!(rows.len(), 3, "{shown}");
        for (row, words) in
            rows[1..].iter().zip([["64 bytes", " 7 ", " 0 "], ["more", " 1 ", " 9 "]])
        {
            assert!(words.iter().all(|word| row.contains(word)), "{row}");
        }
        assert!(!report_text(&nothing(), &PortStats::default()).contains("frames of up to"));
    }

    fn pair(sent: DirectionStats, got: DirectionStats) -> PairStats {
        let polling = QueuePolling {
            polling: false,
            reason: PollReason::Off,
            hits: 0,
            misses: 0,
            poll_seconds: 0.0,
            saved_wakeup_us: 0.0,
        };
        PairStats {
            index: 0,
            served: true,
            reactor: 0,
            tx: sent,
            rx: got,
            residence: Latency::default(),
            residence_seconds: 0.0,
            throttled: 0,
            throttled_seconds: 0.0,
            throttled_now: false,
            backlogged: 0,
            backlog: 0,
            polling,
        }
    }

    #[test]
    fn each_queue_has_its_losses() {
        let lost = |reason: &str, count| {
            let drops = [(reason.to_owned(), count)].into();
            DirectionStats { drops, ..DirectionStats::default() }
        };
        let each_queue = vec![
            pair(lost("short-frame", 3), DirectionStats::default()),
            pair(DirectionStats::default(), lost("no-buffer", 7)),
        ];
        let port = PortStats { each_queue, ..PortStats::default() };
        let shown = queues(&port).to_string();
        let rows: Vec<_> = shown.lines().filter(|line| line.starts_with('│')).collect();
        let cells = |row: &str| row.split(['│', '┆']).map(|cell| cell.trim().to_owned()).collect();
        let columns: Vec<Vec<String>> = rows.into_iter().map(cells).collect();
        assert_eq!(columns[0][4..7], ["lost of sent", "got", "lost for it"], "{shown}");
        assert_eq!(columns[1][4..7], ["3 short-frame", "0", ""], "{shown}");
        assert_eq!(columns[2][4..7], ["", "0", "7 no-buffer"], "{shown}");
    }

    fn nothing() -> NicVerdict {
        NicVerdict { cause: NicCause::Buffers, sentence: "s".into(), next: None, polling: None }
    }

    #[test]
    fn the_sentence_comes_first() {
        let mut port = PortStats { id: "a".into(), ..PortStats::default() };
        port.rx.drops.insert("no-buffer".into(), 4);
        let verdict = NicVerdict {
            cause: NicCause::Buffers,
            sentence: "a waits for its guest.".into(),
            next: Some("look at it".into()),
            polling: None,
        };
        let text = report_text(&verdict, &port);
        assert!(text.starts_with("a waits for its guest.\nNext: look at it\n"), "{text}");
        assert!(text.contains("4 no-buffer"), "{text}");
    }
}
