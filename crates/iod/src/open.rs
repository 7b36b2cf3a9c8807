//! From a spec to an opened disk.

use std::sync::Arc;

use disk::{Disk, DiskError, FileDisk, FileOptions, MemoryDisk, NullDisk, OnFull};
use model::spec::{Backend, CacheMode, DiskSpec};

/// Block size of disks without a file, unless another is asked for: every driver takes it.
const DEFAULT_BLOCK_BYTES: u32 = 512;

/// Opens what a spec names. Takes no lock and changes nothing.
///
/// # Errors
/// [`DiskError`]: it names the image, the cause and what to do.
pub fn open(spec: &DiskSpec) -> Result<Arc<dyn Disk>, DiskError> {
    let block_size = spec.block_size.unwrap_or(DEFAULT_BLOCK_BYTES);
    Ok(match &spec.backend {
        Backend::File(path) => Arc::new(FileDisk::open(FileOptions {
            path: path.clone(),
            read_only: spec.read_only,
            direct: spec.cache == CacheMode::None,
            block_size: spec.block_size,
            on_full: match spec.on_full {
                model::spec::OnFull::Wait => OnFull::Wait,
                model::spec::OnFull::Error => OnFull::Error,
            },
        })?),
        Backend::Null(size) => Arc::new(NullDisk::new(*size, block_size, spec.read_only)),
        Backend::Memory(size) => Arc::new(MemoryDisk::new(*size, block_size, spec.read_only)?),
    })
}

/// A disk's geometry as it is reported.
pub fn reported(geometry: disk::Geometry) -> model::report::Geometry {
    model::report::Geometry {
        size_bytes: geometry.size,
        block_size: geometry.block_size,
        read_only: geometry.read_only,
    }
}
