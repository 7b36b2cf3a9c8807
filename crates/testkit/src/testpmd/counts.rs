//! Counters of testpmd's ports.

use crate::error::{Error, Result};

/// Frames that a port has sent and received.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Number of frames received.
    pub received: u64,
    /// Number of frames sent.
    pub sent: u64,
    /// Frames received a second since the last query, by testpmd's own clock.
    pub received_per_s: u64,
    /// Number of frames that were broken, or lost for lack of memory.
    pub failed: u64,
}

impl Counts {
    /// Parses the output of `show port stats`.
    pub(super) fn parse(output: &str) -> Result<Self> {
        let field = |name: &str| {
            let (_, rest) = output.split_once(name)?;
            rest.split_whitespace().next()?.parse::<u64>().ok()
        };
        let all = || {
            let failed = ["RX-missed:", "RX-errors:", "RX-nombuf:", "TX-errors:"].map(field);
            Some(Self {
                received: field("RX-packets:")?,
                sent: field("TX-packets:")?,
                received_per_s: field("Rx-pps:")?,
                failed: failed.into_iter().sum::<Option<u64>>()?,
            })
        };
        all().ok_or_else(|| Error::Reply {
            request: "show port stats".to_owned(),
            what: output.to_owned(),
        })
    }
}

/// Parses the output of `show port xstats`: frames of receive queue 0, 1, and so on.
pub(super) fn by_queue(output: &str) -> Vec<u64> {
    let of = |queue: usize| {
        let (_, rest) = output.split_once(&format!("rx_q{queue}_good_packets:"))?;
        rest.split_whitespace().next()?.parse().ok()
    };
    (0..).map_while(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "show port stats 1
  ######################## NIC statistics for port 1  ########################
  RX-packets: 612064     RX-missed: 0          RX-bytes:  39172096
  RX-errors: 1
  RX-nombuf:  2
  TX-packets: 611104     TX-errors: 0          TX-bytes:  39110656

  Throughput (since last show)
  Rx-pps:       169384          Rx-bps:     86724736
  Tx-pps:       168947          Tx-bps:     86501216
  ############################################################################
testpmd> ";

    #[test]
    fn the_counts_of_a_port_are_read() {
        let counts = Counts::parse(OUTPUT).unwrap();
        let all = (counts.received, counts.sent, counts.received_per_s, counts.failed);
        assert_eq!(all, (612_064, 611_104, 169_384, 3));
        assert!(Counts::parse("Invalid port 7").is_err());
    }

    #[test]
    fn queues_are_counted() {
        let output = "rx_good_packets: 9\nrx_q0_good_packets: 4\nrx_q0_errors: 1\n\
                    rx_q1_good_packets: 5\ntx_q2_good_packets: 1";
        assert_eq!(by_queue(output), [4, 5]);
        assert!(by_queue("nothing").is_empty());
    }
}
