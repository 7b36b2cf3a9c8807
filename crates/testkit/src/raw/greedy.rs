//! A front-end that shares as much memory as the backend accepts.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

use super::{Frontend, Region, Setup};
use crate::error::{Error, Result};

/// A connected front-end and the number of regions that it has shared. It starts no queue.
#[derive(Debug)]
pub struct GreedyFrontend {
    /// Connection to the backend.
    pub frontend: Frontend,
    /// Number of regions that the backend accepted.
    pub regions: u64,
}

impl GreedyFrontend {
    /// Connects, and shares regions of `bytes` of one sparse file until the backend refuses one, or
    /// until there are `most`.
    ///
    /// # Errors
    /// The error of the first step before the regions that fails.
    pub fn connect(socket: &Path, bytes: u64, most: u64) -> Result<Self> {
        let file = sparse(bytes.saturating_mul(most))?;
        let mut frontend = Frontend::connect(socket)?;
        frontend.negotiate(Setup::default().features, Setup::default().protocol)?;
        let accepted = |number: &u64| {
            let start = number * bytes;
            let region =
                Region { guest_addr: start, size: bytes, user_addr: start, mmap_offset: start };
            frontend.add_mem_region(&region, file.as_fd()).is_ok()
        };
        let regions = (0..most).take_while(accepted).count() as u64;
        Ok(Self { frontend, regions })
    }
}

fn sparse(bytes: u64) -> Result<OwnedFd> {
    let file = memfd_create("sparse", MemfdFlags::CLOEXEC);
    let file = file.map_err(|e| Error::io("cannot create memory", e))?;
    ftruncate(&file, bytes).map_err(|e| Error::io("cannot size memory", e))?;
    Ok(file)
}
