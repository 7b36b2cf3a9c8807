//! Sees when the file of passwords has changed.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::io::Errno;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Room for what is told at once, in bytes: a name is at most 255 long.
const BUFFER_BYTES: usize = 4096;

/// A file that is watched by its directory: editors put another one in its place.
#[derive(Debug)]
pub struct FileWatch {
    told: AsyncFd<OwnedFd>,
    path: PathBuf,
}

impl FileWatch {
    /// Of the file at this path, or at the end of this link. Called within a runtime.
    ///
    /// # Errors
    /// What the system said.
    pub fn of(path: &Path) -> io::Result<Self> {
        let path = std::fs::canonicalize(path)?;
        let directory = path.parent().unwrap_or(Path::new("/"));
        let watch = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        // A file that is being written is not looked at: half of it would end sessions.
        let flags = WatchFlags::CLOSE_WRITE | WatchFlags::MOVED_TO;
        inotify::add_watch(&watch, directory, flags)?;
        #[expect(
            deprecated,
            reason = "an owned descriptor stays the same and open; what replaces this is not safe"
        )]
        let told = AsyncFd::with_interest(watch, Interest::READABLE)?;
        Ok(Self { told, path })
    }

    /// Waits until the file was written, or another one is in its place.
    ///
    /// # Errors
    /// What the system said.
    pub async fn changed(&mut self) -> io::Result<()> {
        loop {
            let mut ready = self.told.readable_mut().await?;
            match read(ready.get_inner(), &self.path)? {
                Some(true) => return Ok(()),
                Some(false) => {}
                None => ready.clear_ready(),
            }
        }
    }
}

/// Whether the next change is one of this file; nothing if none has been told.
fn read(watch: &OwnedFd, path: &Path) -> io::Result<Option<bool>> {
    let mut buffer = [MaybeUninit::uninit(); BUFFER_BYTES];
    let mut reader = inotify::Reader::new(watch, &mut buffer);
    let mut ours = false;
    loop {
        match reader.next() {
            Ok(event) => {
                // Without a name it says that more happened than could be told.
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

    /// Long enough for an event, which the kernel has told before the call returns.
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
        assert_eq!(read(watch.told.get_ref(), &watch.path).unwrap(), Some(false), "another file");
        fs::rename(dir.path().join("draft"), &path).unwrap();
        timeout(LONG, watch.changed()).await.unwrap().unwrap();
        assert_eq!(read(watch.told.get_ref(), &watch.path).unwrap(), None, "and nothing else");
        assert!(FileWatch::of(&dir.path().join("absent")).is_err());
    }
}
