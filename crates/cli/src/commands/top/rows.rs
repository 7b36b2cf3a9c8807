//! From two samples to a table.

use std::cmp::Ordering;

use clap::ValueEnum;
use comfy_table::Table;
use model::report::{DiskState, DiskStats, Stage, Stats};
use model::why::duration;

use crate::table;

const MB: f64 = 1e6;

/// What one disk did between two samples.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Row {
    /// Control socket of its process, where several are watched.
    place: String,
    disk: String,
    state: &'static str,
    read_iops: f64,
    write_iops: f64,
    /// All kinds.
    iops: f64,
    bytes_per_second: f64,
    /// Mean, in seconds.
    latency: f64,
    p99: f64,
    longest: Option<(Stage, f64)>,
    in_flight: u64,
    oldest: f64,
    cpu: f64,
    errors: u64,
}

/// Columns that can be sorted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Column {
    /// Id of the disk
    Disk,
    /// Requests a second, of all kinds
    Iops,
    /// Bytes a second
    #[value(name = "mb/s")]
    Throughput,
    /// Mean latency
    Latency,
    /// 99th percentile since attach
    P99,
    /// Requests under way
    InFlight,
    /// Age of the oldest request
    Oldest,
    /// Part of a reactor's thread
    Cpu,
}

/// How rows are sorted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Order {
    column: Column,
    reversed: bool,
}

/// Key, title and column, from left to right; what has no key is not sorted by.
const KEYS: [(u8, Column); 8] = [
    (b'd', Column::Disk),
    (b'i', Column::Iops),
    (b'm', Column::Throughput),
    (b'l', Column::Latency),
    (b'9', Column::P99),
    (b'f', Column::InFlight),
    (b'o', Column::Oldest),
    (b'c', Column::Cpu),
];

impl Order {
    /// The largest first, names in order.
    pub(super) fn new(column: Column) -> Self {
        Self { column, reversed: false }
    }

    /// A key sorts by its column, or turns the order round.
    pub(super) fn press(&mut self, key: u8) {
        if let Some((_, column)) = KEYS.iter().find(|(one, _)| *one == key) {
            self.reversed = *column == self.column && !self.reversed;
            self.column = *column;
        }
    }

    pub(super) fn sort(self, rows: &mut [Row]) {
        rows.sort_by(|a, b| {
            let ordering = self.compare(a, b);
            let ordering = if self.reversed { ordering.reverse() } else { ordering };
            ordering.then_with(|| (&a.disk, &a.place).cmp(&(&b.disk, &b.place)))
        });
    }

    fn compare(self, a: &Row, b: &Row) -> Ordering {
        let number: fn(&Row) -> f64 = match self.column {
            Column::Disk => return a.disk.cmp(&b.disk),
            Column::Iops => |row| row.iops,
            Column::Throughput => |row| row.bytes_per_second,
            Column::Latency => |row| row.latency,
            Column::P99 => |row| row.p99,
            Column::InFlight => |row| row.in_flight as f64,
            Column::Oldest => |row| row.oldest,
            Column::Cpu => |row| row.cpu,
        };
        number(b).total_cmp(&number(a))
    }

    fn mark(self, column: Column, title: &str) -> String {
        let arrow = match (self.column == column, self.reversed) {
            (false, _) => "",
            (true, false) => " v",
            (true, true) => " ^",
        };
        format!("{title}{arrow}")
    }
}

/// One row for each disk of a process.
pub(super) fn rows(before: Option<&Stats>, now: &Stats, place: &str) -> Vec<Row> {
    let before = before.filter(|before| before.pid == now.pid);
    let seconds = before.map_or(0.0, |before| now.uptime_seconds - before.uptime_seconds);
    let row = |disk: &DiskStats| {
        let former = before.and_then(|before| before.disks.iter().find(|one| one.id == disk.id));
        Row { place: place.into(), ..of_disk(former, disk, seconds) }
    };
    now.disks.iter().map(row).collect()
}

fn of_disk(before: Option<&DiskStats>, now: &DiskStats, seconds: f64) -> Row {
    let grown = |count: &dyn Fn(&DiskStats) -> f64| {
        before.map_or(0.0, |before| (count(now) - count(before)).max(0.0))
    };
    let rate = |count: &dyn Fn(&DiskStats) -> f64| {
        if seconds > 0.0 { grown(count) / seconds } else { 0.0 }
    };
    let spent = |stage: Stage| {
        let sum = |disk: &DiskStats, of: &dyn Fn(&model::report::StageTimes) -> f64| {
            disk.stages.iter().filter(|one| one.stage == stage).map(of).sum::<f64>()
        };
        let count = grown(&|disk| sum(disk, &|one| one.times.count as f64));
        (count, grown(&|disk| sum(disk, &|one| one.sum_seconds)))
    };
    let (count, total) = spent(Stage::Total);
    let parts = [Stage::Queue, Stage::Cap, Stage::Device, Stage::Completion];
    let shares = parts.map(|stage| (stage, spent(stage).1 / total.max(1e-12)));
    let longest = shares.into_iter().max_by(|a, b| a.1.total_cmp(&b.1));
    Row {
        place: String::new(),
        disk: now.id.clone(),
        state: state(now),
        read_iops: rate(&|disk| disk.requests.read as f64),
        write_iops: rate(&|disk| disk.requests.write as f64),
        iops: rate(&|disk| disk.requests.total() as f64),
        bytes_per_second: rate(&|disk| (disk.bytes.read + disk.bytes.write) as f64),
        latency: if count > 0.0 { total / count } else { 0.0 },
        p99: now.latency.p99_us / 1e6,
        longest: longest.filter(|_| total > 0.0),
        in_flight: now.in_flight + now.in_rings,
        oldest: now.oldest.map_or(0.0, |oldest| oldest.age_seconds),
        cpu: rate(&|disk| disk.busy_seconds),
        errors: now.errors,
    }
}

