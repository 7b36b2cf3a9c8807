//! Daily copies of the records, in a directory beside them. A copy has the form of an export.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use error_causes::error_chain;
use tokio::time::{MissedTickBehavior, interval};

use crate::app::AppState;
use crate::persistence;

/// Directory of the copies in the state directory.
pub(crate) const DIRECTORY: &str = "copies";
/// Time between two copies.
const EVERY: Duration = Duration::from_secs(24 * 60 * 60);
/// Most copies. The oldest is removed first.
const COPIES_MAX: usize = 7;
/// Beginning of a copy's name. The date follows.
const PREFIX: &str = "records-";
/// Mode of a copy: access for its owner only, because records contain secrets.
const OWNER: u32 = 0o600;
/// Mode of the directory.
const OWNER_DIRECTORY: u32 = 0o700;

/// Makes copies until the daemon ends: one at once, then one each day. Logs failures.
pub(crate) async fn copy_daily(app: Arc<AppState>, state: PathBuf) {
    let mut turns = interval(EVERY);
    turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        turns.tick().await;
        let (app, state) = (Arc::clone(&app), state.clone());
        let copied = tokio::task::spawn_blocking(move || {
            let text = persistence::copy(&app.db).map_err(io::Error::other)?;
            let date = app.clock.date().to_string();
            store(&state.join(DIRECTORY), date.get(..8).unwrap_or(&date), &text)
        });
        match copied.await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::warn!("cannot copy the records: {}", error_chain(&error));
            }
            Err(error) => tracing::error!("the copy of the records failed: {error}"),
        }
    }
}

/// Stores a copy under its date, and removes copies that are too many. A copy of the same day is
/// replaced atomically.
fn store(directory: &Path, date: &str, text: &[u8]) -> io::Result<()> {
    write(&directory.join(format!("{PREFIX}{date}")), text)?;
    let mut all = all(directory)?;
    let many = all.len().saturating_sub(COPIES_MAX);
    all.drain(..many).try_for_each(fs::remove_file)
}

/// Writes a copy. One of the same name is replaced atomically.
///
/// # Errors
/// Those of the system.
pub(crate) fn write(to: &Path, text: &[u8]) -> io::Result<()> {
    let directory = to.parent().unwrap_or(Path::new("."));
    DirBuilder::new().recursive(true).mode(OWNER_DIRECTORY).create(directory)?;
    let draft = directory.join("draft");
    match fs::remove_file(&draft) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(OWNER).open(&draft)?;
    file.write_all(text)?;
    file.sync_all()?;
    fs::rename(&draft, to)?;
    File::open(directory)?.sync_all()
}

/// Returns the copies in a directory, the oldest first. None if the directory does not exist.
///
/// # Errors
/// Those of the system.
pub(crate) fn all(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut all = Vec::new();
    for entry in entries {
        let entry = entry?;
        if entry.file_name().to_str().is_some_and(|name| name.starts_with(PREFIX)) {
            all.push(entry.path());
        }
    }
    // The names sort by date.
    all.sort();
    Ok(all)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn the_latest_seven_days_stay() {
        let dir = tempfile::tempdir().unwrap();
        let copies = dir.path().join(DIRECTORY);
        assert!(all(&copies).unwrap().is_empty());
        for day in 1..=9 {
            for text in ["first", "second"] {
                store(&copies, &format!("2026110{day}"), text.as_bytes()).unwrap();
            }
        }
        let all = all(&copies).unwrap();
        assert_eq!(all.len(), COPIES_MAX);
        assert!(all[0].ends_with("records-20261103") && all[6].ends_with("records-20261109"));
        assert_eq!(fs::read_to_string(&all[6]).unwrap(), "second");
        assert_eq!(fs::metadata(&all[6]).unwrap().permissions().mode() & 0o777, OWNER);
        assert_eq!(fs::read_dir(&copies).unwrap().count(), COPIES_MAX, "no draft is left");
    }
}
