//! Results of `blk-baseline`.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use lab::blk::baseline::BlkBaseline;
use lab::progress::Silent;
use lab::results::{Results, Written};

use super::{run, tiny};

fn measured(control: bool) -> Results {
    run(&BlkBaseline, &tiny(control), &mut Silent, &Arc::new(AtomicBool::new(false))).unwrap()
}

fn check(results: &Results) {
    let ids: Vec<_> = results.cells.iter().map(|cell| cell.id.as_str()).collect();
    assert_eq!(
        ids,
        [
            "null-4k-d1-sleep",
            "null-4k-d1-poll",
            "memory-4k-d1-poll",
            "cached-4k-d1-poll",
            "direct-4k-d1-poll"
        ]
    );
    for cell in &results.cells {
        for series in &cell.systems {
            assert_eq!(series.samples.len(), 2, "{}: {}", cell.title, series.name);
            for sample in &series.samples {
                let get = |metric: &str| sample[metric];
                assert!(get("requests") >= 1.0 && get("errors") == 0.0, "{sample:?}");
                assert!(get("iops") > 0.0, "{sample:?}");
                let sleeps = cell.id.ends_with("sleep");
                // fio and memcpy report no call notifications.
                let Some(calls) = sample.get("calls_per_request") else { continue };
                // A polling client receives no calls. A sleeping client needs them to make
                // progress.
                let calls = calls * get("requests");
                let enough =
                    if sleeps { calls >= 1.0 || get("requests") < 100.0 } else { calls == 0.0 };
                assert!(enough, "{sample:?}");
            }
        }
    }
}

#[test]
fn a_control_run_gives_consistent_counts_and_files() {
    let results = measured(true);
    check(&results);
    let dir = tempfile::tempdir().unwrap();
    let Written { json, markdown, plots } = results.write(dir.path()).unwrap();
    assert!(json.is_file());
    let drawn = std::fs::read_to_string(&plots[0]).unwrap();
    for cell in &results.cells {
        assert!(drawn.contains(&cell.title) && drawn.contains("requests a second"), "{drawn}");
    }
    let text = std::fs::read_to_string(markdown).unwrap();
    assert!(text.contains("control run") && text.contains("## Ratios"), "{text}");
    assert!(!text.contains("FAIL"), "a control run promises nothing: {text}");
    let read = Results::newest(dir.path(), Some("blk-baseline")).unwrap();
    assert_eq!(read.len(), 1);
    assert_eq!(read[0].run, results.run);
    assert_eq!(read[0].cells.len(), results.cells.len());
    assert!(Results::newest(dir.path(), Some("other")).unwrap().is_empty());
}

#[test]
fn a_run_on_ringway_blk_gives_consistent_counts_and_judges_the_bars() {
    let results = measured(false);
    check(&results);
    let bars: Vec<_> = results.compared.iter().filter_map(|c| c.bar).collect();
    assert_eq!(bars, [0.9, 1.15, 3.5, 1.1, 1.1, 0.95]);
    assert!(results.compared.iter().all(|c| c.bar.is_some() == c.passed.is_some()));
    assert!(results.run.versions["ringway-blk"].starts_with("ringway-blk "));
    let [_, _, memory, ..] = &results.cells[..] else { panic!("{:?}", results.cells) };
    assert_eq!(memory.systems.len(), 3);
}
