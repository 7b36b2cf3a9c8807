//! Backends under test, each behind the same function type.

use std::path::Path;

use testkit::process::{Backend, StorageDaemon, Target};

/// Parameters of the disk that a test wants.
pub(crate) struct Served<'a> {
    pub(crate) image: &'a Path,
    pub(crate) queues: u16,
    pub(crate) read_only: bool,
}

pub(crate) type Start = fn(&Served<'_>) -> Backend;

pub(crate) fn storage_daemon(served: &Served<'_>) -> Backend {
    let mut options = StorageDaemon::new(Target::File(served.image.into()));
    options.queues = served.queues;
    options.read_only = served.read_only;
    options.direct = false;
    Backend::storage_daemon(&options).unwrap()
}

pub(crate) fn ringway_blk(served: &Served<'_>) -> Backend {
    let queues = served.queues.to_string();
    let mut options = vec!["--blk-file", served.image.to_str().unwrap(), "--num-queues", &queues];
    // Like the peer above: buffered, sectors of 512 bytes.
    options.extend(["--cache", "writeback", "--block-size", "512"]);
    if served.read_only {
        options.push("--read-only");
    }
    Backend::ringway_blk(&options).unwrap()
}

/// Creates a file of `bytes` in which every sector starts with its own number.
pub(crate) fn numbered_image(bytes: u64) -> tempfile::NamedTempFile {
    use std::io::Write;
    let mut image = tempfile::NamedTempFile::new().unwrap();
    for sector in 0..bytes / 512 {
        let mut block = [0x55; 512];
        block[..8].copy_from_slice(&sector.to_le_bytes());
        image.write_all(&block).unwrap();
    }
    image.flush().unwrap();
    image
}

/// Returns the number in a sector of [`numbered_image`].
pub(crate) fn number(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes[..8].try_into().unwrap())
}
