//! Table of switch ports, shown below the disks.

use std::collections::BTreeSet;

use comfy_table::Table;
use model::diagnosis::duration;
use model::report::{DirectionStats, PollReason, PortStats, Stats};

use crate::table;

const MBIT: f64 = 1e6 / 8.0;

/// Activity of one port between two samples.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct PortRow {
    /// Control socket of its process, if several are watched.
    pub(super) place: String,
    pub(super) nic: String,
    pub(super) state: &'static str,
    /// Frames and bytes a second.
    pub(super) sent: (f64, f64),
    pub(super) got: (f64, f64),
    /// Dropped frames a second, in both directions.
    pub(super) lost: f64,
    /// Most frequent drop reason, and whether there are others.
    pub(super) reason: Option<(String, bool)>,
    /// Mean time from ring to ring, in seconds.
    pub(super) residence: f64,
    pub(super) p99: f64,
    pub(super) queues: u16,
    pub(super) polled: &'static str,
    /// Its largest flow.
    pub(super) flow: String,
}

/// Returns one row for each port of a process.
pub(super) fn rows(before: Option<&Stats>, now: &Stats, place: &str) -> Vec<PortRow> {
    let before = before.filter(|before| before.pid == now.pid);
    let seconds = before.map_or(0.0, |before| now.uptime_seconds - before.uptime_seconds);
    let row = |port: &PortStats| {
        let former = before.and_then(|before| before.ports.iter().find(|one| one.id == port.id));
        PortRow { place: place.into(), ..of_port(former, port, seconds) }
    };
    now.ports.iter().map(row).collect()
}

fn of_port(before: Option<&PortStats>, now: &PortStats, seconds: f64) -> PortRow {
    let grown = |count: &dyn Fn(&PortStats) -> f64| {
        before.map_or(0.0, |before| (count(now) - count(before)).max(0.0))
    };
    let rate = |count: &dyn Fn(&PortStats) -> f64| {
        if seconds > 0.0 { grown(count) / seconds } else { 0.0 }
    };
    let way = |way: fn(&PortStats) -> &DirectionStats| {
        (rate(&|port| way(port).frames as f64), rate(&|port| way(port).bytes as f64))
    };
    let sum = |port: &PortStats, of: &dyn Fn(&model::report::PairStats) -> f64| {
        port.each_queue.iter().map(of).sum::<f64>()
    };
    let count = grown(&|port| sum(port, &|pair| pair.residence.count as f64));
    let total = grown(&|port| sum(port, &|pair| pair.residence_seconds));
    let slowest = now.each_queue.iter().map(|pair| pair.residence.p99_us / 1e6);
    PortRow {
        place: String::new(),
        nic: now.id.clone(),
        state: state(now),
        sent: way(|port| &port.tx),
        got: way(|port| &port.rx),
        lost: rate(&|port| (port.tx.lost() + port.rx.lost()) as f64),
        reason: reason(before, now),
        residence: if count > 0.0 { total / count } else { 0.0 },
        p99: slowest.fold(0.0, f64::max),
        queues: now.pairs_started,
        polled: now
            .polling
            .map_or("-", |polling| polled(polling.queues.polling, polling.queues.reason)),
        flow: now.flows.first().map_or_else(
            || "-".into(),
            |flow| format!("{} > {} {:.0}%", flow.from, flow.to, flow.share * 100.0),
        ),
    }
}

/// Returns the most frequent drop reason between the samples.
fn reason(before: Option<&PortStats>, now: &PortStats) -> Option<(String, bool)> {
    let before = before?;
    let names: BTreeSet<_> = now.tx.drops.keys().chain(now.rx.drops.keys()).collect();
    let of = |port: &PortStats, name: &str| {
        port.tx.lost_for(name).saturating_add(port.rx.lost_for(name))
    };
    let grown =
        names.into_iter().map(|name| (of(now, name).saturating_sub(of(before, name)), name));
    let grown: Vec<_> = grown.filter(|(count, _)| *count > 0).collect();
    let (_, most) = grown.iter().max_by_key(|(count, _)| *count)?;
    Some(((*most).clone(), grown.len() > 1))
}

/// Returns the dropped frames a second with the reason.
fn lost(row: &PortRow) -> String {
    match &row.reason {
        None => format!("{:.0}", row.lost),
        Some((reason, false)) => format!("{:.0} {reason}", row.lost),
        Some((reason, true)) => format!("{:.0} mostly {reason}", row.lost),
    }
}

fn state(port: &PortStats) -> &'static str {
    match port {
        PortStats { socket: None, .. } => "host",
        PortStats { connected: false, .. } => "no guest",
        _ if !port.broken_rings.is_empty() => "ring broken",
        PortStats { pairs_started: 0, .. } => "no driver",
        _ if port.each_queue.iter().any(|pair| pair.throttled_now) => "capped",
        _ => "active",
    }
}

