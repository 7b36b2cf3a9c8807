//! Abort of the process when a reactor's thread panics.
//!
//! A reactor runs the queues of many disks. When its thread unwinds, their positions and their
//! requests in flight are lost, while the kernel still writes to the guests' memory. The process
//! cannot repair that. Other reactors do not know the rings, a stop would return an outdated index,
//! and new queues would be placed on a dead reactor. A process that has ended can be restarted: the
//! new process reads the requests in flight from the in-flight regions. So the process aborts from
//! the panic hook, before the first destructor runs and reports a result to a waiting caller.

use std::backtrace::Backtrace;
use std::cell::Cell;
use std::io::Write;
use std::panic::PanicHookInfo;
use std::sync::Once;
use std::time::Duration;

/// Longest wait until the reason for the end is written to standard error.
const LAST_WORDS_DEADLINE: Duration = Duration::from_secs(1);

thread_local! {
    static ENDS_PROCESS: Cell<bool> = const { Cell::new(false) };
}

/// Makes a panic of the calling thread end the process from now on.
pub(crate) fn end_process_on_panic() {
    ENDS_PROCESS.set(true);
}

/// Installs this hook before the existing one; once in a process.
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
        "{name}: {info}\n{backtrace}\nthe process ends: its queues are lost; after a restart, it \
         resumes the requests that front-ends recorded\n"
    );
    // Not by the macro: a test harness would capture the text and lose it with the process. A thread
    // writes, because the reader of standard error may have paused.
    let (done, written) = std::sync::mpsc::channel();
    let write = move || done.send(std::io::stderr().write_all(text.as_bytes()));
    if std::thread::Builder::new().spawn(write).is_ok() {
        let _ = written.recv_timeout(LAST_WORDS_DEADLINE);
    }
    std::process::abort();
}
