//! Part of another disk, for example one partition of an image.

use std::sync::Arc;

use reactor::Context;

use crate::{
    Channel, Completion, Disk, DiskError, Extent, Geometry, IoError, Layer, Request, RequestKind,
    SubmitOutcome,
};

/// Disk over a range of another disk, which nothing else must use meanwhile. The size is fixed.
#[derive(Debug)]
pub struct Window {
    child: Arc<dyn Disk>,
    offset: u64,
    size: u64,
}

impl Window {
    /// Creates a disk of the `size` bytes at `offset` of `child`.
    ///
    /// # Errors
    /// [`DiskError::Window`] if the range is empty, not in whole blocks of `child`, or not inside
    /// of it.
    pub fn new(child: Arc<dyn Disk>, offset: u64, size: u64) -> Result<Self, DiskError> {
        let within = child.geometry();
        let block_size = u64::from(within.block_size);
        let problem = if within.check_inside(offset, size).is_err() {
            format!("is not inside of {} bytes", within.size)
        } else if !offset.is_multiple_of(block_size) || !size.is_multiple_of(block_size) {
            format!("is not in whole blocks of {block_size} bytes")
        } else {
            return Ok(Self { child, offset, size });
        };
        Err(DiskError::Window { offset, size, problem })
    }
}

impl Disk for Window {
    fn inner(&self) -> Option<Arc<dyn Disk>> {
        Some(Arc::clone(&self.child))
    }

    fn geometry(&self) -> Geometry {
        Geometry { size: self.size, ..self.child.geometry() }
    }

    fn open_channel(&self, context: &mut Context<'_>) -> Box<dyn Channel> {
        let child = self.child.open_channel(context);
        Box::new(WindowChannel { child, offset: self.offset, size: self.size })
    }

    fn open_layer(self: Arc<Self>, context: &mut Context<'_>) -> Layer {
        let Self { offset, size, .. } = *self;
        let child = Arc::clone(&self.child).open_layer(context);
        child.part((offset, size), |child| Box::new(WindowChannel { child, offset, size }))
    }

    fn wait_fence(&self) -> Result<(), DiskError> {
        self.child.wait_fence()
    }

    fn activate(&self) -> Result<(), DiskError> {
        self.child.activate()
    }

    fn deactivate(&self) -> Result<(), DiskError> {
        self.child.deactivate()
    }

    fn sync(&self) -> Result<(), DiskError> {
        self.child.sync()
    }

    fn resize(&self, _: Option<u64>) -> Result<Geometry, DiskError> {
        let Self { offset, size, .. } = self;
        let problem = format!(
            "the disk is a window of {size} bytes at {offset} of its image; detach it and attach \
             it with another size"
        );
        Err(DiskError::Resize { problem })
    }

    fn drains_to_resize(&self) -> bool {
        // The size is fixed.
        false
    }

    fn stalled(&self) -> u64 {
        self.child.stalled()
    }

    fn extents(&self, offset: u64, len: u64, limit: usize) -> Result<Vec<Extent>, IoError> {
        self.geometry().check_inside(offset, len)?;
        // The child contains the window, so the sum is one of its bytes.
        self.child.extents(self.offset.saturating_add(offset), len, limit)
    }

    fn zeroes_fast(&self, unmap: bool) -> bool {
        self.child.zeroes_fast(unmap)
    }
}

struct WindowChannel {
    child: Box<dyn Channel>,
    offset: u64,
    size: u64,
}

impl Channel for WindowChannel {
    fn submit(&mut self, context: &mut Context<'_>, mut request: Request) -> SubmitOutcome {
        if request.kind == RequestKind::Flush {
            return self.child.submit(context, request);
        }
        let Request { offset, len, .. } = request;
        match (offset.checked_add(len), self.offset.checked_add(offset)) {
            (Some(end), Some(translated)) if end <= self.size => request.offset = translated,
            _ => return SubmitOutcome::Done(request.complete(Err(IoError::Range))),
        }
        match self.child.submit(context, request) {
            // The caller submits it again, so it gets the request that it had.
            SubmitOutcome::Full(request) => SubmitOutcome::Full(Request { offset, ..request }),
            outcome @ (SubmitOutcome::Done(_) | SubmitOutcome::Pending) => outcome,
        }
    }

