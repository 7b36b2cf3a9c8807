//! Guest console, and its output and input streams.

use std::fmt;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::OwnedWriteHalf;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// Output and input of the guest's console.
pub struct Console {
    output: Box<dyn AsyncWrite + Send + Unpin>,
    input: Option<mpsc::Receiver<Vec<u8>>>,
}

impl fmt::Debug for Console {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Console").field("input", &self.input.is_some()).finish_non_exhaustive()
    }
}

impl Console {
    /// Creates a console that writes to `output`, and reads from `input` if there is one.
    pub fn new(
        output: impl AsyncWrite + Send + Unpin + 'static,
        input: Option<mpsc::Receiver<Vec<u8>>>,
    ) -> Self {
        Self { output: Box::new(output), input }
    }

    /// Copies in both directions in the background until the machine closes its side. The handle
    /// ends after the last output is written.
    pub(super) fn connect(self, machine: UnixStream) -> JoinHandle<()> {
        let (reader, writer) = machine.into_split();
        let feeder = tokio::spawn(feed(self.input, writer));
        let output = self.output;
        tokio::spawn(async move {
            show(reader, output).await;
            feeder.abort();
        })
    }
}

/// Writes the guest's output. If the reader is gone (a closed pipe), the rest is discarded, because
/// the guest must not block.
async fn show(mut reader: impl AsyncRead + Unpin, mut output: Box<dyn AsyncWrite + Send + Unpin>) {
    let mut watched = true;
    let mut chunk = vec![0; 16 << 10];
    while let Ok(count @ 1..) = reader.read(&mut chunk).await {
        let bytes = chunk.get(..count).unwrap_or_default();
        if watched {
            watched = output.write_all(bytes).await.is_ok() && output.flush().await.is_ok();
        }
    }
    // The shutdown ends the reader of a pipe. On failure the reader is already gone.
    let _gone = output.shutdown().await;
}

/// Sends the input to the guest. After the end of the input the writing side stays open until the
/// machine ends: QEMU drops a console whose peer stops writing.
async fn feed(input: Option<mpsc::Receiver<Vec<u8>>>, mut writer: OwnedWriteHalf) {
    if let Some(mut input) = input {
        while let Some(bytes) = input.recv().await {
            if writer.write_all(&bytes).await.is_err() {
                break;
            }
        }
    }
    std::future::pending::<()>().await;
    drop(writer);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn bytes_go_both_ways() {
        let (ours, mut guest) = UnixStream::pair().unwrap();
        let (sink, mut shown) = tokio::io::duplex(64);
        let (keys, input) = mpsc::channel(1);
        let done = Console::new(sink, Some(input)).connect(ours);
        keys.send(b"ls\n".to_vec()).await.unwrap();
        drop(keys);
        let mut typed = [0; 3];
        guest.read_exact(&mut typed).await.unwrap();
        assert_eq!(&typed, b"ls\n");
        guest.write_all(b"bin\n").await.unwrap();
        drop(guest);
        let mut text = String::new();
        shown.read_to_string(&mut text).await.unwrap();
        assert_eq!(text, "bin\n");
        done.await.unwrap();
    }

    #[tokio::test]
    async fn without_input_the_console_stays_open() {
        let (ours, mut guest) = UnixStream::pair().unwrap();
        let (sink, mut shown) = tokio::io::duplex(64);
        let _done = Console::new(sink, None).connect(ours);
        guest.write_all(b"x").await.unwrap();
        shown.read_u8().await.unwrap();
        // Both tasks have run by now, so a closed connection would be visible.
        let end = guest.try_read(&mut [0]).unwrap_err();
        assert_eq!(end.kind(), std::io::ErrorKind::WouldBlock);
    }

    #[tokio::test]
    async fn a_guest_goes_on_when_nobody_looks() {
        let (ours, mut guest) = UnixStream::pair().unwrap();
        let (sink, shown) = tokio::io::duplex(64);
        drop(shown);
        let done = Console::new(sink, None).connect(ours);
        // More than all buffers on the path hold.
        guest.write_all(&vec![b'x'; 4 << 20]).await.unwrap();
        drop(guest);
        done.await.unwrap();
    }
}
