//! Guests that alternate between all queue pairs and one pair from run to run. This compares runs
//! of one boot, because two boots differ by more than the pairs cost.

use super::end::use_pairs;
use super::{ADDRESSES, Run, Streams};

/// Metric: Gb/s with all pairs, over Gb/s of the runs with one pair.
pub(in crate::net) const ALL_OVER_ONE: &str = "all_over_one";
/// Port on which the listening end receives the number of pairs to use.
const ORDERS: usize = 5300;

impl Streams {
    /// Alternates between this number of queue pairs and one pair, for this even number of runs.
    pub(in crate::net) fn by_turns(self, pairs: u16, runs: usize) -> Self {
        Self { repeats: runs, turns: Some(pairs), ..self }
    }
}

/// Returns the listening end's commands that set the requested number of pairs and confirm it.
pub(super) fn take_orders() -> String {
    let switch = use_pairs("$pairs");
    format!("busybox nc -ll -p {ORDERS} -e sh -c 'read -r pairs && {switch} && echo done' &")
}

/// Returns the connecting end's commands before run `$repeat`. The first run uses the initial setup
/// and shows that the other end is up.
pub(super) fn before_run(pairs: u16) -> String {
    let (switch, server) = (use_pairs("$pairs"), ADDRESSES[0]);
    format!(
        "pairs=$((repeat % 2 ? 1 : {pairs}))
         if [ $repeat -gt 0 ]; then
             {switch} || exit 4
             said=$(echo $pairs | busybox nc {server} {ORDERS})
             [ \"$said\" = done ] || {{ echo \"the other end keeps its pairs: $said\"; exit 6; }}
         fi"
    )
}

/// Returns Gb/s with all pairs over Gb/s with one. Returns `None` if the runs are not paired.
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
    }
}
