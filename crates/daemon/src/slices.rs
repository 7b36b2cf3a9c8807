//! CPU time for the control plane, independent of the guests' load, by [`toolstack::cgroup`].
//!
//! Without control groups everything works, but more slowly while guests use all CPUs. So errors
//! here are fatal only in required mode. Other errors are logged once, and the host's record shows
//! the state (`control_slice` in `software_version`).

use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

use anyhow::Context;
use toolstack::cgroup::{CgroupError, SliceTree, Weights, client_access};

use crate::config::SliceSettings;
use crate::options::SlicesMode;

/// Slices of this daemon, or the reason why it has none.
#[derive(Debug)]
pub struct Slices {
    groups: Option<Groups>,
    /// Socket beside which the join link for clients lies.
    socket: OnceLock<PathBuf>,
    report: String,
    usual: Weights,
    /// Locked while weights are read and set, so that the last written weights win.
    turn: Mutex<()>,
}

#[derive(Debug)]
struct Groups {
    tree: SliceTree,
    /// Control group of the daemon before it joined.
    home: Option<PathBuf>,
}

impl Slices {
    /// Creates the slices and joins the control slice. The caller must have the state directory
    /// locked, so that no other daemon uses the same slices.
    ///
    /// # Errors
    /// Fails if the slices are required and cannot be created.
    pub fn begin(settings: &SliceSettings) -> anyhow::Result<Self> {
        Self::begin_at(Path::new("/"), settings)
    }

    fn begin_at(root: &Path, settings: &SliceSettings) -> anyhow::Result<Self> {
        let without = |report| Ok(Self { report, ..Self::none(settings.weights) });
        if settings.mode == SlicesMode::Off {
            return without("off, as configured".to_owned());
        }
        match Groups::make(root, settings) {
            Ok(groups) => {
                let report = groups.tree.to_string();
                tracing::info!("CPU time for control is reserved by control groups: {report}");
                Ok(Self { groups: Some(groups), report, ..Self::none(settings.weights) })
            }
            Err(error) if settings.mode == SlicesMode::Required => {
                Err(error).context("the slices that the configuration requires cannot be created")
            }
            Err(error) => {
                tracing::warn!("control slice unavailable: {error}");
                without(format!("none: {error}"))
            }
        }
    }

    /// Creates an object without slices, with these default weights.
    pub fn none(usual: Weights) -> Self {
        let (socket, report) = (OnceLock::new(), "none".to_owned());
        Self { groups: None, socket, report, usual, turn: Mutex::default() }
    }

    /// Returns the tree that processes join.
    pub fn tree(&self) -> Option<&SliceTree> {
        self.groups.as_ref().map(|groups| &groups.tree)
    }

    /// Returns a description of the slices.
    pub fn report(&self) -> &str {
        &self.report
    }

    /// Returns the default weights.
    pub fn usual(&self) -> Weights {
        self.usual
    }

    /// Sets the weights that `now` returns. Blocks while systemd sets them.
    pub fn set(&self, now: impl FnOnce() -> Option<Weights>) {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(tree) = self.tree() else { return };
        let Some(weights) = now() else { return };
        if let Err(error) = tree.set(weights) {
            tracing::warn!("cannot change the weights of the slices: {error}");
        }
    }

    /// Removes leaves of VMs and SRs that no longer exist. Call this before any process is started.
    pub fn sweep(&self) {
        match self.tree().map(SliceTree::sweep) {
            None => {}
            Some(Ok(gone)) if gone.is_empty() => {}
            Some(Ok(gone)) => {
                tracing::info!("removed {} leftover control groups", gone.len())
            }
            Some(Err(error)) => tracing::warn!("cannot remove leftover control groups: {error}"),
        }
    }

    /// Publishes the join link beside this socket, so that its clients can join the slices.
    pub fn let_in(&self, socket: &Path) {
        let done = match self.tree() {
            Some(tree) => client_access::publish_join_link(tree, socket),
            // A killed daemon may have left its link.
            None => client_access::remove_join_link(socket),
        };
        if let Err(error) = done {
            tracing::warn!("{error}");
        }
        let _once = self.socket.set(socket.to_owned());
    }

    /// Ends the use of slices. Unused ones are removed; running VMs and datapaths keep theirs.
    pub fn end(&self) {
        let Some(Groups { tree, home: Some(home) }) = &self.groups else { return };
        let gone = tree.tear_down(home).and_then(|gone| match self.socket.get() {
            Some(socket) if gone => client_access::remove_join_link(socket),
            _ => Ok(()),
        });
        // A client may still be in a slice.
        if let Err(error) = gone {
            tracing::info!("slices not removed: {error}");
        }
    }
}

impl Groups {
    fn make(root: &Path, settings: &SliceSettings) -> Result<Self, CgroupError> {
        let tree = SliceTree::find(root, &settings.name)?;
        let (home, fresh) = (tree.group_of_self(), tree.weights().is_none());
        if let Err(error) = tree.make().and_then(|()| tree.join_control()) {
            if fresh {
                // Removes a partly created tree. The first error is the one to report.
                let _left = tree.clear();
            }
            return Err(error);
        }
        // Existing slices may have weights from the host's record, which is not loaded yet.
        if fresh && let Err(error) = tree.set(settings.weights) {
            // The slices work without these weights.
            tracing::warn!("{error}");
        }
        Ok(Self { tree, home })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(mode: SlicesMode) -> SliceSettings {
        SliceSettings { mode, name: "rwtest".into(), weights: Weights::default() }
    }

    #[test]
    fn a_host_without_groups_is_told_and_served() {
        let root = tempfile::tempdir().unwrap();
        let begin = |mode| Slices::begin_at(root.path(), &settings(mode));
        let slices = begin(SlicesMode::Auto).unwrap();
        assert!(slices.tree().is_none());
        assert!(slices.report().starts_with("none: no CPU controller"), "{}", slices.report());
        slices.set(|| panic!("nobody asks"));
        slices.sweep();
        slices.end();
        let error = format!("{:#}", begin(SlicesMode::Required).unwrap_err());
        assert!(error.contains("requires") && error.contains("no CPU controller"), "{error}");
    }

    #[test]
    fn who_wants_none_has_none() {
        let root = tempfile::tempdir().unwrap();
        let group = root.path().join("sys/fs/cgroup/cpu");
        std::fs::create_dir_all(&group).unwrap();
        std::fs::write(group.join("cpu.shares"), "1024").unwrap();
        let link = root.path().join("s.control");
        std::fs::write(&link, "").unwrap();
        let socket = root.path().join("s");
        let off = Slices::begin_at(root.path(), &settings(SlicesMode::Off)).unwrap();
        off.let_in(&socket);
        assert!(off.tree().is_none() && off.report().starts_with("off"), "{}", off.report());
        assert!(!group.join("rwtest-control").exists() && !link.exists());
        // Joining fails, because this directory is not a cgroup hierarchy.
        let error = Slices::begin_at(root.path(), &settings(SlicesMode::Required));
        let error = format!("{:#}", error.unwrap_err());
        assert!(error.contains("cgroup.procs") && error.contains("writable"), "{error}");
    }
}
