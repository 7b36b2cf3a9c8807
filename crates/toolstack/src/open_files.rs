//! Limit of open files of a process.
//!
//! The QEMU of a machine with 255 disks needs some thousand descriptors, and a client of many
//! machines needs more. The initial limit suits programs that use sets of 1,024 descriptors
//! (select(2)). No program of Ringway does.

use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the soft limit to the hard limit, for this process and those it starts.
///
/// # Errors
/// The kernel refuses.
pub fn raise_open_files() -> io::Result<()> {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    Ok(setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_may_be_had_are_taken() {
        let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
        let few = Rlimit { current: maximum.map(|most| most.min(1024)), maximum };
        setrlimit(Resource::Nofile, few).unwrap();
        raise_open_files().unwrap();
        assert_eq!(getrlimit(Resource::Nofile).current, maximum);
    }
}
