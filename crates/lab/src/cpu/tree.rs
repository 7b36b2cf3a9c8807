//! Families of processes.

use std::collections::{HashMap, HashSet};
use std::fs;

use anyhow::{Context, Result, ensure};

use super::process_time_s;
use super::stat::{ProcessStat, seconds};

/// Returns all processes by their id.
///
/// # Errors
/// `/proc` cannot be listed.
pub(super) fn all() -> Result<HashMap<u32, ProcessStat>> {
    let entries = fs::read_dir("/proc").context("cannot list processes")?.flatten();
    let ids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    // A process may end between listing and reading.
    Ok(ids.filter_map(|pid| Some((pid, ProcessStat::of(pid)?))).collect())
}

/// Returns whether a process or one of its ancestors matches. The ids were read one after the
/// other, so some may have been reused meanwhile. The search visits no id twice.
pub(super) fn descends(
    mut pid: u32,
    from: impl Fn(u32) -> bool,
    all: &HashMap<u32, ProcessStat>,
) -> bool {
    let mut seen = HashSet::new();
    while seen.insert(pid) {
        if from(pid) {
            return true;
        }
        let Some(stat) = all.get(&pid) else { return false };
        pid = stat.parent;
    }
    false
}

/// Returns the CPU time of a process and its descendants, in seconds. It includes descendants that
/// have ended, if their parents waited for them.
///
/// # Errors
/// `/proc` cannot be listed, or the process does not exist.
pub fn tree_time_s(root: u32) -> Result<f64> {
    let all = all()?;
    ensure!(all.contains_key(&root), "process {root} is gone");
    let tree = all.iter().filter(|(pid, _)| descends(**pid, |above| above == root, &all));
    // A process that has ended since the listing counts from the next reading on.
    Ok(tree.map(|(pid, stat)| process_time_s(*pid).unwrap_or(0.0) + seconds(stat.waited)).sum())
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use testkit::process::Process;

    use super::*;

    #[test]
    fn a_family_has_the_time_of_its_children() {
        // One grandchild has ended, and another one runs.
        let work = "n=0; while [ $n -lt 200000 ]; do n=$((n + 1)); done";
        let script = format!("sh -c '{work}'; sh -c '{work}; echo; read -r end'; :");
        let mut command = Command::new("sh");
        let mut shell =
            Process::start_typed(command.args(["-c", &script]).stdout(Stdio::piped())).unwrap();
        let mut out = shell.child().stdout.take().unwrap();
        std::io::Read::read_exact(&mut out, &mut [0]).unwrap();
        let (own, tree) = (process_time_s(shell.id()).unwrap(), tree_time_s(shell.id()).unwrap());
        let waited = seconds(ProcessStat::of(shell.id()).unwrap().waited);
        assert!(waited > 0.0 && tree > own + waited, "{own} {waited} {tree}");
        assert!(tree_time_s(u32::MAX).is_err());
    }
}
