//! Starts one guest of each kind, prints them, and holds them until its standard input ends.
//! `guest_orphan` kills this process.
#![forbid(unsafe_code)]

use std::io::Write as _;
use std::time::Duration;

use testkit::guest::{Guest, Kind, Machine};

/// Longer than any boot.
const DEADLINE: Duration = Duration::from_secs(180);

fn main() -> testkit::Result<()> {
    // The starting thread ends before the guests: their parent is the process, not the thread.
    for kind in [Kind::Uml, Kind::Qemu] {
        let start = move || Guest::start(kind, &Machine::default(), "echo up; sleep 1000");
        let mut guest = match std::thread::spawn(start).join() {
            Ok(started) => started?,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        guest.wait_for("up\n", DEADLINE)?;
        let printed = writeln!(std::io::stdout(), "{} {}", guest.id(), guest.dir().display());
        printed.map_err(|source| testkit::Error::Io { what: "print".into(), source })?;
        std::mem::forget(guest);
    }
    std::io::stdin().lines().count();
    Ok(())
}
