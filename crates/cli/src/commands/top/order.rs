//! Sort order of rows.

use std::cmp::Ordering;

use clap::ValueEnum;

use super::rows::Row;

/// Columns to sort by.
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
    /// Requests in flight
    InFlight,
    /// Age of the oldest request
    Oldest,
    /// Share of a reactor's thread
    Cpu,
}

/// Sort order: column and direction.
#[derive(Clone, Copy, Debug)]
pub(super) struct Order {
    column: Column,
    reversed: bool,
}

/// Keys and columns from left to right.
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
    /// Creates an order with the largest values first, or names in alphabetical order.
    pub(super) fn new(column: Column) -> Self {
        Self { column, reversed: false }
    }

    /// Sorts by the key's column, or reverses the order if it is the current column.
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

    pub(super) fn mark(self, column: Column, title: &str) -> String {
        let arrow = match (self.column == column, self.reversed) {
            (false, _) => "",
            (true, false) => " v",
            (true, true) => " ^",
        };
        format!("{title}{arrow}")
    }
}
