//! What a panic on a reactor's thread means.
//!
//! The queues of many disks live on a reactor. When it unwinds, their positions and what they had
//! in flight are lost, and the kernel still writes to the guests' memory. Nothing in this process
//! can make that good: other reactors do not know the rings, a stop would answer an old index, and
//! new queues would be placed where nobody serves them. A process that has ended can be restarted,
//! and its successor reads in the in-flight regions what was under way. So the process ends, from
//! the panic hook: that is before the first destructor runs and tells a waiting caller anything.

use std::backtrace::Backtrace;
use std::cell::Cell;
use std::io::Write;
use std::panic::PanicHookInfo;
use std::sync::Once;

thread_local! {
    static ENDS_PROCESS: Cell<bool> = const { Cell::new(false) };
}

/// From now on a panic of this thread ends the process.
pub(crate) fn end_process_on_panic() {
    ENDS_PROCESS.set(true);
}

/// Puts our hook before the one that is there; once in a process.
pub(crate) fn install() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let former = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if ENDS_PROCESS.get() {
                end(info);
            }
            former(info);
        }));
    });
}

fn end(info: &PanicHookInfo<'_>) -> ! {
    let thread = std::thread::current();
    let name = thread.name().unwrap_or("reactor");
    let backtrace = Backtrace::capture();
    let text = format!(
        "{name}: {info}\n{backtrace}\nthe process ends: its queues are lost; \
         started again, it goes on with what the front-ends have recorded\n"
    );
    // Not by the macro: a test's harness would keep the text and lose it with the process.
    let _ = std::io::stderr().write_all(text.as_bytes());
    std::process::abort();
}
