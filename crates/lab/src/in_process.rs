//! Servers that are threads of this process, each on a CPU.

use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;

use anyhow::{Context, Result, bail};
use rustix::process::Pid;

use crate::cpu;

/// A server that runs.
#[derive(Debug)]
pub struct InProcessServer {
    name: &'static str,
    socket: PathBuf,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<()>>>,
    thread_id: Pid,
}

impl InProcessServer {
    /// Listens at `socket`; a thread on `cpu` takes who comes, until it is told to stop. It is
    /// connected to once more then, so that it need not look while it waits for somebody.
    ///
    /// # Errors
    /// If there is no socket or thread to be had.
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

    /// The socket.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// CPU time of its thread, in seconds.
    ///
    /// # Errors
    /// If it has ended.
    pub fn time_s(&self) -> Result<f64> {
        cpu::own_thread_time_s(self.thread_id)
    }

    /// Ends it.
    ///
    /// # Errors
    /// What went wrong in it.
    pub fn finish(mut self) -> Result<()> {
        match self.end() {
            Some(Ok(result)) => result,
            _ => bail!("the {} thread panicked", self.name),
        }
    }

    fn end(&mut self) -> Option<std::thread::Result<Result<()>>> {
        let thread = self.thread.take()?;
        self.stop.store(true, Ordering::Relaxed);
        // It may wait for a client.
        let _ = UnixStream::connect(&self.socket);
        Some(thread.join())
    }
}

impl Drop for InProcessServer {
    fn drop(&mut self) {
        // What went wrong matters to nobody any more.
        let _ = self.end();
    }
}
