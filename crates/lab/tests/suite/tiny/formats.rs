//! Disks in image files.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use lab::blk::formats::Formats;
use lab::experiment::Options;
use lab::progress::Silent;

use super::{drawn, run, tiny};

#[test]
fn both_servers_allocate_and_find_blocks_and_leave_no_file() {
    let scratch = tempfile::tempdir().unwrap();
    let cells = [("first-backed-d32", 4, &[3.0, 1.5][..]), ("known-read-d32", 6, &[1.0; 3])];
    for (cell, systems, bars) in cells {
        let (only, rounds) = (Some(cell.into()), Some(1));
        let scratch = Some(scratch.path().to_owned());
        let options = Options { only, rounds, scratch, ..tiny(false) };
        let stop = Arc::new(AtomicBool::new(false));
        let results = run(&Formats, &options, &mut Silent, &stop).unwrap();
        let [cell] = &results.cells[..] else { panic!("{:?}", results.cells) };
        assert_eq!(cell.systems.len(), systems);
        for series in &cell.systems {
            let get = |metric: &str| series.median(metric);
            assert!(get("requests") >= 1.0 && get("errors") == 0.0, "{series:?}");
            assert!(get("iops") > 0.0 && get("image_mib") > 0.0, "{series:?}");
        }
        let judged = results.compared.iter().filter(|c| c.passed.is_some());
        assert_eq!(judged.filter_map(|c| c.bar).collect::<Vec<_>>(), bars);
        drawn(&results, 1);
    }
    assert_eq!(std::fs::read_dir(scratch.path()).unwrap().count(), 0);
}

#[test]
fn a_disk_without_room_is_refused_before_any_file_exists() {
    let options = Options { only: None, window_ms: Some(1 << 40), ..tiny(false) };
    let stop = Arc::new(AtomicBool::new(false));
    let error = run(&Formats, &options, &mut Silent, &stop).unwrap_err().to_string();
    assert!(error.contains("formats needs") && error.contains("--scratch"), "{error}");
}