fn state(disk: &DiskStats) -> &'static str {
    match disk.state {
        _ if disk.fence.is_some() => "fenced",
        DiskState::Attached => "attached",
        DiskState::Paused => "paused",
        DiskState::Stuck => "stuck",
        DiskState::Waiting => "full",
        DiskState::Refused => "refused",
        DiskState::Active if !disk.connected => "no guest",
        DiskState::Active if disk.held_by_cap > 0 => "capped",
        DiskState::Active => "active",
    }
}

/// The table.
pub(super) fn table(rows: &[Row], order: Order, several: bool) -> Table {
    let mark = |column, title| order.mark(column, title);
    let mut header = vec![
        mark(Column::Disk, "[d]isk"),
        "state".into(),
        "read/s".into(),
        "write/s".into(),
        mark(Column::Iops, "[i]ops"),
        mark(Column::Throughput, "[m]b/s"),
        mark(Column::Latency, "[l]atency"),
        "where".into(),
        mark(Column::P99, "p9[9]"),
        mark(Column::InFlight, "in [f]light"),
        mark(Column::Oldest, "[o]ldest"),
        mark(Column::Cpu, "[c]pu"),
        "errors".into(),
    ];
    if several {
        header.insert(0, "socket".into());
    }
    let header: Vec<&str> = header.iter().map(String::as_str).collect();
    let mut table = table::new(&header, if several { 3 } else { 2 });
    for row in rows {
        let mut cells = cells(row);
        if several {
            cells.insert(0, row.place.clone());
        }
        table.add_row(cells);
    }
    table
}

fn cells(row: &Row) -> Vec<String> {
    let time = |seconds: f64| if seconds > 0.0 { duration(seconds) } else { "-".into() };
    let place = row.longest.map_or_else(
        || "-".into(),
        |(stage, share)| {
            let name = match stage {
                Stage::Queue => "ring",
                Stage::Completion => "back",
                stage => stage.name(),
            };
            format!("{name} {:.0}%", share.min(1.0) * 100.0)
        },
    );
    vec![
        row.disk.clone(),
        row.state.into(),
        format!("{:.0}", row.read_iops),
        format!("{:.0}", row.write_iops),
        format!("{:.0}", row.iops),
        format!("{:.1}", row.bytes_per_second / MB),
        time(row.latency),
        place,
        time(row.p99),
        row.in_flight.to_string(),
        time(row.oldest),
        format!("{:.0}%", row.cpu * 100.0),
        row.errors.to_string(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::report::{Latency, Op, StageTimes};
    use model::spec::Backend;

    fn sample(uptime_seconds: f64, reads: [u64; 2], device_seconds: f64) -> Stats {
        let disks = [("a", reads[0]), ("b", reads[1])].map(|(id, reads)| {
            let mut disk = DiskStats::new(id, Backend::Null(1 << 20), 1 << 20);
            (disk.state, disk.connected) = (DiskState::Active, true);
            (disk.requests.read, disk.bytes.read) = (reads, reads * 4096);
            let times = Latency { count: reads, ..Latency::default() };
            let (op, sum_seconds) = (Op::Read, device_seconds);
            disk.stages = [Stage::Device, Stage::Total]
                .map(|stage| StageTimes { stage, op, times, sum_seconds })
                .into();
            disk
        });
        let (version, reactors, disks) = ("1".into(), Vec::new(), disks.into());
        Stats { version, pid: 1, uptime_seconds, reactors, disks, keeper: None }
    }

    #[test]
    fn rates_are_those_between_the_samples() {
        let (before, now) = (sample(10.0, [100, 0], 1.0), sample(12.0, [300, 50], 1.1));
        let rows = rows(Some(&before), &now, "");
        assert_eq!((rows[0].read_iops, rows[1].iops), (100.0, 25.0));
        assert_eq!(rows[0].bytes_per_second, 409_600.0);
        assert!((rows[0].latency - 0.1 / 200.0).abs() < 1e-9);
        assert_eq!(rows[0].longest.unwrap().0, Stage::Device);
    }

    #[test]
    fn a_first_sample_and_one_of_another_process_have_no_rates() {
        let now = sample(12.0, [300, 50], 1.1);
        let other = Stats { pid: 2, ..sample(10.0, [100, 0], 1.0) };
        for before in [None, Some(&other)] {
            assert!(rows(before, &now, "").iter().all(|row| row.iops == 0.0));
        }
    }

    #[test]
    fn keys_sort_and_turn_round() {
        let (before, now) = (sample(10.0, [0, 0], 0.0), sample(12.0, [10, 50], 0.0));
        let mut all = rows(Some(&before), &now, "");
        let mut order = Order::new(Column::Iops);
        let mut sorted = |order: Order| {
            order.sort(&mut all);
            all.iter().map(|row| row.disk.as_str()).collect::<String>()
        };
        assert_eq!(sorted(order), "ba");
        order.press(b'i');
        assert_eq!(sorted(order), "ab");
        order.press(b'd');
        assert_eq!(sorted(order), "ab");
        order.press(b'd');
        assert_eq!(sorted(order), "ba");
        order.press(b'?');
        assert_eq!(sorted(order), "ba");
        let shown = table(&all, order, false).to_string();
        assert!(shown.contains("[d]isk ^") && shown.contains("read/s"), "{shown}");
    }
}