    fn reap(&mut self, context: &mut Context<'_>, out: &mut Vec<Completion>) {
        self.child.reap(context, out);
    }

    fn waiting(&self) -> usize {
        self.child.waiting()
    }

    fn fail_stalled(&mut self, context: &mut Context<'_>) {
        self.child.fail_stalled(context);
    }

    fn abandon(&mut self) {
        self.child.abandon();
    }
}

#[cfg(test)]
mod tests {
    use reactor::Reactor;

    use super::*;
    use crate::NullDisk;

    /// Channel without room, which records the requests it gets.
    struct Crowded(Vec<(RequestKind, u64)>);

    impl Channel for Crowded {
        fn submit(&mut self, _: &mut Context<'_>, request: Request) -> SubmitOutcome {
            self.0.push((request.kind, request.offset));
            assert_eq!(self.0.last(), self.0.first(), "the second try is the first one again");
            SubmitOutcome::Full(request)
        }

        fn reap(&mut self, _: &mut Context<'_>, _: &mut Vec<Completion>) {}

        fn waiting(&self) -> usize {
            0
        }

        fn fail_stalled(&mut self, _: &mut Context<'_>) {}

        fn abandon(&mut self) {}
    }

    #[test]
    fn a_request_comes_back_from_a_full_channel_as_it_was() {
        let reactor = Reactor::spawn("window").unwrap();
        let tries = |kind, offset| {
            let submit = move |context: &mut Context<'_>| {
                let child = Box::new(Crowded(Vec::new()));
                let mut channel = WindowChannel { child, offset: 1 << 20, size: 8192 };
                let buffers = Default::default();
                let mut request = Request { kind, offset, len: 4096, buffers, tag: 5 };
                for _ in 0..2 {
                    match channel.submit(context, request) {
                        SubmitOutcome::Full(same) => request = same,
                        SubmitOutcome::Done(completion) => return Err(completion.outcome),
                        SubmitOutcome::Pending => return Err(Ok(())),
                    }
                }
                Ok((request.offset, request.len, request.tag))
            };
            reactor.handle().call(submit).unwrap()
        };
        assert_eq!(tries(RequestKind::Read, 4096), Ok((4096, 4096, 5)));
        assert_eq!(tries(RequestKind::Flush, 0), Ok((0, 4096, 5)));
        // A request that the submitter did not check reaches no byte outside.
        for offset in [4608, 8192, u64::MAX - 4095, u64::MAX] {
            assert_eq!(tries(RequestKind::Discard, offset), Err(Err(IoError::Range)), "{offset}");
        }
    }

    #[test]
    fn a_window_is_inside_of_its_disk_and_keeps_its_size() {
        let child: Arc<dyn Disk> = Arc::new(NullDisk::new(1 << 20, 4096, true));
        let window = |offset, size| Window::new(Arc::clone(&child), offset, size);
        let bad = [
            (0, 0),
            (512, 4096),
            (0, 512),
            (1 << 20, 4096),
            (4096, 1 << 20),
            (u64::MAX - 4095, 4096),
            (4096, u64::MAX - 4095),
        ];
        for (offset, size) in bad {
            let error = window(offset, size).unwrap_err().to_string();
            assert!(error.contains(&format!("{size} bytes at {offset} is not in")), "{error}");
        }
        let whole = window(0, 1 << 20).unwrap();
        assert_eq!(whole.geometry(), child.geometry());
        let window = window(8192, 16384).unwrap();
        let geometry = window.geometry();
        assert_eq!((geometry.size, geometry.block_size, geometry.read_only), (16384, 4096, true));
        for size in [None, Some(16384), Some(1 << 20)] {
            let error = window.resize(size).unwrap_err().to_string();
            assert!(error.contains("a window of 16384 bytes at 8192"), "{error}");
        }
        assert!(window.reads_zeroes() && window.zeroes_fast(true));
        assert_eq!(window.extents(16384, 1, 1), Err(IoError::Range));
    }
}
