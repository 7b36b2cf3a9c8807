//! A CPU that is taken away.

use std::path::PathBuf;

use crate::error::Result;
use crate::storage::Guard;

/// Takes it (`$1`), waits, gives it back.
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
    /// Takes CPU `number`. `None`, with the reason on standard error: it cannot be taken here, which
    /// was tried. The first one seldom can.
    pub fn take(number: usize) -> Option<Self> {
        let file = PathBuf::from(format!("/sys/devices/system/cpu/cpu{number}/online"));
        let taken: Result<_> = Guard::start(GUARD, &[&file], "cannot take a CPU offline");
        match taken {
            Ok((guard, _)) => Some(Self { _guard: guard }),
            Err(error) => {
                eprintln!("left out, nothing here shows what it should: {error}");
                None
            }
        }
    }
}
