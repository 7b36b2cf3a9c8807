//! Commands of `xe` against `ringwayd` with a simulated host.
#![allow(clippy::unwrap_used, clippy::panic)] // A failed helper is a failed test.

mod disks;
mod host;
mod machines;
mod networks;
mod refused;

use testkit::ringwayd::Ringwayd;

/// A simulated host and `xe`.
struct Typed {
    daemon: Ringwayd,
}

impl Typed {
    fn new() -> Self {
        Self { daemon: Ringwayd::simulator(&[]).unwrap() }
    }

    /// Runs a command that must succeed. Returns its output.
    fn prints(&self, words: &[&str]) -> String {
        self.daemon.xe_prints(words).unwrap()
    }

    /// Runs a command that must succeed without output.
    fn does(&self, words: &[&str]) {
        assert_eq!(self.prints(words), "", "{words:?}");
    }

    /// Runs a command that must fail. Returns its error text.
    fn fails(&self, words: &[&str]) -> String {
        let output = self.daemon.xe_output(words).unwrap();
        assert_eq!(output.status.code(), Some(1), "{words:?}: {output:?}");
        assert_eq!(output.stdout, b"", "{words:?}");
        String::from_utf8(output.stderr).unwrap()
    }

    /// Returns a field of the object with this UUID.
    fn get(&self, class: &str, uuid: &str, field: &str) -> String {
        let [uuid, field] = [format!("uuid={uuid}"), format!("param-name={field}")];
        self.prints(&[&format!("{class}-param-get"), &uuid, &field])
    }

    /// Returns the sorted UUIDs of a list, or another field with `params=`.
    fn list(&self, class: &str, words: &[&str]) -> Vec<String> {
        let list = format!("{class}-list");
        let words = [&[&*list, "--minimal"], words].concat();
        let found = self.prints(&words);
        let found = found.split(',').filter(|one| !one.is_empty());
        let mut found: Vec<_> = found.map(str::to_owned).collect();
        found.sort();
        found
    }

    /// Returns the only entry of a list.
    fn only(&self, class: &str, words: &[&str]) -> String {
        let [one] = &self.list(class, words)[..] else { panic!("{class} {words:?}") };
        one.clone()
    }

    /// Creates a VM with a disk. Returns its UUID.
    fn machine(&self, name: &str) -> String {
        let name = format!("new-name-label={name}");
        self.prints(&["vm-install", "template=Other install media", &name])
    }
}

/// Formats a parameter.
fn to(name: &str, value: &str) -> String {
    format!("{name}={value}")
}
