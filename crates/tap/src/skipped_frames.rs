//! Frames that are lost because their read failed.

use rustix::io::Errno;

use crate::QueueError;

/// Most failed reads in a row, without a frame and without an end. This is many times the frames
/// that wait in a device (500 by default). A descriptor that can only fail would otherwise keep the
/// reactor busy without effect.
pub(crate) const RUN_MAX: u32 = 1 << 16;

/// Counts frames that the kernel could not deliver. It drops such a frame, and the frames behind it
/// can be read. An example is a kind of segmentation that the header cannot express (EINVAL).
#[derive(Debug, Default)]
pub(crate) struct SkippedFrames {
    /// Number of frames since the last [`Self::take`].
    new: u64,
    run: u32,
}

impl SkippedFrames {
    pub(crate) fn take(&mut self) -> u64 {
        std::mem::take(&mut self.new)
    }

    /// Ends a run of failed reads, because a frame arrived.
    pub(crate) fn end_run(&mut self) {
        self.run = 0;
    }

    /// Handles a failed read. Returns whether it skipped a frame; if not, no frame waits.
    ///
    /// # Errors
    /// The queue has failed: its device is gone, or its reads only fail.
    pub(crate) fn judge(&mut self, errno: Errno) -> Result<bool, QueueError> {
        match errno {
            Errno::BADFD => return Err(QueueError::Gone),
            Errno::AGAIN => {
                self.run = 0;
                return Ok(false);
            }
            _ => {}
        }
        (self.new, self.run) = (self.new + 1, self.run + 1);
        if self.run < RUN_MAX { Ok(true) } else { Err(QueueError::Failed(errno)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_device_that_has_gone_ends_a_queue_at_once() {
        let mut skipped_frames = SkippedFrames::default();
        assert_eq!(skipped_frames.judge(Errno::AGAIN), Ok(false));
        for errno in [Errno::INVAL, Errno::FAULT, Errno::NOMEM, Errno::IO, Errno::BADF] {
            assert_eq!(skipped_frames.judge(errno), Ok(true));
        }
        assert_eq!(
            (skipped_frames.take(), skipped_frames.judge(Errno::BADFD)),
            (5, Err(QueueError::Gone))
        );
    }

    #[test]
    fn failures_on_end_are_bounded_and_those_between_frames_are_not() {
        let mut skipped_frames = SkippedFrames::default();
        for between in 0..4 {
            for _ in 1..RUN_MAX {
                assert_eq!(skipped_frames.judge(Errno::INVAL), Ok(true));
            }
            if between % 2 == 0 {
                skipped_frames.end_run();
            } else {
                assert_eq!(skipped_frames.judge(Errno::AGAIN), Ok(false));
            }
        }
        assert_eq!(skipped_frames.take(), 4 * u64::from(RUN_MAX - 1));
        for _ in 1..RUN_MAX {
            assert_eq!(skipped_frames.judge(Errno::INVAL), Ok(true));
        }
        assert_eq!(skipped_frames.judge(Errno::FAULT), Err(QueueError::Failed(Errno::FAULT)));
    }
}
