//! Library that is preloaded into User-Mode Linux, so that it runs on current hosts.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::{Error, Result};
use crate::process::find_tool;

const IDLE: &str = include_str!("../../../../guest/uml-idle.c");
const REGISTERS: &str = include_str!("../../../../guest/uml-registers.c");

/// Compiles the library in `dir`. Needs a C compiler.
pub(super) fn build(dir: &Path) -> Result<PathBuf> {
    let mut sources = vec![("idle.c", IDLE)];
    if has_more_registers() {
        sources.push(("registers.c", REGISTERS));
    }
    let library = dir.join("preloaded.so");
    let mut compile = Command::new(find_tool("cc", "gcc")?);
    compile.args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library);
    for (name, text) in sources {
        let source = dir.join(name);
        fs::write(&source, text)
            .map_err(|e| Error::io(format!("cannot write {}", source.display()), e))?;
        compile.arg(source);
    }
    run(compile)?;
    Ok(library)
}

fn run(mut compile: Command) -> Result<()> {
    let output = compile.output().map_err(|e| Error::io("cannot run cc", e))?;
    if output.status.success() {
        return Ok(());
    }
    Err(Error::Process {
        program: "cc".to_owned(),
        what: format!("ended with {}", output.status),
        stderr: String::from_utf8_lossy(&output.stderr).trim_end().to_owned(),
    })
}

/// Returns whether the CPU has AMX. Its state is then larger than User-Mode Linux 6.1 can restore.
fn has_more_registers() -> bool {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let mut flags = info.lines().filter(|line| line.starts_with("flags"));
    flags.next().is_some_and(|flags| flags.split_whitespace().any(|flag| flag == "amx_tile"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Program that sleeps like User-Mode Linux, and prints how often an alarm had to wake it.
    const SLEEPER: &str = r#"
        #define _GNU_SOURCE
        #include <errno.h>
        #include <signal.h>
        #include <stdio.h>
        #include <sys/epoll.h>
        #include <sys/time.h>

        static volatile sig_atomic_t alarms, heard, tried;
        static void on_alarm(int signal) { alarms++; }
        static void on_io(int signal, siginfo_t *info, void *context) { heard++; }
        static void on_try(int signal, siginfo_t *info, void *context) { tried++; }

        static void sleeps(const char *when, int ms)
        {
            int before = alarms;
            sigset_t alarm_only, none, mask;
            sigemptyset(&none);
            sigemptyset(&alarm_only);
            sigaddset(&alarm_only, SIGALRM);
            sigprocmask(SIG_BLOCK, &alarm_only, &mask);
            struct itimerval off = {0}, on = {.it_value = {ms / 1000, ms % 1000 * 1000}};
            setitimer(ITIMER_REAL, &on, NULL);
            int result = sigsuspend(&none);
            setitimer(ITIMER_REAL, &off, NULL);
            sigprocmask(SIG_SETMASK, &mask, NULL);
            printf("%s: %d %d %d\n", when, result, errno == EINTR, alarms - before);
        }

        int main(void)
        {
            struct epoll_event event;
            struct sigaction io = {.sa_sigaction = on_io, .sa_flags = SA_SIGINFO}, old, other;
            signal(SIGALRM, on_alarm);
            sigaction(SIGIO, &io, NULL);
            sigaction(SIGIO, NULL, &old);
            other = old;
            other.sa_sigaction = on_try;
            sigaction(SIGIO, &other, NULL);
            raise(SIGIO);
            sigaction(SIGIO, &old, NULL);
            int epoll = epoll_create1(0);
            epoll_wait(epoll, &event, 1, 0);
            sleeps("nothing came", 10);
            raise(SIGIO);
            sleeps("it came before", 3000);
            sleeps("it was told once", 10);
            raise(SIGIO);
            epoll_wait(epoll, &event, 1, 0);
            sleeps("it was asked for", 10);
            printf("heard %d of the other %d\n", heard, tried);
            return 0;
        }
    "#;

    /// Without the library the same program shows that the library is necessary.
    #[test]
    fn a_signal_that_comes_before_the_sleep_ends_it() {
        let dir = tempfile::tempdir().unwrap();
        let library = build(dir.path()).unwrap();
        let (source, program) = (dir.path().join("sleeper.c"), dir.path().join("sleeper"));
        fs::write(&source, SLEEPER).unwrap();
        let mut compile = Command::new(find_tool("cc", "gcc").unwrap());
        compile.arg("-o").args([&program, &source]);
        run(compile).unwrap();
        let says = |command: &mut Command| {
            let output = command.output().unwrap();
            assert!(output.status.success(), "{output:?}");
            String::from_utf8(output.stdout).unwrap()
        };
        let expected = |alarms| {
            format!(
                "nothing came: -1 1 1\nit came before: -1 1 {alarms}\nit was told once: -1 1 1\n\
                 it was asked for: -1 1 1\nheard 2 of the other 1\n"
            )
        };
        assert_eq!(says(&mut Command::new(&program)), expected(1));
        assert_eq!(says(Command::new(&program).env("LD_PRELOAD", &library)), expected(0));
    }
}
