//! One channel's access to the layers below an image. Once it knows in which file a granule lies,
//! its requests go there and walk through no layer.

use std::sync::Arc;

use ::disk::{Child, Completion, Disk, IoError, Layer, Location, Locator, Request, SubmitOutcome};
use image::map::{Base, LOWER_FILES, Layout, Place, Word};
use reactor::Context;
use rustix::io::Errno;

/// Layers below an image.
pub(crate) struct Below {
    /// The layer below, which knows all of its data.
    layer: Child,
    locator: Option<Box<dyn Locator>>,
    /// Files of all layers below. A channel is opened for its first request.
    files: Vec<(Arc<dyn Disk>, Option<Child>)>,
    /// Mask of the files that may have requests.
    used: u128,
    /// Size of the layer below in bytes.
    pub(crate) size: u64,
}

impl Below {
    /// Creates the access to a layer of `size` bytes.
    pub(crate) fn new(layer: Layer, size: u64) -> Self {
        let Layer { channel, locator, files } = layer;
        let files = files.into_iter().take(LOWER_FILES).map(|file| (file, None)).collect();
        Self { layer: Child::new(channel), locator, files, used: 0, size }
    }

    /// Returns the word of a granule that only the layers below have. `None` if one word cannot say
    /// it, or if it is not known without I/O.
    pub(crate) fn word(&mut self, layout: &Layout, granule: u64) -> Option<Word> {
        let (start, bytes) = (granule << layout.granule_bits, 1 << layout.granule_bits);
        let end = (start + bytes).min(self.size);
        let (mut at, mut mask) = (start, 0);
        let mut place: Option<(usize, u64)> = None;
        // Whether other places have a part of it, too. What the layer below is too short for is zero.
        let mut has_others = false;
        while at < end {
            let found = self.locate(at, end - at)?;
            let (skip, len) = (at - start, found.len.clamp(1, end - at));
            at += len;
            let Some(file) = found.file else { continue };
            let first = (file, found.offset.checked_sub(skip)?);
            let is_here = *place.get_or_insert(first) == first;
            match whole_blocks(layout, skip, len).filter(|_| is_here) {
                Some(blocks) => mask |= blocks,
                None => has_others = true,
            }
        }
        let Some((file, first)) = place else { return Some(Word::lower_zero()) };
        let is_place = mask != 0 && first.is_multiple_of(1 << layout.unit_bits);
        let place = Place::new(first >> layout.unit_bits).filter(|_| is_place)?;
        Word::lower(file, place, mask, if has_others { Base::Below } else { Base::Zero })
    }

    /// Returns where the first bytes of a range are. `None` if that is not known without I/O.
    pub(crate) fn locate(&mut self, offset: u64, len: u64) -> Option<Location> {
        let len = len.min(self.size.checked_sub(offset)?);
        let found = self.locator.as_mut()?.locate(offset, len)?;
        found.file.is_none_or(|file| file < self.files.len()).then_some(found)
    }

    /// Submits a request to a file, or to the layer below.
    pub(crate) fn submit(
        &mut self,
        context: &mut Context<'_>,
        file: Option<usize>,
        request: Request,
    ) -> SubmitOutcome {
        let Some(file) = file else { return self.layer.submit(context, request) };
        let Some((disk, child)) = self.files.get_mut(file) else {
            return SubmitOutcome::Done(request.complete(Err(IoError::Storage(Errno::IO))));
        };
        self.used |= 1 << file;
        let child = match child {
            Some(child) => child,
            None => child.insert(Child::open(disk, context)),
        };
        child.submit(context, request)
    }

    /// Moves completed requests into `out`.
    pub(crate) fn reap(&mut self, context: &mut Context<'_>, out: &mut Vec<Completion>) {
        self.layer.reap(context, out);
        let mut used = std::mem::take(&mut self.used);
        while used != 0 {
            let file = used.trailing_zeros();
            used &= used - 1;
            let child = self.files.get_mut(file as usize).and_then(|(_, child)| child.as_mut());
            if child.is_some_and(|child| child.reap(context, out)) {
                self.used |= 1 << file;
            }
        }
    }

    /// Returns the number of requests that wait in the layer below.
    pub(crate) fn waiting(&self) -> usize {
        self.layer.waiting()
    }

    /// Fails requests of the layer below that wait, because the queue drains: the source of a golden
    /// image may be gone. Files below never wait for space.
    pub(crate) fn fail_stalled(&mut self, context: &mut Context<'_>) {
        self.layer.fail_stalled(context);
    }

    /// Abandons all channels.
    pub(crate) fn abandon(&mut self) {
        self.layer.abandon();
        self.files.iter_mut().filter_map(|(_, child)| child.as_mut()).for_each(Child::abandon);
    }
}

/// Returns the mask of a range of a granule. `None` if it does not consist of whole blocks.
fn whole_blocks(layout: &Layout, skip: u64, len: u64) -> Option<u16> {
    let block = 1 << layout.block_bits;
    let is_whole = skip.is_multiple_of(block) && len.is_multiple_of(block);
    is_whole.then(|| layout.blocks_of(skip, len))
}
