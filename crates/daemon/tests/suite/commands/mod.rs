//! Commands of `xe`, typed, against the program `ringwayd` on a simulated host.
#![allow(clippy::unwrap_used, clippy::panic)] // A failed helper is a failed test.

mod disks;
mod host;
mod machines;
mod networks;
mod refused;

use testkit::ringwayd::Ringwayd;

/// A host, and who types.
struct Typed {
    daemon: Ringwayd,
}

impl Typed {
    fn new() -> Self {
        Self { daemon: Ringwayd::simulator(&[]).unwrap() }
    }

    /// What a command prints that succeeds.
    fn prints(&self, words: &[&str]) -> String {
        self.daemon.xe_prints(words).unwrap()
    }

    /// A command succeeds and has nothing to say.
    fn does(&self, words: &[&str]) {
        assert_eq!(self.prints(words), "", "{words:?}");
    }

    /// What a command says that fails.
    fn fails(&self, words: &[&str]) -> String {
        let output = self.daemon.xe_output(words).unwrap();
        assert_eq!(output.status.code(), Some(1), "{words:?}: {output:?}");
        assert_eq!(output.stdout, b"", "{words:?}");
        String::from_utf8(output.stderr).unwrap()
    }

    /// A field of what has this UUID.
    fn get(&self, class: &str, uuid: &str, field: &str) -> String {
        let [uuid, field] = [format!("uuid={uuid}"), format!("param-name={field}")];
        self.prints(&[&format!("{class}-param-get"), &uuid, &field])
    }

    /// UUIDs of what a list shows with these words, or another field by `params=`; sorted.
    fn list(&self, class: &str, words: &[&str]) -> Vec<String> {
        let list = format!("{class}-list");
        let words = [&[&*list, "--minimal"], words].concat();
        let found = self.prints(&words);
        let found = found.split(',').filter(|one| !one.is_empty());
        let mut found: Vec<_> = found.map(str::to_owned).collect();
        found.sort();
        found
    }

    /// The only one that a list shows.
    fn only(&self, class: &str, words: &[&str]) -> String {
        let [one] = &self.list(class, words)[..] else { panic!("{class} {words:?}") };
        one.clone()
    }

    /// A machine with a disk: its UUID.
    fn machine(&self, name: &str) -> String {
        let name = format!("new-name-label={name}");
        self.prints(&["vm-install", "template=Other install media", &name])
    }
}

/// A parameter.
fn to(name: &str, value: &str) -> String {
    format!("{name}={value}")
}
