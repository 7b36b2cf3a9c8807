//! Restore of the database from an export, while the daemon serves.
//!
//! The export is checked and stored beside the records. The next start replaces the records by it,
//! and keeps what they were. Machines must be halted: the domains of others would be unknown to the
//! restored records, or contradict them.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use error_causes::error_chain;
use model::vm::PowerState;
use toolstack::store::{self, BATCH_BYTES_MAX, MemoryStore, RedbStore, Store};
use xenapi::table::{Role, pool, vm};
use xenapi::{ApiError, Date, codes};

use crate::app::AppState;
use crate::db::View;
use crate::former_life;
use crate::http::{BodyCut, ImportBody, RestoreRequest};
use crate::peer::Peer;
use crate::persistence::Persistence;
use crate::records::fields::{flag, text};
use crate::records::machine_config;
use crate::request_session::RequestSession;
use crate::{allowed_operations, copies, random};

/// Export of the next start, in the state directory.
const NEXT: &str = "restore";
/// Export that is being received.
const DRAFT: &str = "restore.draft";
/// Export that a start refused.
const REFUSED: &str = "restore.refused";
/// Copy of the records before a restore, in the directory of copies.
const FORMER: &str = "before-restore";
/// Mode of these files: access for their owner only, because records contain secrets.
const OWNER: u32 = 0o600;
/// Role that may restore the database, and its permission.
const NEEDS: (&str, Role) = ("http/put_pool_xml_db_sync", Role::PoolAdmin);

/// Receives an export, checks it, and makes it the database of the next start unless the request is a
/// dry run.
///
/// # Errors
/// Those of the session. `OPERATION_NOT_ALLOWED` if a machine is not halted, or if another restore is
/// being received. `IMPORT_ERROR` if the export cannot be used.
pub(crate) async fn receive(
    app: Arc<AppState>,
    restore_request: RestoreRequest,
    mut body: ImportBody,
    peer: Peer,
) -> Result<(), ApiError> {
    let opened = RequestSession::open(&app, &restore_request.session, &peer, NEEDS).await;
    let outcome = match &opened {
        Ok(_) => carry(&app, restore_request.dry_run, &mut body).await,
        Err(error) => Err(error.clone()),
    };
    if let Ok(session) = opened {
        session.close(&app);
    }
    if outcome.is_err() {
        body.discard().await;
    }
    outcome
}

async fn carry(app: &AppState, dry_run: bool, body: &mut ImportBody) -> Result<(), ApiError> {
    app.db.read(check_halted)?;
    let draft = Draft::create(&app.settings.state)?;
    draft.fill(body).await?;
    let next = app.settings.state.join(NEXT);
    let checked = tokio::task::spawn_blocking(move || {
        check(draft.path())?;
        if dry_run { Ok(()) } else { draft.keep(&next) }
    });
    checked.await.map_err(|error| codes::internal(error_chain(&error)))??;
    if !dry_run {
        tracing::warn!("a restore of the database was requested: the next start carries it out");
    }
    Ok(())
}

/// Checks that no machine has a domain or saved memory.
fn check_halted(view: &View<'_>) -> Result<(), ApiError> {
    for machine in view.all(&vm::CLASS) {
        let machine = machine.reference();
        let is_control = flag(view, machine, vm::Field::is_control_domain)?;
        if !is_control && machine_config::power(view, machine)? != PowerState::Halted {
            let name = text(view, machine, vm::Field::name_label)?;
            let why = format!("the machine {name} is not halted: shut all machines down first");
            return Err(codes::operation_not_allowed(why));
        }
    }
    Ok(())
}

/// File that receives an export. Dropping it removes it.
#[derive(Debug)]
struct Draft {
    path: PathBuf,
    file: File,
}

impl Draft {
    fn create(state: &Path) -> Result<Self, ApiError> {
        let path = state.join(DRAFT);
        let file = OpenOptions::new().write(true).create_new(true).mode(OWNER).open(&path);
        let file = file.map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => codes::operation_not_allowed(format!(
                "another restore is being received; if there is none, remove {}",
                path.display()
            )),
            _ => not_stored(&error),
        })?;
        Ok(Self { path, file })
    }

    fn path(&self) -> &Path {
        &self.path
    }

    async fn fill(&self, body: &mut ImportBody) -> Result<(), ApiError> {
        let mut bytes = 0_usize;
        loop {
            let piece = match body.next().await {
                Ok(None) => break,
                Ok(Some(piece)) => piece,
                Err(BodyCut::Lost) => return Err(codes::import_cut()),
                Err(BodyCut::Stalled(time)) => {
                    let why = format!("no byte arrived for {} s", time.as_secs());
                    return Err(codes::import_error(why));
                }
            };
            bytes = bytes.saturating_add(piece.len());
            if bytes > BATCH_BYTES_MAX {
                let why = format!("a database has at most {} MiB", BATCH_BYTES_MAX >> 20);
                return Err(codes::import_error(why));
            }
            // Pieces are small, and the state directory is on a disk of the host.
            (&self.file).write_all(&piece).map_err(|error| not_stored(&error))?;
        }
        Ok(())
    }

    fn keep(self, to: &Path) -> Result<(), ApiError> {
        let kept = self.file.sync_all().and_then(|()| fs::rename(&self.path, to));
        let kept = kept.and_then(|()| synced(to));
        kept.map_err(|error| not_stored(&error))
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        // It is gone if it was kept.
        let _gone = fs::remove_file(&self.path);
    }
}

