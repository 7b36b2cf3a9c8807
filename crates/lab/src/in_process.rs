//! Servers on threads of this process, each pinned to a CPU.

use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;

use anyhow::{Context, Result, bail};
use rustix::process::Pid;

use crate::cpu;

/// Server thread in this process.
#[derive(Debug)]
pub struct InProcessServer {
    name: &'static str,
    socket: PathBuf,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<()>>>,
    thread_id: Pid,
}

impl InProcessServer {
    /// Listens at `socket` and runs `serve` on a thread on `cpu`. The thread serves clients until
    /// the server stops. Stopping sets the flag and connects once more, so `serve` may block in
    /// `accept`.
    ///
    /// # Errors
    /// The socket or the thread cannot be created.
    pub fn start(
        name: &'static str,
        socket: PathBuf,
        cpu: usize,
        serve: impl FnOnce(&UnixListener, &AtomicBool) -> Result<()> + Send + 'static,
    ) -> Result<Self> {
        let listener = UnixListener::bind(&socket).context("cannot listen")?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let (send, ids) = channel();
        let run = move || {
            let _ = send.send(rustix::thread::gettid());
            cpu::pin(cpu)?;
            serve(&listener, &stopped)
        };
        let thread = std::thread::Builder::new().name(name.into()).spawn(run)?;
        let thread_id = ids.recv().with_context(|| format!("the {name} thread did not start"))?;
        Ok(Self { name, socket, stop, thread: Some(thread), thread_id })
    }

    /// Returns the path of the socket.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Returns the CPU time of the thread, in seconds.
    ///
    /// # Errors
    /// The thread has ended.
    pub fn time_s(&self) -> Result<f64> {
        cpu::own_thread_time_s(self.thread_id)
    }

    /// Stops the server.
    ///
    /// # Errors
    /// The server failed or panicked.
    pub fn finish(mut self) -> Result<()> {
        match self.end() {
            Some(Ok(result)) => result,
            _ => bail!("the {} thread panicked", self.name),
        }
    }

    fn end(&mut self) -> Option<std::thread::Result<Result<()>>> {
        let thread = self.thread.take()?;
        self.stop.store(true, Ordering::Relaxed);
        // Wakes the thread if it waits for a client.
        let _ = UnixStream::connect(&self.socket);
        Some(thread.join())
    }
}

impl Drop for InProcessServer {
    fn drop(&mut self) {
        // The result is not needed on drop.
        let _ = self.end();
    }
}
