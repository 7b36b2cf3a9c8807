//! Disk that moves no data, to measure the cost of the datapath itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use reactor::Context;

use crate::{
    Channel, Completion, Disk, DiskError, Extent, Geometry, IoError, Request, SubmitOutcome,
};

/// Disk that ignores its data: reads leave the buffers unchanged, writes are dropped, and every
/// request succeeds. The disk reports all of its range as a hole.
#[derive(Debug)]
pub struct NullDisk {
    size: AtomicU64,
    block_size: u32,
    read_only: bool,
}

impl NullDisk {
    /// Creates a disk of `size` bytes in blocks of `block_size` bytes.
    pub fn new(size: u64, block_size: u32, read_only: bool) -> Self {
        Self { size: size.into(), block_size, read_only }
    }
}

impl Disk for NullDisk {
    fn inner(&self) -> Option<Arc<dyn Disk>> {
        None
    }

    fn geometry(&self) -> Geometry {
        Geometry {
            size: self.size.load(Ordering::Relaxed),
            block_size: self.block_size,
            read_only: self.read_only,
            discard: true,
            discard_granularity: self.block_size,
        }
    }

    fn open_channel(&self, _: &mut Context<'_>) -> Box<dyn Channel> {
        Box::new(NullChannel)
    }

    fn wait_fence(&self) -> Result<(), DiskError> {
        // I/O of a dead process cannot reach this disk.
        Ok(())
    }

    fn activate(&self) -> Result<(), DiskError> {
        Ok(())
    }

    fn deactivate(&self) -> Result<(), DiskError> {
        Ok(())
    }

    fn sync(&self) -> Result<(), DiskError> {
        Ok(())
    }

    fn resize(&self, size: Option<u64>) -> Result<Geometry, DiskError> {
        if let Some(size) = size {
            check_growth(self.geometry(), size)?;
            self.size.store(size, Ordering::Relaxed);
        }
        Ok(self.geometry())
    }

    fn stalled(&self) -> u64 {
        0
    }

    fn extents(&self, offset: u64, len: u64, _: usize) -> Result<Vec<Extent>, IoError> {
        self.geometry().check_inside(offset, len)?;
        Ok(vec![Extent { len, hole: true }])
    }

    fn reads_zeroes(&self) -> bool {
        true
    }

    fn zeroes_fast(&self, _: bool) -> bool {
        true
    }
}

/// Checks that a disk only grows, and by whole blocks.
pub(crate) fn check_growth(now: Geometry, size: u64) -> Result<(), DiskError> {
    let problem = if size < now.size {
        format!("{size} bytes is less than the present {}; a disk only grows", now.size)
    } else if !size.is_multiple_of(u64::from(now.block_size)) {
        format!("{size} bytes is not a multiple of the block size {}", now.block_size)
    } else {
        return Ok(());
    };
    Err(DiskError::Resize { problem })
}

struct NullChannel;

impl Channel for NullChannel {
    fn submit(&mut self, _: &mut Context<'_>, request: Request) -> SubmitOutcome {
        SubmitOutcome::Done(request.complete(Ok(())))
    }

    fn reap(&mut self, _: &mut Context<'_>, _: &mut Vec<Completion>) {}

    fn waiting(&self) -> usize {
        0
    }

    fn fail_stalled(&mut self, _: &mut Context<'_>) {}

    fn abandon(&mut self) {}
}
