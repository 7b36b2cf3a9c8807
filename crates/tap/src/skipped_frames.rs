//! What becomes of a queue whose reads fail.

use rustix::io::Errno;

use crate::QueueError;

/// So many reads may fail on end, without a frame or the news that there is none: many times what waits
/// in a device (500 frames, unless somebody sets more). A descriptor that can only fail would keep the
/// reactor busy for nothing.
pub(crate) const RUN_MAX: u32 = 1 << 16;

/// Frames that the kernel had and could not hand over. It drops such a frame, and those behind it can
/// be read: one whose kind of segmentation a header cannot express, say (EINVAL).
#[derive(Debug, Default)]
pub(crate) struct SkippedFrames {
    /// Since they were asked for.
    new: u64,
    run: u32,
}

impl SkippedFrames {
    pub(crate) fn take(&mut self) -> u64 {
        std::mem::take(&mut self.new)
    }

    /// A frame came.
    pub(crate) fn came(&mut self) {
        self.run = 0;
    }

    /// A read has failed: whether a frame was skipped by it, or else there is none.
    ///
    /// # Errors
    /// The queue ends: its device has gone, or has done nothing but fail.
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
                skipped_frames.came();
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
