//! Network namespaces besides the test's own, and cables to them. Needs root.
#![allow(clippy::unwrap_used, clippy::panic)] // A step that fails is a failed test.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

/// A network namespace with a loopback device, held by a process in it.
#[derive(Debug)]
pub struct NetNamespace(Child);

impl NetNamespace {
    /// Creates a network namespace, which is removed on drop.
    ///
    /// # Panics
    /// The process may not create one: it needs root.
    #[must_use]
    #[allow(clippy::new_without_default, reason = "it starts a process")]
    pub fn new() -> Self {
        let mut command = Command::new("unshare");
        command.args(["--net", "sh", "-c", "ip link set dev lo up && echo && exec cat"]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "\n", "cannot create a network namespace, which needs root");
        Self(child)
    }

    /// Returns the command that runs this line in the namespace.
    #[must_use]
    pub fn words(&self, line: &str) -> Vec<String> {
        let enter = format!("nsenter --target {} --net {line}", self.0.id());
        enter.split(' ').map(str::to_owned).collect()
    }

    /// Runs a line in the namespace and returns its standard output.
    ///
    /// # Panics
    /// The command fails.
    pub fn sh(&self, line: &str) -> String {
        run(&self.words(line))
    }

    /// Creates a cable (a veth pair) from the test's namespace, `near`, to this one, `far`.
    ///
    /// # Panics
    /// The devices cannot be created.
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
        // Fails only if the process has already ended.
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
