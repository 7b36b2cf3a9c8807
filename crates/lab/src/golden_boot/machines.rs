//! Cells of `golden-boot`: numbers of machines and how they boot.

use crate::experiment::{CellPlan, Comparison, Figure, Side};

/// Machines that boot at once, with `--quick` and without.
const MACHINES: [&[usize]; 2] = [&[2], &[1, 8, 50]];
/// Machines that boot one after the other, with `--quick` and without.
const IN_TURN: [usize; 2] = [10, 50];
/// Bar for the last boot over the second.
const LAST_BOOT: f64 = 1.2;
/// Bar for the first boot with the boot set over the first boot without.
const BOOT_SET: f64 = 0.6;
/// Ways from the machines to the server. Machines that boot in turn use the first.
pub(super) const SYSTEMS: [&str; 5] = ["cold", "apart", "boot-set", "warm", "qsd"];

/// Machines of one image.
#[derive(Clone, Copy)]
pub(super) struct Machines {
    pub(super) count: usize,
    /// Whether they boot one after the other, rather than at once.
    pub(super) in_turn: bool,
}

impl Machines {
    /// Returns the cells of a run.
    pub(super) fn all(quick: bool) -> impl Iterator<Item = Self> {
        let size = usize::from(!quick);
        let at_once = MACHINES[size].iter().map(|count| Self { count: *count, in_turn: false });
        at_once.chain([Self { count: IN_TURN[size], in_turn: true }])
    }

    pub(super) fn cell(self) -> CellPlan {
        let Self { count, in_turn } = self;
        let way = if in_turn { "one after the other" } else { "at once" };
        // The first system is the empty cache that all share.
        let systems = if in_turn { &SYSTEMS[..1] } else { &SYSTEMS[..] };
        CellPlan {
            id: format!("{count}-{}", if in_turn { "in-turn" } else { "machines" }),
            title: format!("{count} machines {way}"),
            systems: systems.iter().map(|system| (*system).to_owned()).collect(),
        }
    }

    pub(super) fn comparisons(self) -> Vec<Comparison> {
        let base = Comparison {
            cell: self.cell().id,
            ours: "cold".into(),
            side: Side::AtMost,
            ..Comparison::default()
        };
        if self.in_turn {
            let (metric, bar) = (Some("last_over_second".into()), Some(LAST_BOOT));
            return vec![Comparison { metric, figure: Figure::Worst, bar, ..base }];
        }
        let over = |ours: &str, peer: &str, metric: &str, bar| Comparison {
            ours: ours.into(),
            peers: vec![peer.into()],
            metric: Some(metric.into()),
            figure: Figure::OverBest,
            bar,
            ..base.clone()
        };
        let bar = (self.count == 1).then_some(BOOT_SET);
        vec![over("cold", "apart", "fetched_mib", None), over("boot-set", "cold", "slowest_s", bar)]
    }
}
