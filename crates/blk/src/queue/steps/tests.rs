//! Gain and cost of the steps in simulated time.

use super::model::{Arming, Arrivals, Figures, Model, Publishing};

const REQUESTS: u64 = 60_000;
/// A thread of the host that is woken on another CPU.
const USUAL: f64 = 5.0;

fn closed(publishing: Publishing, arming: Arming, depth: u64) -> Figures {
    Model::new(publishing, arming, Arrivals::Closed(depth), USUAL).run(REQUESTS)
}

/// Measured, with the `virtio-driver` crate: 1.8 to 2.0 million a second with one step at the end,
/// 4.0 with SPDK.
#[test]
fn the_model_agrees_with_what_was_measured() {
    let before = closed(Publishing::AtEnd, Arming::WithEachTake, 32);
    assert!((1.7..2.4).contains(&before.per_us), "{before:?}");
    assert!((0.03..0.04).contains(&before.calls), "{before:?}");
    let spdk = closed(Publishing::EachCallAtEnd, Arming::WithEachTake, 32);
    assert!((3.0..4.5).contains(&spdk.per_us), "{spdk:?}");
}

#[test]
fn steps_pay_at_depth() {
    let depths = [1, 2, 4, 8, 16, 32];
    for (arming, gains) in [
        (Arming::BeforeSleep, [0.99, 0.99, 1.2, 1.2, 1.8, 1.8]),
        (Arming::WithEachTake, [0.99, 0.99, 1.2, 1.3, 1.8, 1.8]),
    ] {
        for (depth, gain) in depths.into_iter().zip(gains) {
            let before = closed(Publishing::AtEnd, arming, depth);
            let now = closed(Publishing::InSteps, arming, depth);
            let ratio = now.per_us / before.per_us;
            assert!(ratio >= gain, "depth {depth}: {ratio:.2}, {before:?}, {now:?}");
        }
    }
}

/// A wake-up as short as that of a guest that polls before it sleeps gains little, and costs more.
#[test]
fn steps_cost_little_at_any_rate() {
    for (wake_up, most) in [(1.0, 1.1), (USUAL, 1.06), (20.0, 1.06)] {
        for group in [1, 16, 64] {
            for rate in [0.01, 0.1, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0] {
                let arrivals = Arrivals::Open(rate, group);
                let run = |publishing| {
                    Model::new(publishing, Arming::BeforeSleep, arrivals, wake_up).run(REQUESTS)
                };
                let (before, now) = (run(Publishing::AtEnd), run(Publishing::InSteps));
                let what = format!(
                    "wake-up {wake_up}, {rate} per us in groups of {group}: {before:?}, {now:?}"
                );
                assert!(now.cpu <= before.cpu * most, "{what}");
                assert!(wake_up < USUAL || now.calls <= before.calls * 1.05 + 0.003, "{what}");
            }
        }
    }
}
