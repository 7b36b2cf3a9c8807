//! Specification of a network, and its record.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::io::retry_on_intr;
use serde::{Deserialize, Serialize};

use super::{InternalError, Name, Subnet};

/// File of a network's record.
const RECORD: &str = "network.json";
/// Lock file for changes of networks.
const LOCK: &str = "lock";

/// Longest path of the records' directory. dnsmasq reads lines of 1024 bytes, and treats the rest
/// of a longer one as the next line.
pub(super) const DIRECTORY_BYTES_MAX: usize = 900;

/// Specification of an internal network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    /// Name of the network.
    pub name: Name,
    /// Subnet of the network.
    pub subnet: Subnet,
    /// True if guests reach other networks through NAT with the host's address.
    pub nat: bool,
    /// True if guests get addresses and names.
    pub dhcp: bool,
}

/// Directory with one subdirectory for each network. A record is written before anything is
/// created, and removed after everything is gone.
#[derive(Clone, Debug)]
pub(super) struct NetworkStore {
    root: PathBuf,
}

impl NetworkStore {
    /// Opens the directory at this path, whether it exists or not.
    pub(super) fn at(root: &Path) -> Result<Self, InternalError> {
        // Processes are found by absolute paths in it.
        let root = std::path::absolute(root).map_err(|source| InternalError::State {
            doing: "find",
            path: root.to_owned(),
            source,
        })?;
        if is_plain(&root) { Ok(Self { root }) } else { Err(InternalError::Directory(root)) }
    }

    /// Returns the directory of a network.
    pub(super) fn of(&self, name: &Name) -> PathBuf {
        self.root.join(name.to_string())
    }

    /// Locks the networks against changes by others, until the file is dropped.
    pub(super) async fn turn(&self) -> Result<File, InternalError> {
        let (root, lock) = (self.root.clone(), self.root.join(LOCK));
        let taken = tokio::task::spawn_blocking(move || -> io::Result<File> {
            fs::create_dir_all(root)?;
            let file = File::options().create(true).append(true).open(lock)?;
            retry_on_intr(|| flock(&file, FlockOperation::LockExclusive))?;
            Ok(file)
        });
        let taken = taken.await.unwrap_or_else(|error| Err(io::Error::other(error)));
        taken.map_err(|source| self.error("lock", &self.root, source))
    }

    /// Returns the record of a network.
    pub(super) fn read(&self, name: &Name) -> Result<Option<Spec>, InternalError> {
        let path = self.of(name).join(RECORD);
        let read = match fs::read(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            read => read.map_err(|source| self.error("read", &path, source))?,
        };
        let spec: Spec = serde_json::from_slice(&read)
            .map_err(|error| self.error("understand", &path, error.into()))?;
        if spec.name != *name {
            let why = io::Error::other(format!("it is of network {}", spec.name));
            return Err(self.error("understand", &path, why));
        }
        Ok(Some(spec))
    }

    /// Returns all records, by name.
    pub(super) fn all(&self) -> Result<Vec<Spec>, InternalError> {
        let entries = match fs::read_dir(&self.root) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(|source| self.error("list", &self.root, source))?,
        };
        let mut all = Vec::new();
        for entry in entries {
            let entry = entry.map_err(|source| self.error("list", &self.root, source))?;
            let name = entry.file_name();
            // Skip the lock and foreign files.
            let Some(Ok(name)) = name.to_str().map(str::parse::<Name>) else { continue };
            if entry.path().is_dir() {
                all.extend(self.read(&name)?);
            }
        }
        all.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(all)
    }

    /// Records the specification of a network atomically.
    pub(super) fn write(&self, spec: &Spec) -> Result<(), InternalError> {
        let dir = self.of(&spec.name);
        let write = || -> io::Result<()> {
            fs::create_dir_all(&dir)?;
            let new = dir.join("network.new");
            let mut file = File::create(&new)?;
            serde_json::to_writer_pretty(&mut file, spec)?;
            file.write_all(b"\n")?;
            file.sync_all()?;
            fs::rename(new, dir.join(RECORD))?;
            File::open(&dir)?.sync_all()
        };
        write().map_err(|source| self.error("write to", &dir, source))
    }

    /// Removes a network's record first, then its other files.
    pub(super) fn remove(&self, name: &Name) -> Result<(), InternalError> {
        let dir = self.of(name);
        let remove = || -> io::Result<()> {
            for gone in [fs::remove_file(dir.join(RECORD)), fs::remove_dir_all(&dir)] {
                match gone {
                    Err(error) if error.kind() == ErrorKind::NotFound => {}
                    outcome => outcome?,
                }
            }
            Ok(())
        };
        remove().map_err(|source| self.error("remove", &dir, source))
    }

    fn error(&self, doing: &'static str, path: &Path, source: io::Error) -> InternalError {
        InternalError::State { doing, path: path.to_owned(), source }
    }
}

