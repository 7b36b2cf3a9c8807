//! Text that describes how a process ended.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use rustix::process::Signal;

/// Describes how a process ended.
pub(super) fn words(status: Option<ExitStatus>) -> String {
    let Some(status) = status else { return "ended with an unknown status".into() };
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("ended with code {code}"),
        (None, Some(signal)) => {
            let core = if status.core_dumped() { ", core dumped" } else { "" };
            format!("was killed by {}{core}", signal_name(signal))
        }
        (None, None) => "ended".into(),
    }
}

fn signal_name(number: i32) -> String {
    let name = match Signal::from_named_raw(number) {
        Some(Signal::KILL) => "SIGKILL",
        Some(Signal::SEGV) => "SIGSEGV",
        Some(Signal::BUS) => "SIGBUS",
        Some(Signal::ABORT) => "SIGABRT",
        Some(Signal::ILL) => "SIGILL",
        Some(Signal::TERM) => "SIGTERM",
        Some(Signal::FPE) => "SIGFPE",
        Some(Signal::SYS) => "SIGSYS",
        Some(Signal::XFSZ) => "SIGXFSZ",
        _ => return format!("signal {number}"),
    };
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_told_in_words() {
        let text = |raw| words(Some(ExitStatus::from_raw(raw)));
        assert_eq!(text(9), "was killed by SIGKILL");
        assert_eq!(text(0x80 | 11), "was killed by SIGSEGV, core dumped");
        assert_eq!(text(1 << 8), "ended with code 1");
        assert_eq!(text(64), "was killed by signal 64");
    }
}
