//! Sequential writers: a channel that writes granule after granule will write the next ones, too.

/// Writers that are told apart.
const STREAMS: usize = 8;
/// Most granules that get a cluster by one question.
const MOST: u64 = 128;

/// The last writers, the one that asked last at the end.
#[derive(Debug, Default)]
pub(super) struct Streams(Vec<Stream>);

#[derive(Clone, Copy, Debug)]
struct Stream {
    /// First granule that the writer will ask for.
    next: u64,
    /// Granules that its last question got.
    count: u64,
}

impl Streams {
    /// Returns how many granules to prepare for a writer that asks for one: twice as many as last
    /// time if it goes on where it was, else 1.
    pub(super) fn count(&mut self, granule: u64) -> u64 {
        let known = self.0.iter().position(|stream| stream.next == granule);
        let count = known.map_or(1, |at| (self.0.remove(at).count * 2).min(MOST));
        if self.0.len() == STREAMS {
            self.0.remove(0);
        }
        self.0.push(Stream { next: granule + count, count });
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sequential_writer_gets_more_each_time_and_a_random_one_does_not() {
        let mut streams = Streams::default();
        let (mut next, mut questions) = (0, 0);
        while next < 16_384 {
            next += streams.count(next);
            questions += 1;
            streams.count((1 << 30) | (questions * 1000));
        }
        // 1 GiB in clusters of 64 KiB.
        assert!(questions < 200, "{questions} questions");
        assert_eq!((0..100).map(|at| streams.count((1 << 40) | (at * 7))).max(), Some(1));
        assert_eq!(streams.0.len(), STREAMS);
    }
}
