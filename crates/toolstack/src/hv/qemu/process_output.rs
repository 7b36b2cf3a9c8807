//! Output of a process that outlives the daemon.
//!
//! A guest can make its QEMU write messages without end, and no file may grow without end. So the
//! process writes into a named pipe, which the kernel bounds. The process itself has the pipe open
//! for reading, so it never sees a broken pipe when the daemon ends. The pipe does not block: if it
//! is full, QEMU loses a message. The daemon moves the messages into a file of bounded size.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat};
use tokio::net::unix::pipe;

/// Largest size of the file, in bytes. A larger file loses its older half.
const FILE_BYTES_MAX: u64 = 64 << 10;
/// Bytes at the end that are read.
const TAIL_BYTES: u64 = 16 << 10;

/// Locked while messages move, so that no reader of a file misses those that have left the pipe.
static MOVES: Mutex<()> = Mutex::new(());

/// Pipe and file of one process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ProcessOutput {
    pipe: PathBuf,
    file: PathBuf,
}

impl ProcessOutput {
    /// Names the pipe and the file.
    pub(super) fn at(pipe: PathBuf, file: PathBuf) -> Self {
        Self { pipe, file }
    }

    /// Creates the pipe, and opens it for the process.
    pub(super) fn create(&self) -> io::Result<File> {
        mknodat(CWD, &self.pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)?;
        self.open()
    }

    /// Opens the pipe for reading and writing. Never waits for another process.
    pub(super) fn open(&self) -> io::Result<File> {
        let flags = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or_default();
        OpenOptions::new().read(true).write(true).custom_flags(flags).open(&self.pipe)
    }

    /// Moves messages from the pipe to the file until the future is dropped.
    pub(super) async fn collect(&self) -> io::Result<()> {
        if !self.is_pipe() {
            return Ok(());
        }
        let pipe = pipe::Receiver::from_file(self.open()?)?;
        let mut buffer = vec![0; TAIL_BYTES as usize];
        loop {
            pipe.readable().await?;
            let _move = lock();
            match pipe.try_read(&mut buffer) {
                Ok(read) => append(&self.file, buffer.get(..read).unwrap_or_default())?,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns the end of the output, at most 16 KiB.
    pub(super) fn tail(&self) -> String {
        // QEMUs of an older daemon write into a file.
        if !self.is_pipe() {
            return tail(&self.pipe);
        }
        let move_rest = || -> io::Result<()> {
            let (mut pipe, mut buffer) = (self.open()?, vec![0; TAIL_BYTES as usize]);
            loop {
                match pipe.read(&mut buffer) {
                    Ok(read) => append(&self.file, buffer.get(..read).unwrap_or_default())?,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                    Err(error) => return Err(error),
                }
            }
        };
        let _move = lock();
        // The messages so far are the best result.
        let _ = move_rest();
        tail(&self.file)
    }

    fn is_pipe(&self) -> bool {
        fs::metadata(&self.pipe).is_ok_and(|found| found.file_type().is_fifo())
    }
}

/// Returns the end of a file, at most 16 KiB. A file that cannot be read has no content.
pub(super) fn tail(file: &Path) -> String {
    let read = || -> io::Result<Vec<u8>> {
        let mut file = File::open(file)?;
        let bytes = file.metadata()?.len();
        file.seek(SeekFrom::Start(bytes.saturating_sub(TAIL_BYTES)))?;
        let mut tail = Vec::new();
        file.take(TAIL_BYTES).read_to_end(&mut tail)?;
        Ok(tail)
    };
    String::from_utf8_lossy(&read().unwrap_or_default()).into_owned()
}

fn lock() -> MutexGuard<'static, ()> {
    MOVES.lock().unwrap_or_else(PoisonError::into_inner)
}

fn append(file: &Path, messages: &[u8]) -> io::Result<()> {
    let mut options = OpenOptions::new();
    let mut file = options.append(true).create(true).mode(0o600).open(file)?;
    file.write_all(messages)?;
    logging::limit_file(file.as_fd(), FILE_BYTES_MAX);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output() -> (tempfile::TempDir, ProcessOutput) {
        let dir = tempfile::tempdir().unwrap();
        let output = ProcessOutput::at(dir.path().join("stderr"), dir.path().join("messages"));
        (dir, output)
    }

    #[tokio::test]
    async fn a_flood_neither_blocks_its_process_nor_grows_a_file() {
        let (_dir, output) = output();
        let mut stderr = output.create().unwrap();
        let line = "a guest can cause this line\n".repeat(10);
        // No daemon reads: the pipe is bounded, and the process goes on.
        let unread = (0..10_000).filter(|_| stderr.write(line.as_bytes()).is_ok()).count();
        assert!(unread < 1000, "{unread} of 10000 writes fit into a pipe");
        let collected = output.clone();
        let collecting = tokio::spawn(async move { collected.collect().await });
        // A daemon reads: the process can write again, and its newest line is there.
        while stderr.write_all(b"the last line\n").is_err() {
            tokio::task::yield_now().await;
        }
        while !output.tail().ends_with("the last line\n") {
            tokio::task::yield_now().await;
        }
        collecting.abort();
        assert!(fs::metadata(&output.file).unwrap().len() <= FILE_BYTES_MAX);
        assert!(output.tail().len() as u64 <= TAIL_BYTES);
        // The daemon has ended: no write breaks.
        drop(collecting.await);
        stderr.write_all(b"later\n").unwrap();
        assert!(output.tail().ends_with("the last line\nlater\n"));
    }

    #[tokio::test]
    async fn output_of_an_older_daemons_process_is_a_file() {
        let (_dir, output) = output();
        fs::write(&output.pipe, "a message\n").unwrap();
        output.collect().await.unwrap();
        assert_eq!(output.tail(), "a message\n");
    }
}
