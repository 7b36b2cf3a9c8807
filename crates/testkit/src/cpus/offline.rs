//! CPUs that are taken offline.

use std::path::PathBuf;

use crate::error::Result;
use crate::storage::Guard;

/// Script that takes the CPU (`$1`) offline, waits, and brings it back.
const GUARD: &str = r#"
trap '' INT TERM
echo 0 >"$1" || exit 1
echo taken
read -r _ || true
echo 1 >"$1"
"#;

/// A CPU that is offline for the whole machine until this is dropped, however the test ends.
#[derive(Debug)]
pub struct Offline {
    _guard: Guard,
}

impl Offline {
    /// Takes CPU `number` offline.
    ///
    /// # Errors
    /// The CPU cannot be taken offline here. CPU 0 seldom can.
    pub fn take(number: usize) -> Result<Self> {
        let file = PathBuf::from(format!("/sys/devices/system/cpu/cpu{number}/online"));
        let (guard, _) = Guard::start(GUARD, &[&file], "cannot take a CPU offline")?;
        Ok(Self { _guard: guard })
    }
}
