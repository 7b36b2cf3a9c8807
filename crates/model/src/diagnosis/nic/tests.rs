//! Tests with a row for every cause.

use super::*;
use crate::poll::EffectivePolling;
use crate::report::{
    BrokenRing, FrameCounts, Latency, PollRefusals, PollStats, QueuePolling, RingKind,
};

fn waits(reason: PollReason) -> QueuePolling {
    QueuePolling {
        polling: false,
        reason,
        hits: 0,
        misses: 0,
        poll_seconds: 0.0,
        saved_wakeup_us: 0.0,
    }
}

fn queue(index: u16) -> PairStats {
    PairStats {
        index,
        served: true,
        reactor: 0,
        tx: DirectionStats::default(),
        rx: DirectionStats::default(),
        residence: Latency::default(),
        residence_seconds: 0.0,
        throttled: 0,
        throttled_seconds: 0.0,
        throttled_now: false,
        backlogged: 0,
        backlog: 0,
        polling: waits(PollReason::Off),
    }
}

fn idle() -> PortStats {
    let (set, refused) = (EffectivePolling::default(), PollRefusals::default());
    PortStats {
        id: "a".into(),
        socket: Some("/run/a.sock".into()),
        connected: true,
        pairs: 2,
        pairs_started: 2,
        polling: Some(PollStats { set, queues: waits(PollReason::Off), refused }),
        each_queue: vec![queue(0), queue(1)],
        ..PortStats::default()
    }
}

fn stats(nic: PortStats, uptime_seconds: f64) -> Stats {
    Stats {
        version: "1".into(),
        pid: 1,
        uptime_seconds,
        ports: vec![nic],
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

fn verdict_of(change: impl FnOnce(&mut PortStats)) -> NicVerdict {
    let mut now = idle();
    change(&mut now);
    let (earlier, now) = (stats(idle(), 10.0), stats(now, 12.0));
    judge_nic(&NicFacts::new(&earlier, &now, "a").unwrap())
}

fn lose(counts: &mut DirectionStats, reason: &str, lost: u64) {
    counts.frames += 1000;
    counts.drops.insert(reason.into(), lost);
}

#[test]
fn a_guest_that_takes_nothing_is_told_also_when_nothing_comes_any_more() {
    let mut stalled = idle();
    (stalled.each_queue[0].backlogged, stalled.each_queue[0].backlog) = (5, 5);
    let (earlier, now) = (stats(stalled.clone(), 10.0), stats(stalled, 12.0));
    let verdict = judge_nic(&NicFacts::new(&earlier, &now, "a").unwrap());
    assert_eq!(verdict.cause, NicCause::Buffers);
    assert!(verdict.sentence.contains("5 wait now"), "{}", verdict.sentence);
}

#[test]
fn every_cause_is_told() {
    type Change = fn(&mut PortStats);
    let cases: [(NicCause, &str, Change); 13] = [
        (NicCause::Idle, "is idle", |_| {}),
        (NicCause::NoFrontEnd, "no front-end", |nic| nic.connected = false),
        (NicCause::BrokenRing, "transmit ring 1 broke 5.0 s ago", |nic| {
            let (kind, cause) = (RingKind::Transmit, "descriptor 9 is outside".into());
            let (unix_seconds, since_seconds) = (1e9, 5.0);
            nic.broken_rings =
                vec![BrokenRing { queue: 3, kind, cause, unix_seconds, since_seconds }];
            nic.pairs_started = 0;
        }),
        (NicCause::NoDriver, "no queue yet", |nic| nic.pairs_started = 0),
        (NicCause::Cap, "for 25% of the time", |nic| nic.each_queue[0].throttled_seconds = 1.0),
        (NicCause::Buffers, "40 of 1040 frames", |nic| lose(&mut nic.rx, "no-buffer", 40)),
        (
            NicCause::Buffers,
            "30 of 100 frames for it found no buffers when they came, 7 wait",
            |nic| {
                nic.rx.frames = 100;
                (nic.each_queue[1].backlogged, nic.each_queue[1].backlog) = (30, 7);
                // The busy reactor delays their frames.
                (nic.each_queue[1].residence.count, nic.each_queue[1].residence_seconds) =
                    (93, 9.3);
            },
        ),
        (NicCause::Reactor, "faster than", |nic| lose(&mut nic.rx, "reactor-busy", 40)),
        (NicCause::Lost, "(receiver-closed)", |nic| lose(&mut nic.rx, "receiver-closed", 40)),
        (NicCause::Refused, "of which 40 for locked-mac", |nic| {
            lose(&mut nic.tx, "locked-mac", 40);
        }),
        (NicCause::Reactor, "take 5.0 ms", |nic| {
            (nic.rx.frames, nic.each_queue[1].residence.count) = (100, 100);
            nic.each_queue[1].residence_seconds = 0.5;
        }),
        (NicCause::Healthy, "gets 50 (5 KiB); queue 1 gets 100% of it", |nic| {
            (nic.rx.frames, nic.rx.bytes) = (100, 10_240);
            nic.each_queue[1].rx.bytes = 10_240;
        }),
        (NicCause::Healthy, "it sends 500 frames a second", |nic| lose(&mut nic.tx, "closed", 0)),
    ];
    for (cause, part, change) in cases {
        let verdict = verdict_of(change);
        assert_eq!(verdict.cause, cause, "{}", verdict.sentence);
        assert!(verdict.sentence.contains(part), "{}", verdict.sentence);
        let absent = [NicCause::NoFrontEnd, NicCause::BrokenRing, NicCause::NoDriver];
        let is_there = !absent.contains(&cause);
        assert_eq!(verdict.polling.is_some(), is_there);
    }
}

#[test]
fn the_host_needs_no_front_end_and_a_name_must_be_there() {
    let host = verdict_of(|nic| {
        (nic.socket, nic.polling, nic.pairs_started) = (None, None, 0);
        nic.connected = false;
    });
    assert_eq!((host.cause, host.polling), (NicCause::Idle, None));
    let now = stats(idle(), 1.0);
    assert!(NicFacts::new(&now, &now, "b").is_none());
}

#[test]
fn polling_is_told_with_its_reason() {
    let of = |reason, hits| {
        let verdict = verdict_of(|nic| {
            let polling = nic.polling.as_mut().unwrap();
            polling.queues = QueuePolling { hits, poll_seconds: 0.5, ..waits(reason) };
        });
        verdict.polling.unwrap()
    };
    assert!(of(PollReason::TooLong, 0).contains("frames are too far apart"));
    assert!(of(PollReason::NoFreeCpu, 0).contains("polls for frames"));
    assert!(of(PollReason::Pays, 0).contains("has paid"));
    assert!(of(PollReason::Pays, 9).contains("9 of 9 waits"));
}

#[test]
fn one_that_is_not_served_says_why() {
    let mac = "02:00:00:00:00:01".parse().unwrap();
    let mut nic = NicStats {
        id: "a".into(),
        network: "lan".into(),
        socket: "/a".into(),
        mac,
        queues: 1,
        vlan: None,
        locked: false,
        disabled: false,
        rate: None,
        flood: None,
        connected: false,
        refused: None,
        frames: FrameCounts::default(),
    };
    assert_eq!(judge_refused(&nic), None);
    nic.refused = Some("its socket is gone".into());
    let verdict = judge_refused(&nic).unwrap();
    assert_eq!(verdict.cause, NicCause::NotServed);
    assert_eq!(verdict.sentence, "a is not served, and its guest waits: its socket is gone.");
}
