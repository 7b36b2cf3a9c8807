//! Metrics of a switch over HTTP.

use std::sync::Arc;
use std::thread::JoinHandle;

use anyhow::Context;

use super::switch_report::SwitchReporter;
use crate::accept_gate::AcceptGate;
use crate::metrics::{self, Address, ScrapeHandler};

/// Server that answers scrapers until it is dropped.
#[derive(Debug)]
pub struct NetMetrics {
    gate: Arc<AcceptGate>,
    thread: Option<JoinHandle<()>>,
}

impl NetMetrics {
    /// Listens at `address` and serves the metrics of `switch_reporter`.
    ///
    /// # Errors
    /// The address is unavailable, or the process cannot create more threads or descriptors.
    pub fn start(address: &Address, switch_reporter: Arc<SwitchReporter>) -> anyhow::Result<Self> {
        let gate = Arc::new(AcceptGate::new().context("cannot make a signal")?);
        let socket = metrics::bind(address)?;
        let scraped: ScrapeHandler = Arc::new(move || switch_reporter.metrics());
        let doors = Arc::clone(&gate);
        let thread = std::thread::Builder::new().name("metrics".into());
        let thread = thread.spawn(move || metrics::serve(&socket, &doors, &scraped));
        Ok(Self { gate, thread: Some(thread.context("cannot start a thread for metrics")?) })
    }
}

impl Drop for NetMetrics {
    fn drop(&mut self) {
        self.gate.stop();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was reported already.
            let _ = thread.join();
        }
    }
}
