//! Disk in memory.

mod huge_pages;

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, PoisonError, RwLock};

use huge_pages::HugePages;
use memory::Mapping;
use reactor::{CompletionPort, Context, File, IoOp, OpCompletion};
use rustix::fs::ftruncate;

use crate::null::check_growth;
use crate::{
    Channel, Completion, Disk, DiskError, Extent, Geometry, IoError, Request, RequestKind,
    SubmitOutcome,
};

/// Fallocate mode that punches a hole and keeps the size.
pub(crate) const PUNCH_HOLE: i32 = 0x02 | 0x01;

/// Bytes of a page of the memfd.
const PAGE: u32 = 4096;

/// Disk in a memfd. Its contents last as long as any process has the memfd open.
#[derive(Debug)]
pub struct MemoryDisk {
    file: Arc<OwnedFd>,
    /// Contents, replaced when the disk grows. Channels fetch the new ones when they need them.
    contents: Arc<RwLock<Arc<Contents>>>,
    block_size: u32,
    read_only: bool,
}

/// Bytes of a memory disk at one size.
#[derive(Debug)]
struct Contents {
    file: Arc<OwnedFd>,
    mapping: Mapping,
    huge_pages: HugePages,
}

impl Contents {
    fn new(file: Arc<OwnedFd>, mapping: Mapping) -> Arc<Self> {
        let huge_pages = HugePages::new(mapping.len());
        Arc::new(Self { file, mapping, huge_pages })
    }
}

fn current(contents: &RwLock<Arc<Contents>>) -> Arc<Contents> {
    contents.read().unwrap_or_else(PoisonError::into_inner).clone()
}

impl MemoryDisk {
    /// Creates a zeroed disk of `size` bytes in blocks of `block_size` bytes.
    ///
    /// # Errors
    /// [`DiskError::Memory`] if the memory cannot be allocated.
    pub fn new(size: u64, block_size: u32, read_only: bool) -> Result<Self, DiskError> {
        let failed = |source| DiskError::Memory { size, source };
        let mapping = Mapping::memfd("ringway-disk", size).map_err(failed)?;
        let twin = mapping.fd().map(|fd| fd.try_clone_to_owned());
        let Some(Ok(file)) = twin else {
            let source = rustix::io::Errno::MFILE;
            return Err(failed(memory::MemoryError::Os { action: "share", source }));
        };
        let file = Arc::new(file);
        let contents = Arc::new(RwLock::new(Contents::new(Arc::clone(&file), mapping)));
        Ok(Self { file, contents, block_size, read_only })
    }

    /// Takes over the disk whose bytes are in `file` ([`Self::file`]). The disk is as large as the
    /// file.
    ///
    /// # Errors
    /// [`DiskError::Memory`] if the file cannot be mapped.
    pub fn adopt(file: OwnedFd, block_size: u32, read_only: bool) -> Result<Self, DiskError> {
        let failed = |size| move |source| DiskError::Memory { size, source };
        let found = rustix::fs::fstat(&file)
            .map_err(|source| failed(0)(memory::MemoryError::Os { action: "measure", source }))?;
        let size = u64::try_from(found.st_size).unwrap_or(0);
        let mapping = Mapping::file(file.as_fd(), size).map_err(failed(size))?;
        let file = Arc::new(file);
        let contents = Arc::new(RwLock::new(Contents::new(Arc::clone(&file), mapping)));
        Ok(Self { file, contents, block_size, read_only })
    }

    /// Returns the file with the disk's bytes. They exist as long as any process has it open.
    pub fn file(&self) -> &Arc<OwnedFd> {
        &self.file
    }

    fn geometry_of(&self, contents: &Contents) -> Geometry {
        Geometry {
            size: contents.mapping.len() as u64,
            block_size: self.block_size,
            read_only: self.read_only,
            discard: true,
            discard_granularity: PAGE.max(self.block_size),
        }
    }
}

