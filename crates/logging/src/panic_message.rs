//! Message of a panic, by way of the queue.

use std::backtrace::Backtrace;

/// Replaces the standard hook, which writes to standard error and waits for its reader.
pub(crate) fn install() {
    std::panic::set_hook(Box::new(|info| {
        let thread = std::thread::current();
        let name = thread.name().unwrap_or("a thread");
        let backtrace = Backtrace::capture();
        crate::write_line(&format!("{name}: {info}\n{backtrace}"));
        // The process may abort next.
        crate::flush();
    }));
}