fn not_stored(error: &io::Error) -> ApiError {
    codes::import_error(format!("the database cannot be stored in the state directory: {error}"))
}

/// Makes a rename in the directory of this file durable.
fn synced(file: &Path) -> io::Result<()> {
    file.parent().map_or(Ok(()), |directory| File::open(directory)?.sync_all())
}

/// Checks that a start can load an export.
fn check(path: &Path) -> Result<(), ApiError> {
    let bad = |error: &dyn std::error::Error| codes::import_error(error_chain(error));
    let file = File::open(path).map_err(|error| not_stored(&error))?;
    let mut trial = MemoryStore::default();
    store::import(&mut BufReader::new(file), &mut trial).map_err(|error| bad(&error))?;
    let follow = allowed_operations::update_allowed;
    let opened = Persistence::open(Box::new(trial), random::bytes, follow, Date(0));
    let (db, _persistence) = opened.map_err(|error| bad(&error))?;
    match db.read(|view| view.count(&pool::CLASS)) {
        1 => Ok(()),
        _ => Err(codes::import_error("it has no pool: give an export of a whole database")),
    }
}

/// Carries out a restore that was requested before this start, and keeps the former records in a
/// file. Refuses it if machines run.
///
/// # Errors
/// The records cannot be replaced. The request stays.
pub(crate) fn apply(state: &Path, run: &Path, records: &mut RedbStore) -> anyhow::Result<()> {
    // A daemon that was killed may have left it.
    let _gone = fs::remove_file(state.join(DRAFT));
    let next = state.join(NEXT);
    let file = match File::open(&next) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        file => file.with_context(|| format!("cannot read {}", next.display()))?,
    };
    if let Some(machine) = former_life::running(run) {
        let refused = state.join(REFUSED);
        fs::rename(&next, &refused).with_context(|| format!("cannot rename {}", next.display()))?;
        tracing::error!(
            "the database was not restored, because a machine runs ({}); the export is in {}",
            machine.display(),
            refused.display()
        );
        return Ok(());
    }
    let former = save(records, &state.join(copies::DIRECTORY).join(FORMER))?;
    let rows = store::replace(&mut BufReader::new(file), records);
    let rows = rows.with_context(|| format!("cannot restore {}", next.display()))?;
    fs::remove_file(&next).with_context(|| format!("cannot remove {}", next.display()))?;
    synced(&next).with_context(|| format!("cannot write {}", state.display()))?;
    tracing::warn!("the database was restored: {rows} rows; the former one is in {former}");
    Ok(())
}

/// Writes the records to a file, which replaces an older one.
fn save(records: &mut dyn Store, to: &Path) -> anyhow::Result<String> {
    let failed = || format!("cannot write the former records to {}", to.display());
    let mut text = Vec::new();
    store::export(records, &mut text)?;
    copies::write(to, &text).with_context(failed)?;
    Ok(to.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_restore_while_machines_run() {
        let dir = tempfile::tempdir().unwrap();
        let (state, run) = (dir.path().join("state"), dir.path().join("run"));
        fs::create_dir_all(run.join("vm/1")).unwrap();
        fs::create_dir_all(&state).unwrap();
        let mut records = RedbStore::open(&state.join("state.redb")).unwrap();
        let mut text = Vec::new();
        store::export(&mut MemoryStore::default(), &mut text).unwrap();
        let names = || {
            let entries = fs::read_dir(&state).unwrap();
            let name = |entry: io::Result<fs::DirEntry>| entry.unwrap().file_name();
            let names = entries.map(|entry| name(entry).into_string().unwrap());
            names.filter(|name| name.starts_with("restore")).collect::<Vec<_>>()
        };
        // A request that is refused is not carried out by a later start.
        fs::write(state.join(NEXT), &text).unwrap();
        fs::write(state.join(DRAFT), "cut").unwrap();
        apply(&state, &run, &mut records).unwrap();
        assert_eq!(names(), [REFUSED]);
        fs::remove_dir(run.join("vm/1")).unwrap();
        apply(&state, &run, &mut records).unwrap();
        assert_eq!(names(), [REFUSED]);
        // One that cannot be carried out stays, and the start says so.
        fs::write(state.join(NEXT), "no export\n").unwrap();
        let error = apply(&state, &run, &mut records).unwrap_err();
        assert!(format!("{error:#}").contains("cannot restore"), "{error:#}");
        fs::write(state.join(NEXT), &text).unwrap();
        apply(&state, &run, &mut records).unwrap();
        assert_eq!(names(), [REFUSED]);
        assert!(state.join(copies::DIRECTORY).join(FORMER).exists());
    }
}
