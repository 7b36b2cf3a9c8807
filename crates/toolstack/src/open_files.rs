//! How many files a process may have open.
//!
//! A machine with 255 disks costs its QEMU some thousand descriptors, and whoever talks to many
//! machines some more. What a process gets at first is made for programs that count descriptors in
//! sets of 1,024 (select(2)); none of ours does.

use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Takes as many as this process may have, for itself and what it starts.
///
/// # Errors
/// The system refuses.
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
