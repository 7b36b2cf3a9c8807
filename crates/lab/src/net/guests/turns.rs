//! Guests that use all pairs of queues of their NICs in one run and one pair in the next: what is compared
//! then is of one boot, and two boots differ by more than pairs cost.

use super::{ADDRESSES, Run};

/// Metric: Gb/s over all pairs, over those of the runs between with one.
pub(in crate::net) const ALL_OVER_ONE: &str = "all_over_one";
/// Runs of a boot.
pub(in crate::net) const RUNS: usize = 12;
/// Behind this port the end that listens opens one for each run, when it uses the pairs of that run.
const FLAGS: usize = 5300;

/// Uses `pairs` in runs with even numbers, one in the others.
fn switch(pairs: u16, run: &str) -> String {
    format!("ethtool -L eth0 combined $(({run} % 2 ? 1 : {pairs})) || exit 4")
}

/// What the end that listens does with `$line`, which its servers say: one that has ended a run listens
/// again, and said so first when it began.
pub(super) fn between_runs(pairs: u16) -> String {
    let switch = switch(pairs, "run");
    format!(
        "case $line in *listening*)
             run=$((run + 1))
             {switch}
             iperf3 -s -1 -p $(({FLAGS} + run)) >/dev/null & ;;
         esac"
    )
}

/// What the end that connects does before run `$repeat`: the first one begins as guests are set up.
pub(super) fn before_run(pairs: u16) -> String {
    let (switch, server) = (switch(pairs, "repeat"), ADDRESSES[0]);
    format!(
        "if [ $repeat -gt 0 ]; then
             {switch}
             until iperf3 -c {server} -p $(({FLAGS} + repeat)) -n 1K >/dev/null; do sleep 0.1; done
         fi"
    )
}

/// What all pairs brought over what one did; `None`: there are not runs of both.
pub(super) fn all_over_one(runs: &[Run]) -> Option<f64> {
    let sum = |first: usize| runs.iter().skip(first).step_by(2).map(|run| run.gbit_per_s).sum();
    let (all, one): (f64, f64) = (sum(0), sum(1));
    let is_even = !runs.is_empty() && runs.len().is_multiple_of(2);
    is_even.then(|| all / one)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_take_turns() {
        let run = |gbit_per_s: f64| Run { gbit_per_s, bytes: 1.0, resent: 0.0 };
        assert_eq!(all_over_one(&[3.0, 2.0, 1.0, 2.0].map(run)), Some(1.0));
        assert_eq!(all_over_one(&[3.0, 2.0].map(run)), Some(1.5));
        assert_eq!(all_over_one(&[3.0, 2.0, 4.0].map(run)), None);
        assert_eq!(all_over_one(&[]), None);
        assert!(RUNS.is_multiple_of(2));
    }
}