/// Returns whether dnsmasq reads this path in its configuration literally.
fn is_plain(path: &Path) -> bool {
    let plain = |c: char| !c.is_control() && !matches!(c, '"' | '#');
    let text = path.to_str().filter(|text| text.len() <= DIRECTORY_BYTES_MAX);
    text.is_some_and(|text| text.chars().all(plain))
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::os::unix::ffi::OsStringExt as _;

    use super::*;

    fn spec(name: &str) -> Spec {
        let (name, subnet) = (name.parse().unwrap(), "10.5.0.0/24".parse().unwrap());
        Spec { name, subnet, nat: true, dhcp: false }
    }

    #[tokio::test]
    async fn what_is_recorded_is_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let state = NetworkStore::at(&dir.path().join("networks")).unwrap();
        assert_eq!(state.all().unwrap(), []);
        let turn = state.turn().await.unwrap();
        for name in ["b", "a"] {
            assert_eq!(state.read(&spec(name).name).unwrap(), None);
            state.write(&spec(name)).unwrap();
            state.write(&spec(name)).unwrap();
        }
        drop(turn);
        assert_eq!(state.all().unwrap(), [spec("a"), spec("b")]);
        let _again = state.turn().await.unwrap();
        for _ in 0..2 {
            state.remove(&spec("a").name).unwrap();
        }
        assert_eq!(state.all().unwrap(), [spec("b")]);
    }

    #[test]
    fn a_path_that_would_be_configuration_is_refused() {
        let long = |bytes: usize| format!("/{}", "x".repeat(bytes - 1));
        for good in ["/var/lib/ringway/networks", "/a b/\u{e4}, c", &long(DIRECTORY_BYTES_MAX)] {
            assert_eq!(NetworkStore::at(Path::new(good)).unwrap().root, Path::new(good));
        }
        let bad = ["/a\nuser=root", "/a\rb", "/a\tb", "/a\u{85}b", "/a \"b", "/a #b"];
        let bad = bad.into_iter().map(OsString::from);
        let latin = OsString::from_vec(b"/\xe4".to_vec());
        for bad in bad.chain([latin, long(DIRECTORY_BYTES_MAX + 1).into()]) {
            let error = NetworkStore::at(Path::new(&bad)).unwrap_err().to_string();
            assert!(error.contains("must be UTF-8 of at most 900"), "{error}");
            assert!(!error.contains('\n'), "{error}");
        }
    }

    #[test]
    fn records_that_are_none_are_refused_by_their_path() {
        let dir = tempfile::tempdir().unwrap();
        let state = NetworkStore::at(dir.path()).unwrap();
        state.write(&spec("a")).unwrap();
        let path = dir.path().join("a").join(RECORD);
        let good = fs::read_to_string(&path).unwrap();
        for bad in ["", "{}", &good.replace("\"a\"", "\"b\""), &good.replace("10.5", "10.x")] {
            fs::write(&path, bad).unwrap();
            let error = state.all().unwrap_err().to_string();
            assert!(error.contains("network.json"), "{error}");
        }
    }
}
