//! Detects changes of the password file.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::io::Errno;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Size of the inotify buffer in bytes. A name in an event is at most 255 bytes long.
const BUFFER_BYTES: usize = 4096;

/// Watch on a file, by inotify on its directory. Editors replace the file by a rename.
#[derive(Debug)]
pub struct FileWatch {
    events: AsyncFd<OwnedFd>,
    path: PathBuf,
}

impl FileWatch {
    /// Watches the file at this path, or the target of this link. Must be called within a runtime.
    ///
    /// # Errors
    /// The system's error.
    pub fn of(path: &Path) -> io::Result<Self> {
        let path = std::fs::canonicalize(path)?;
        let directory = path.parent().unwrap_or(Path::new("/"));
        let watch = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        // Writes before the close are ignored: a half-written file would end valid sessions.
        let flags = WatchFlags::CLOSE_WRITE | WatchFlags::MOVED_TO;
        inotify::add_watch(&watch, directory, flags)?;
        #[expect(
            deprecated,
            reason = "an owned descriptor stays the same and open; what replaces this is not safe"
        )]
        let events = AsyncFd::with_interest(watch, Interest::READABLE)?;
        Ok(Self { events, path })
    }

    /// Waits until the file was written or replaced.
    ///
    /// # Errors
    /// The system's error.
    pub async fn changed(&mut self) -> io::Result<()> {
        loop {
            let mut ready = self.events.readable_mut().await?;
            match read(ready.get_inner(), &self.path)? {
                Some(true) => return Ok(()),
                Some(false) => {}
                None => ready.clear_ready(),
            }
        }
    }
}

/// Returns whether one of the next events concerns this file. `None` if no event is pending.
fn read(watch: &OwnedFd, path: &Path) -> io::Result<Option<bool>> {
    let mut buffer = [MaybeUninit::uninit(); BUFFER_BYTES];
    let mut reader = inotify::Reader::new(watch, &mut buffer);
    let mut ours = false;
    loop {
        match reader.next() {
            Ok(event) => {
                // An event without a name reports a queue overflow, so the file may have changed.
                ours |= event.file_name().is_none_or(|name| {
                    path.file_name().is_some_and(|own| own.as_encoded_bytes() == name.to_bytes())
                });
            }
            Err(Errno::AGAIN) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
        if reader.is_buffer_empty() {
            return Ok(Some(ours));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    /// Time limit for an event that the kernel has queued before the call returns.
    const LONG: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn what_is_written_or_put_in_its_place_is_seen() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("password");
        fs::write(&path, "one").unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        let mut watch = FileWatch::of(&link).unwrap();
        fs::write(&path, "two").unwrap();
        timeout(LONG, watch.changed()).await.unwrap().unwrap();
        fs::write(dir.path().join("draft"), "three").unwrap();
        assert_eq!(read(watch.events.get_ref(), &watch.path).unwrap(), Some(false), "another file");
        fs::rename(dir.path().join("draft"), &path).unwrap();
        timeout(LONG, watch.changed()).await.unwrap().unwrap();
        assert_eq!(read(watch.events.get_ref(), &watch.path).unwrap(), None, "and nothing else");
        assert!(FileWatch::of(&dir.path().join("absent")).is_err());
    }
}
