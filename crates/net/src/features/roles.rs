//! Purpose of each queue (virtio 1.2, 5.1.2).

use super::feature::{CTRL_VQ, MQ};
use super::{AcceptedFeatures, OfferedFeatures};

/// Purpose of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueRole {
    /// Queue of the pair with this number: the even queue receives, the odd one transmits.
    Pair(u16),
    /// Control queue.
    Control,
}

/// Layout of the queues for the accepted features. It is valid until the driver accepts other
/// features.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueLayout {
    pairs: u16,
    control: bool,
}

impl QueueLayout {
    /// Returns the number of queue pairs, used or not.
    pub fn pairs(self) -> u16 {
        self.pairs
    }

    /// Returns the purpose of a queue, or `None` if there is no such queue.
    pub fn of(self, index: u16) -> Option<QueueRole> {
        let pair = index / 2;
        match index {
            _ if pair < self.pairs => Some(QueueRole::Pair(pair)),
            _ if self.control && Some(index) == self.pairs.checked_mul(2) => {
                Some(QueueRole::Control)
            }
            _ => None,
        }
    }
}

impl OfferedFeatures {
    /// Returns the number of queues that a driver may use, including the control queue.
    pub fn queues(&self) -> u16 {
        self.pairs.saturating_mul(2).saturating_add(self.control.into())
    }

    /// Returns the layout of the queues if these features were accepted.
    pub fn roles(&self, features: AcceptedFeatures) -> QueueLayout {
        let control = features.has(CTRL_VQ);
        // If the front-end implements the control queue itself, the front-end chooses the numbers
        // of pairs.
        let pairs = if control && !features.has(MQ) { self.pairs.min(1) } else { self.pairs };
        QueueLayout { pairs, control }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::features::feature::VERSION_1;

    fn roles(control: bool, bits: u64) -> QueueLayout {
        let offered_features =
            OfferedFeatures { offloads: true, mergeable: true, pairs: 4, control, mtu: true };
        offered_features.roles(offered_features.accept(bits | VERSION_1).unwrap())
    }

    #[test]
    fn the_control_queue_is_behind_all_pairs_that_were_agreed_on() {
        let many = roles(true, CTRL_VQ | MQ);
        assert_eq!([0, 1, 7].map(|index| many.of(index)), [0, 0, 3].map(QueueRole::Pair).map(Some));
        assert_eq!(
            [8, 9, u16::MAX].map(|index| many.of(index)),
            [Some(QueueRole::Control), None, None]
        );
        let one = roles(true, CTRL_VQ);
        assert_eq!(
            [1, 2, 3, 8].map(|index| one.of(index)),
            [Some(QueueRole::Pair(0)), Some(QueueRole::Control), None, None]
        );
        assert_eq!((many.pairs(), one.pairs()), (4, 1));
    }

    #[test]
    fn a_front_end_that_keeps_the_control_queue_has_pairs_only() {
        for kept in [roles(true, MQ), roles(true, 0), roles(false, 0)] {
            assert_eq!([7, 8].map(|index| kept.of(index)), [Some(QueueRole::Pair(3)), None]);
        }
        assert_eq!(QueueLayout::default().of(0), None);
    }

    #[test]
    fn the_control_queue_counts() {
        let offer = |pairs, control| OfferedFeatures {
            offloads: true,
            mergeable: true,
            pairs,
            control,
            mtu: true,
        };
        assert_eq!((offer(3, true).queues(), offer(3, false).queues()), (7, 6));
    }
}
