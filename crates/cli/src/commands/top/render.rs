//! Rendering of rows as a table.

use comfy_table::Table;
use model::diagnosis::duration;

use super::order::{Column, Order};
use super::rows::Row;
use crate::table;

const MB: f64 = 1e6;
/// Place of the weight among the columns: after the state.
const WEIGHT_AT: usize = 2;

/// Returns the table.
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
        "polled".into(),
        "errors".into(),
    ];
    // Without calibrated storage, there are no weights to show.
    let weights = rows.iter().any(|row| row.weight.is_some());
    if weights {
        header.insert(WEIGHT_AT, "weight".into());
    }
    if several {
        header.insert(0, "socket".into());
    }
    let header: Vec<&str> = header.iter().map(String::as_str).collect();
    let mut table = table::new(&header, if several { 3 } else { 2 });
    for row in rows {
        let mut cells = cells(row);
        if weights {
            let weight = row.weight.map_or_else(|| "-".into(), |weight| weight.to_string());
            cells.insert(WEIGHT_AT, weight);
        }
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
        |(place, share)| format!("{place} {:.0}%", share.min(1.0) * 100.0),
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
        row.polled.into(),
        row.errors.to_string(),
    ]
}