/// Returns a short text on the port's polling while it sends nothing.
fn polled(armed: bool, reason: PollReason) -> &'static str {
    let polls = matches!(reason, PollReason::Pays | PollReason::Probing | PollReason::Always);
    match reason {
        PollReason::Never | PollReason::Unknown => "-",
        // Polling is permitted, but the port is not served.
        _ if polls && !armed => "-",
        PollReason::TooLong => "too far apart",
        PollReason::NoFreeCpu => "no free cpu",
        PollReason::CpuWanted => "cpu wanted",
        PollReason::BudgetUsed => "budget used",
        PollReason::QuotaUsed => "quota used",
        reason => reason.name(),
    }
}

/// Returns the table.
pub(super) fn table(rows: &[PortRow], several: bool) -> Table {
    let mut header = vec![
        "nic",
        "state",
        "sent/s",
        "mbit/s",
        "got/s",
        "mbit/s",
        "lost/s",
        "ring to ring",
        "p99",
        "queues",
        "polled",
        "largest flow",
    ];
    if several {
        header.insert(0, "socket");
    }
    let mut table = table::new(&header, if several { 3 } else { 2 });
    for row in rows {
        let time = |seconds: f64| if seconds > 0.0 { duration(seconds) } else { "-".into() };
        let way =
            |(frames, bytes): (f64, f64)| [format!("{frames:.0}"), format!("{:.1}", bytes / MBIT)];
        let mut cells = vec![row.nic.clone(), row.state.into()];
        cells.extend(way(row.sent));
        cells.extend(way(row.got));
        cells.extend([
            lost(row),
            time(row.residence),
            time(row.p99),
            row.queues.to_string(),
            row.polled.into(),
            row.flow.clone(),
        ]);
        if several {
            cells.insert(0, row.place.clone());
        }
        table.add_row(cells);
    }
    table
}

#[cfg(test)]
mod tests {
    use model::report::FlowStats;

    use super::*;

    fn sample(uptime_seconds: f64, frames: u64) -> Stats {
        let flow = FlowStats {
            from: "10.0.0.1:1".into(),
            to: "10.0.0.2:2".into(),
            protocol: "tcp".into(),
            nic: None,
            share: 0.5,
            recent_bytes: 1,
        };
        let port = PortStats {
            id: "a".into(),
            socket: Some("/a".into()),
            connected: true,
            pairs_started: 1,
            tx: DirectionStats { frames, bytes: frames * 1250, ..DirectionStats::default() },
            flows: vec![flow],
            ..PortStats::default()
        };
        Stats {
            version: "1".into(),
            pid: 1,
            uptime_seconds,
            ports: vec![port],
            reactors: Vec::new(),
            reactors_reason: None,
            queues_moved: 0,
            disks: Vec::new(),
            nics: Vec::new(),
            networks: Vec::new(),
            poll_defaults: None,
            keeper: None,
            start: None,
        }
    }

    #[test]
    fn rates_are_those_between_the_samples() {
        let (before, now) = (sample(10.0, 100), sample(12.0, 300));
        let all = rows(Some(&before), &now, "/net.sock");
        assert_eq!((all[0].sent, all[0].state), ((100.0, 125_000.0), "active"));
        let shown = table(&all, true).to_string();
        for part in ["/net.sock", "1.0", "10.0.0.1:1 > 10.0.0.2:2 50%"] {
            assert!(shown.contains(part), "{shown}");
        }
        assert_eq!(rows(None, &now, "")[0].sent, (0.0, 0.0));
    }

    #[test]
    fn frames_are_lost_for_the_reason_of_most() {
        let (mut before, mut now) = (sample(10.0, 0), sample(12.0, 0));
        before.ports[0].rx.drops.insert("oversize".into(), 900);
        now.ports[0].rx.drops = [("oversize".into(), 900), ("no-buffer".into(), 6)].into();
        let shown = |now: &Stats| lost(&rows(Some(&before), now, "")[0]);
        assert_eq!(shown(&now), "3 no-buffer");
        now.ports[0].tx.drops.insert("spoofed".into(), 20);
        assert_eq!(shown(&now), "13 mostly spoofed");
        assert_eq!(shown(&before), "0");
    }

    #[test]
    fn a_port_that_is_not_served_is_not_shown_as_polled() {
        assert_eq!(
            (polled(true, PollReason::Pays), polled(false, PollReason::Pays)),
            ("pays", "-")
        );
        assert_eq!(polled(false, PollReason::Off), "off");
    }
}