impl Disk for MemoryDisk {
    fn inner(&self) -> Option<Arc<dyn Disk>> {
        None
    }

    fn geometry(&self) -> Geometry {
        self.geometry_of(&current(&self.contents))
    }

    fn open_channel(&self, context: &mut Context<'_>) -> Box<dyn Channel> {
        Box::new(MemoryChannel {
            file: File::new(self.file.clone()),
            contents: current(&self.contents),
            newest: self.contents.clone(),
            port: context.open_port(),
            op_completion: Vec::new(),
        })
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
        let Some(size) = size else { return Ok(self.geometry()) };
        let mut slot = self.contents.write().unwrap_or_else(PoisonError::into_inner);
        let now = self.geometry_of(&slot);
        check_growth(now, size)?;
        let refused = |problem: String| DiskError::Resize { problem };
        ftruncate(&*self.file, size).map_err(|error| refused(error.to_string()))?;
        let grown = Mapping::file(self.file.as_fd(), size);
        let grown = grown.map_err(|error| refused(error.to_string()))?;
        *slot = Contents::new(Arc::clone(&self.file), grown);
        Ok(Geometry { size, ..now })
    }

    fn stalled(&self) -> u64 {
        0
    }

    fn extents(&self, offset: u64, len: u64, _: usize) -> Result<Vec<Extent>, IoError> {
        Extent::stored(&self.geometry(), offset, len)
    }

    fn zeroes_fast(&self, _: bool) -> bool {
        true
    }
}

struct MemoryChannel {
    file: File,
    contents: Arc<Contents>,
    newest: Arc<RwLock<Arc<Contents>>>,
    port: CompletionPort,
    op_completion: Vec<OpCompletion>,
}

impl MemoryChannel {
    fn copy(&mut self, request: &Request) -> bool {
        let Ok(offset) = usize::try_from(request.offset) else { return false };
        let copy = |contents: &Arc<Contents>| match request.kind {
            RequestKind::Read => request.buffers.copy_from(&contents.mapping, offset),
            _ => {
                let done = request.buffers.stream_to(&contents.mapping, offset);
                if done {
                    contents.wrote(offset, request.buffers.len());
                }
                done
            }
        };
        if copy(&self.contents) {
            return true;
        }
        // Past the end of this channel's mapping: the disk may have grown.
        self.contents = current(&self.newest);
        copy(&self.contents)
    }
}

impl Channel for MemoryChannel {
    fn submit(&mut self, context: &mut Context<'_>, request: Request) -> SubmitOutcome {
        match request.kind {
            RequestKind::Read | RequestKind::Write { .. } => {
                let outcome = if self.copy(&request) { Ok(()) } else { Err(IoError::Range) };
                SubmitOutcome::Done(request.complete(outcome))
            }
            RequestKind::Flush => SubmitOutcome::Done(request.complete(Ok(()))),
            // Freeing pages takes time: a kernel worker does it.
            RequestKind::Discard | RequestKind::WriteZeroes { .. } => {
                let Request { offset, len, tag, .. } = request;
                self.contents.huge_pages.discarded(offset, len);
                let file = self.file.clone();
                let op = IoOp::Allocate { file, mode: PUNCH_HOLE, offset, len };
                context.submit(&self.port, op, tag.into());
                SubmitOutcome::Pending
            }
        }
    }

    fn reap(&mut self, context: &mut Context<'_>, out: &mut Vec<Completion>) {
        context.reap(&self.port, &mut self.op_completion);
        out.extend(self.op_completion.drain(..).map(|op_completion| {
            let outcome = op_completion.outcome().map(drop).map_err(IoError::Storage);
            Completion {
                tag: op_completion.tag as u32,
                outcome,
                buffers: op_completion.buffers.unwrap_or_default(),
            }
        }));
    }

    fn waiting(&self) -> usize {
        0
    }

    fn fail_stalled(&mut self, _: &mut Context<'_>) {}

    fn abandon(&mut self) {}
}
