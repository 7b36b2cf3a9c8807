//! Tests of report lines.

use super::bars::line;
use super::*;
use crate::comparison::Side;
use crate::stats::{Difference, Summary};
use crate::verdict::Verdict;

#[test]
fn groups_of_three() {
    assert_eq!(thousands(0.0), "0");
    assert_eq!(thousands(999.4), "999");
    assert_eq!(thousands(1_234_567.0), "1 234 567");
}

#[test]
fn a_bar_line_says_pass_or_fail_with_the_ratio() {
    let ratio = Summary::of(&[1.8, 2.0, 2.4]).unwrap();
    let mut compared = Compared {
        cell: "null".into(),
        ours: "ours".into(),
        peers: vec!["a".into(), "b".into()],
        metric: "iops".into(),
        ratio,
        difference: Difference::of(&ratio),
        figure: Figure::OverBest,
        bar: Some(2.0),
        side: Side::AtLeast,
        passed: Some(true),
        verdict: Some(Verdict::Pass),
        note: None,
        bound: None,
        other_cpus: 0.1,
    };
    let text = &line(&compared).unwrap();
    assert_eq!(
        text,
        "PASS 2.00x (at least 2x; rounds 1.80..2.40): null: ours over the better of a and b"
    );
    compared.verdict = Some(Verdict::Undecided);
    assert!(line(&compared).unwrap().starts_with("UNDECIDED 2.00x"));
    compared.verdict = Some(Verdict::Fail);
    assert!(line(&compared).unwrap().starts_with("FAIL 2.00x"));
    compared.other_cpus = 0.8;
    assert!(line(&compared).unwrap().contains("noisy host, other work and steal took 0.80 CPUs"));
    compared.bound = Some(crate::results::ComparedBound {
        system: "bound".into(),
        ratio,
        bar: 0.95,
        holds: true,
    });
    let text = &line(&compared).unwrap();
    assert!(text.contains("a and b; or 2.00x of bound (at least 0.95x; rounds"), "{text}");
    compared.bar = Some(0.98);
    assert!(line(&compared).unwrap().starts_with("FAIL 2.000x (at least 0.98x"));
    let many: Vec<f64> = (0..=8).map(f64::from).collect();
    compared.ratio = Summary::of(&many).unwrap();
    assert_eq!(rounds(&compared), "0.000..8.000, half of them 2.000..6.000");
    compared.bar = None;
    assert_eq!(line(&compared), None);
}

#[test]
fn a_bar_line_names_what_it_is_about() {
    let ratio = Summary::of(&[0.9, 1.0, 1.25]).unwrap();
    let mut compared = Compared {
        cell: "null".into(),
        ours: "auto".into(),
        peers: vec!["off".into(), "always".into()],
        metric: "p50_us".into(),
        ratio,
        difference: Difference::NotARatio,
        figure: Figure::Kept,
        bar: Some(0.8),
        side: Side::AtLeast,
        passed: Some(true),
        verdict: Some(Verdict::Pass),
        note: None,
        bound: None,
        other_cpus: 0.1,
    };
    let line = |compared: &Compared| line(compared).unwrap();
    assert_eq!(
        line(&compared),
        "PASS 1.000 (at least 0.8; rounds 0.900..1.250): null, p50_us: auto over off, as a part \
         of the gain of always"
    );
    (compared.figure, compared.side) = (Figure::Alone, Side::AtMost);
    compared.note = Some("so".into());
    let alone = "PASS 1.000 (at most 0.8; rounds 0.900..1.250): null, p50_us: auto (so)";
    assert_eq!(line(&compared), alone);
    (compared.figure, compared.difference) = (Figure::OverSum, Difference::Lower);
    assert!(line(&compared).contains("(at most 0.8x; "), "{}", line(&compared));
    assert!(line(&compared).contains("auto over the sum of off and always"));
}

#[test]
fn a_report_begins_with_the_verdict_and_the_worst_bar() {
    let mut results = crate::results::tests::older();
    let text = markdown(&results);
    let begin = "# UNDECIDED: blk-baseline (20261127-183753 UTC, quick, noisy host)\n\n\
                 Of 1 bar, 0 missed, 1 undecided, 0 met. Undecided: the median misses the bar, but \
                 the spread is as large as its distance from 1. Repeat with more rounds on a quiet \
                 host.\n\n\
                 - UNDECIDED 0.686x (at least 0.95x; rounds 0.520..0.852): direct-4k-d32-poll: \
                 ringway-blk --poll auto --cache none over fio io_uring (the spread is larger)\n\n\
                 - host: ";
    assert!(text.starts_with(begin), "{text}");
    let met = Compared { verdict: Some(Verdict::Pass), note: None, ..results.compared[1].clone() };
    results.compared.insert(0, met);
    let unjudged = vec!["x, iops: a has no figure that can be judged".to_owned()];
    results = Results::new(results.run, results.cells, results.compared, unjudged);
    let text = markdown(&results);
    assert!(text.starts_with("# FAIL: blk-baseline ("), "{text}");
    assert!(text.contains("Of 3 bars, 1 missed, 1 undecided, 1 met."), "{text}");
    let words: Vec<&str> =
        text.lines().filter_map(|l| l.strip_prefix("- ")?.split(' ').next()).collect();
    assert_eq!(words[..3], ["FAIL", "UNDECIDED", "PASS"]);
    results = Results::new(results.run, results.cells, Vec::new(), Vec::new());
    let text = markdown(&results);
    assert!(text.starts_with("# blk-baseline (20261127-183753 UTC, quick, noisy host)\n\nNothing is promised of these figures.\n\n- host: "), "{text}");
}
