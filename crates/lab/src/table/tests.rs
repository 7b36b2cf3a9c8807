//! Tests of report lines.

use super::*;
use crate::stats::Summary;

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
        verdict: Verdict::of(&ratio),
        figure: Figure::OverBest,
        bar: Some(2.0),
        side: Side::AtLeast,
        passed: Some(true),
        note: None,
        bound: None,
        other_cpus: 0.1,
    };
    let line = &bar_lines(&[compared.clone()])[0];
    assert_eq!(
        line,
        "PASS 2.00x (at least 2x; rounds 1.80..2.40): null: ours over the better of a and b"
    );
    compared.passed = Some(false);
    assert!(bar_lines(&[compared.clone()])[0].starts_with("FAIL 2.00x"));
    compared.other_cpus = 0.8;
    assert!(bar_lines(&[compared.clone()])[0].contains("busy host"));
    compared.bound = Some(crate::results::ComparedBound {
        system: "bound".into(),
        ratio,
        bar: 0.95,
        holds: true,
    });
    let line = &bar_lines(&[compared.clone()])[0];
    assert!(line.contains("a and b; or 2.00x of bound (at least 0.95x; rounds"), "{line}");
    compared.bar = Some(0.98);
    assert!(bar_lines(&[compared.clone()])[0].starts_with("FAIL 2.000x (at least 0.98x"));
    let many: Vec<f64> = (0..=8).map(f64::from).collect();
    compared.ratio = Summary::of(&many).unwrap();
    assert_eq!(rounds(&compared), "0.000..8.000, half of them 2.000..6.000");
    compared.bar = None;
    assert!(bar_lines(&[compared]).is_empty());
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
        verdict: Verdict::NotARatio,
        figure: Figure::Kept,
        bar: Some(0.8),
        side: Side::AtLeast,
        passed: Some(true),
        note: None,
        bound: None,
        other_cpus: 0.1,
    };
    let line = |compared: &Compared| bar_lines(std::slice::from_ref(compared)).remove(0);
    assert_eq!(
        line(&compared),
        "PASS 1.000 (at least 0.8; rounds 0.900..1.250): null, p50_us: auto over off, as a part \
         of the gain of always"
    );
    (compared.figure, compared.side) = (Figure::Alone, Side::AtMost);
    compared.note = Some("so".into());
    let alone = "PASS 1.000 (at most 0.8; rounds 0.900..1.250): null, p50_us: auto (so)";
    assert_eq!(line(&compared), alone);
    (compared.figure, compared.verdict) = (Figure::OverSum, Verdict::Lower);
    assert!(line(&compared).contains("(at most 0.8x; "), "{}", line(&compared));
    assert!(line(&compared).contains("auto over the sum of off and always"));
}
