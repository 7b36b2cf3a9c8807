//! Tests of causes of layers with a map.

use super::*;

fn layered(mut case: Case, change: impl FnOnce(&mut LayerStats)) -> Case {
    let layers = LayerStats { count: 1, questions: 100, ..LayerStats::default() };
    case.before.disks[0].layers = Some(layers);
    case.disk().layers = Some(layers);
    change(case.disk().layers.as_mut().unwrap());
    case
}

#[test]
fn metadata_is_named_for_its_share() {
    let waited = |seconds, allocations, copies| {
        let case = Case::flow(1000, [5.0, 0.0, 495.0]);
        let case = layered(case, |layers| {
            layers.wait_seconds += seconds;
            layers.questions += 2000;
            layers.allocations += allocations;
            layers.read_modify_writes += copies;
        });
        case.verdict()
    };
    assert_eq!(waited(0.1, 0, 0).cause, Cause::Healthy);
    let verdict = waited(0.3, 1000, 0);
    assert_eq!((verdict.cause, verdict.stage), (Cause::Metadata, Some(Stage::Device)));
    let named = ["60% of the time", "300 us each", "2000 questions and 1000 new clusters"];
    assert!(named.iter().all(|text| verdict.sentence.contains(text)), "{}", verdict.sentence);
    for (allocations, copies, remedy) in
        [(1000, 900, "extended L2"), (1000, 0, "first writes"), (10, 0, "all over a large image")]
    {
        let next = waited(0.3, allocations, copies).next.unwrap();
        assert!(next.contains(remedy), "{next}");
    }
    // Waits of requests that have not ended do not make more than all of the time.
    assert!(waited(9.0, 0, 0).sentence.contains("100% of the time"));
}

#[test]
fn space_in_limbo_is_named_with_the_request_that_keeps_it() {
    let limbo = |waiting, held_bytes| {
        let case = layered(Case::oldest(Stage::Device, 8.0), |layers| {
            (layers.held_bytes, layers.held_seconds) = (held_bytes, 7.0);
        });
        case.with(|case| case.disk().waiting = waiting).verdict()
    };
    let verdict = limbo(2, 4 << 20);
    assert_eq!((verdict.cause, verdict.since_seconds), (Cause::Limbo, Some(7.0)));
    let named = ["4 MiB have been in limbo for 7.0 s", "a write of 4 KiB at byte 8192", "8.0 s"];
    assert!(named.iter().all(|text| verdict.sentence.contains(text)), "{}", verdict.sentence);
    assert!(verdict.next.unwrap().contains("make room"));
    assert_eq!(limbo(2, 0).cause, Cause::Full);
    let hangs = limbo(0, 4 << 20);
    assert_eq!(hangs.cause, Cause::StorageHangs);
    assert!(hangs.sentence.contains("4 MiB of freed space wait for its end"), "{}", hangs.sentence);
}
