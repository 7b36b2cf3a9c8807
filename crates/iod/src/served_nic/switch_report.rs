//! Reports of a `ringway-net` switch for callers and scrapers.

use std::path::Path;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use model::poll::EffectivePolling;
use model::report::Stats;

use super::{PortOwner, ServedNic, SwitchNetwork, Uplink, ports, residences};
use crate::metrics;
use crate::stats::{self, StatsDetail};

/// Switch with the owners of its ports.
#[derive(Debug)]
pub struct SwitchReporter {
    switch_network: Arc<SwitchNetwork>,
    all: Vec<PortOwner>,
    polling: EffectivePolling,
    started: (Instant, SystemTime),
}

impl SwitchReporter {
    /// Creates the reporter of a switch with these NICs, optionally the host, and the polling
    /// settings of its queues.
    pub fn new(
        switch_network: &Arc<SwitchNetwork>,
        nics: &[Arc<ServedNic>],
        host: Option<&Uplink>,
        polling: EffectivePolling,
    ) -> Arc<Self> {
        let sockets: Vec<_> = nics.iter().map(|nic| nic.spec.socket.as_path()).collect();
        let all = names(&sockets).into_iter().zip(nics).map(|(id, nic)| PortOwner::nic(&id, nic));
        let mut all: Vec<_> = all.collect();
        host.into_iter().for_each(|uplink| PortOwner::add_host(&mut all, uplink));
        let started = (Instant::now(), SystemTime::now());
        Arc::new(Self { switch_network: Arc::clone(switch_network), all, polling, started })
    }

    /// Returns all statistics.
    pub(crate) fn stats(&self) -> Stats {
        let pool = &self.switch_network.pool;
        let mut all = stats::process(self.started.0, pool, &[], |_| false, StatsDetail::Counts);
        all.ports = ports(&self.switch_network, &self.all, |_| true, StatsDetail::Everything);
        all.poll_defaults = Some(self.polling);
        all
    }

    /// Returns the page of a scrape.
    pub(crate) fn metrics(&self) -> String {
        let since = stats::unix_seconds(self.started.1);
        metrics::ports_page(&self.stats(), &residences(&self.switch_network, &self.all), since)
    }
}

/// Returns short names of NICs: the file name of the socket without extension, where it is unique.
fn names(sockets: &[&Path]) -> Vec<String> {
    let short = |socket: &Path| socket.file_stem().map(|stem| stem.to_string_lossy().into_owned());
    let shorts: Vec<_> = sockets.iter().copied().map(short).collect();
    let is_alone = |name: &Option<String>| shorts.iter().filter(|one| *one == name).count() == 1;
    let all = sockets.iter().zip(&shorts);
    let name = all.map(|(socket, short)| match short {
        Some(name) if is_alone(short) => name.clone(),
        _ => socket.display().to_string(),
    });
    name.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_short_where_they_tell_enough() {
        let paths = ["/run/a.sock", "/run/b.sock", "/x/b.sock", "fd:3"].map(Path::new);
        assert_eq!(names(&paths), ["a", "/run/b.sock", "/x/b.sock", "fd:3"]);
    }
}
