//! Domains on a real QEMU: plugs, discovery and ends.
//!
//! The driver starts its processes through a helper mode of its own program. So this program has
//! that mode, and its own test runner.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a test reports what it saw")]
#![allow(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

mod domains;

use std::process::ExitCode;

/// Test with its name.
type Test = (&'static str, fn(&tokio::runtime::Runtime));

fn main() -> ExitCode {
    let mut words = std::env::args_os().skip(1).peekable();
    if words.peek().is_some_and(|word| word == toolstack::detached_process::MODE) {
        let error = toolstack::detached_process::become_spawned(words.skip(1));
        eprintln!("{error}");
        return ExitCode::FAILURE;
    }
    let wanted: Vec<_> = words.filter_map(|word| word.into_string().ok()).collect();
    let wanted: Vec<_> = wanted.iter().filter(|word| !word.starts_with('-')).collect();
    let chosen = |name: &str| wanted.is_empty() || wanted.iter().any(|one| name.contains(*one));
    let mut passed = 0;
    for (name, test) in domains::TESTS {
        if chosen(name) {
            // A panic ends the process with its message, and the kernel ends every guest with it.
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            test(&runtime.unwrap());
            eprintln!("test {name} ... ok");
            passed += 1;
        }
    }
    eprintln!("test result: ok. {passed} passed; 0 failed; 0 ignored");
    ExitCode::SUCCESS
}
