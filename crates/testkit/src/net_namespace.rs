//! Other network namespaces than the one that a test is in, and cables to them. Needs root.
#![allow(clippy::unwrap_used, clippy::panic)] // A step that fails is a failed test.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

/// Another network namespace, whose only device speaks to itself: a process that is in it.
#[derive(Debug)]
pub struct NetNamespace(Child);

impl NetNamespace {
    /// A new one. It goes when it is dropped.
    ///
    /// # Panics
    /// Nobody may make one: root is needed.
    #[must_use]
    #[allow(clippy::new_without_default, reason = "it starts a process")]
    pub fn new() -> Self {
        let mut command = Command::new("unshare");
        command.args(["--net", "sh", "-c", "ip link set dev lo up && echo && exec cat"]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "\n", "no network namespace, for which root is needed");
        Self(child)
    }

    /// Words that run this line there.
    #[must_use]
    pub fn words(&self, line: &str) -> Vec<String> {
        let enter = format!("nsenter --target {} --net {line}", self.0.id());
        enter.split(' ').map(str::to_owned).collect()
    }

    /// Runs a line there; what it printed.
    ///
    /// # Panics
    /// It fails.
    pub fn sh(&self, line: &str) -> String {
        run(&self.words(line))
    }

    /// A cable from this namespace, `near`, to that one, `far`.
    ///
    /// # Panics
    /// Devices cannot be made.
    pub fn cable(&self, near: &str, far: &str) {
        let here = |line: &str| run(&line.split(' ').map(str::to_owned).collect::<Vec<_>>());
        let id = self.0.id();
        here(&format!("ip link add {near} type veth peer name {far} netns {id}"));
        here(&format!("ip link set dev {near} up"));
        self.sh(&format!("ip link set dev {far} up"));
    }
}

impl Drop for NetNamespace {
    fn drop(&mut self) {
        // It has ended already, at worst.
        let _gone = self.0.kill();
        let _waited = self.0.wait();
    }
}

fn run(words: &[String]) -> String {
    let (program, arguments) = words.split_first().unwrap();
    let output = Command::new(program).args(arguments).output().unwrap();
    assert!(output.status.success(), "{words:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}
