//! Profiles of devices whose numbers are known.

use super::*;

/// Sample of a device with a latency and a bandwidth: the more in flight, the more it serves.
fn sample(kind: OpKind, bytes: u64, depth: u64, pieces: u64) -> Sample {
    // 100 us of latency, 10 us a request, 1 GB/s; a request alone gets a quarter of it.
    let busy_ns = 10_000 + bytes;
    let alone_ns = 100_000 + 10_000 + 4 * bytes / pieces.min(4);
    let period = busy_ns.max(alone_ns / depth);
    Sample {
        kind,
        bytes,
        depth,
        pieces,
        bytes_per_second: bytes * SECOND / period,
        latency_ns: alone_ns.max(busy_ns * depth),
    }
}

fn samples() -> Vec<Sample> {
    let mut samples = Vec::new();
    for bytes in [4096, 65_536, 131_072, 1 << 20] {
        for depth in [1, 2, 4, 8, 16, 32] {
            samples.push(sample(OpKind::Read, bytes, depth, 1));
            samples.push(sample(OpKind::Write, bytes, depth, 1));
        }
    }
    samples
}

#[test]
fn costs_and_the_knee_come_from_the_matrix() {
    let profile = Profile::fit(&samples(), None).unwrap();
    assert!((9_500..10_500).contains(&profile.read.request_ns), "{profile:?}");
    assert!((990..1010).contains(&profile.read.byte_ps), "{profile:?}");
    assert_eq!(profile.read, profile.write);
    // 128 KiB need 8 in flight, of 141 us each.
    assert!((1_100_000..1_160_000).contains(&profile.knee_ns), "{profile:?}");
    assert_eq!((profile.requests_min, profile.piece, profile.turn), (4, None, None));
    assert!(profile.latency_ns > profile.knee_ns * 9 / 10, "{profile:?}");
}

#[test]
fn the_best_piece_is_the_largest_of_the_nearly_best() {
    let mut samples = samples();
    samples.extend([2, 4, 8, 16].map(|pieces| sample(OpKind::Read, 1 << 20, 1, pieces)));
    let piece = Profile::fit(&samples, None).unwrap().piece.unwrap();
    assert_eq!(piece.bytes, 1 << 18, "four pieces are as good as sixteen");
    assert!((200..300).contains(&piece.gain_percent), "{piece:?}");
    assert_eq!(Profile::fit(&samples, Some(Turn::DEFAULT)).unwrap().piece, None);
}

#[test]
fn missing_samples_are_named() {
    let of = |kind| samples().into_iter().filter(move |sample| sample.kind == kind);
    let fit = |samples: Vec<Sample>| Profile::fit(&samples, None);
    assert_eq!(fit(Vec::new()), Err(ShareError::Samples("reads")));
    assert_eq!(fit(of(OpKind::Read).collect()), Err(ShareError::Samples("writes")));
    assert_eq!(fit(of(OpKind::Write).collect()), Err(ShareError::Samples("reads")));
    let dead = samples().into_iter().map(|sample| Sample { bytes_per_second: 0, ..sample });
    assert_eq!(fit(dead.collect()), Err(ShareError::Samples("reads")));
}
