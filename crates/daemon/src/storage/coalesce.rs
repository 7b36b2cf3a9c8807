//! Merges of images in the background, one at a time for each SR.
//!
//! A run begins after a call that can leave something to merge, and ends when nothing is left. It
//! shows itself as a task, and under [`KEY`] in `sm_config` of the SR and of the VDIs that it
//! changes. The value `false` under the same key in `other_config` keeps an SR, or the images of a
//! VDI, as they are.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use error_causes::error_chain;
use model::id::{SrId, Uuid, VdiId};
use model::plan::StepAction;
use model::sr::{SrFeature, SrOp};

use tokio::sync::watch;
use toolstack::machines::{CancelToken, MergeOutcome, MergeState, OpError, StepError};
use toolstack::sr::SrError;
use xenapi::table::{FieldIx, sr, vdi};
use xenapi::{ApiError, NULL_REF, Value, codes};

use super::{SrHandle, scan};
use crate::app::AppState;
use crate::db::{Ref, View};
use crate::dispatch::CallResult;
use crate::errors::{About, failed};
use crate::random;
use crate::records::fields::{pairs, references, text, uuid};
use crate::tasks::BackgroundTask;

/// Key in `other_config` and `sm_config`, as XenServer names it.
pub(crate) const KEY: &str = "coalesce";
/// Percent by which the shown progress moves: each change is an event to all clients.
const SHOWN_STEP: u32 = 10;

/// Runs of all SRs.
#[derive(Debug, Default)]
pub struct Coalescer(Mutex<HashMap<SrId, Run>>);

#[derive(Debug)]
struct Run {
    /// Whether something was left to merge after the run had begun.
    again: bool,
    /// Whether the SR is about to be detached.
    stopped: bool,
    cancel: CancelToken,
    /// Closed at the end of the run.
    ended: watch::Receiver<()>,
}

impl Coalescer {
    fn runs(&self) -> MutexGuard<'_, HashMap<SrId, Run>> {
        // Each change of the map is complete before it can panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stops the run of an SR and waits for its end. A merge whose copy is complete is completed.
    pub(crate) async fn stop(&self, sr: SrId) {
        let ended = self.runs().get_mut(&sr).map(|run| {
            run.stopped = true;
            run.cancel.cancel();
            run.ended.clone()
        });
        if let Some(mut ended) = ended {
            while ended.changed().await.is_ok() {}
        }
    }

    /// Begins a run. Returns its cancel token. If one is under way, it looks again when it ends.
    fn begin(&self, sr: SrId) -> Option<(CancelToken, watch::Sender<()>)> {
        let mut runs = self.runs();
        if let Some(run) = runs.get_mut(&sr) {
            run.again = true;
            return None;
        }
        let (sender, ended) = watch::channel(());
        let cancel = CancelToken::new();
        runs.insert(sr, Run { again: false, stopped: false, cancel: cancel.clone(), ended });
        Some((cancel, sender))
    }

    /// Returns the cancel token of the next turn, or ends the run: no turn has been asked for.
    fn next(&self, sr: SrId, is_done: bool) -> Option<CancelToken> {
        let mut runs = self.runs();
        let run = runs.get_mut(&sr)?;
        if run.stopped || (is_done && !run.again) {
            runs.remove(&sr);
            return None;
        }
        run.again = false;
        if run.cancel.is_cancelled() {
            run.cancel = CancelToken::new();
        }
        Some(run.cancel.clone())
    }
}

impl SrHandle {
    /// Merges images of the SR in the background, if there is something to merge. The SR is attached.
    pub(crate) fn coalesce(&self, app: &Arc<AppState>) {
        if !self.driver.features().contains(&SrFeature::VdiSnapshot) {
            return;
        }
        if let Some((cancel, ended)) = app.coalescer.begin(self.id) {
            let (app, storage) = (app.clone(), self.clone());
            tokio::spawn(async move {
                run(&app, &storage, cancel).await;
                drop(ended);
            });
        }
    }
}

/// Merges until there is nothing to merge, an error, or a cancel.
async fn run(app: &Arc<AppState>, storage: &SrHandle, mut cancel: CancelToken) {
    let mut has_merged = false;
    loop {
        let is_done = merge(app, storage, &cancel).await != Some(MergeOutcome::Merged);
        has_merged |= !is_done;
        if is_done && has_merged {
            has_merged = false;
            scan::refresh(app, storage).await;
        }
        match app.coalescer.next(storage.id, is_done) {
            Some(next) => cancel = next,
            None => return,
        }
    }
}

/// Merges images once. `None` after an error, which the log and the task have.
async fn merge(
    app: &Arc<AppState>,
    storage: &SrHandle,
    cancel: &CancelToken,
) -> Option<MergeOutcome> {
    let shown = Shown { app, storage, cancel, inner: Mutex::default() };
    let Some(kept) = app.db.read(|view| kept(view, &storage.sr)) else {
        // A merge that has not gone far is given up. Otherwise it goes on when merges are allowed.
        let _left = storage.driver.end_merge(storage.id).await;
        shown.end(&Ok(Value::text("")));
        return Some(MergeOutcome::Nothing);
    };
    let into = Uuid::from_random(random::bytes());
    let place = (storage.id, storage.driver.kind());
    let report = |state: MergeState<'_>| shown.report(state);
    match app.machines.merge_images(place, (into, kept), &report, cancel).await {
        Ok(outcome) => {
            let cancelled = || Err(codes::task_cancelled(NULL_REF));
            let is_cancelled = outcome == MergeOutcome::Cancelled;
            shown.end(&if is_cancelled { cancelled() } else { Ok(Value::text("")) });
            Some(outcome)
        }
        // The SR was detached meanwhile.
        Err(StepError::Sr(SrError::NotAttached)) => Some(MergeOutcome::Nothing),
        Err(error) => {
            tracing::warn!(sr = %storage.id, "images are not merged: {}", error_chain(&error));
            let about = About::sr(&storage.sr, SrOp::Update);
            let error = OpError::Failed { verb: StepAction::Record, error };
            shown.end(&Err(failed(&app.db, error, &about)));
            None
        }
    }
}

/// Returns the volumes whose images stay as they are. `None` if those of all do.
fn kept(view: &View<'_>, place: &Ref) -> Option<BTreeSet<VdiId>> {
    let is_off = |of: &Ref, field: FieldIx| {
        pairs(view, of, field).is_ok_and(|config| config.get(KEY).is_some_and(|it| it == "false"))
    };
    if is_off(place, sr::Field::other_config.into()) {
        return None;
    }
    let disks = references(view, place, sr::Field::VDIs).ok()?;
    let kept = disks.iter().filter(|disk| is_off(disk, vdi::Field::other_config.into()));
    Some(kept.filter_map(|disk| uuid(view, disk, vdi::Field::uuid).ok().map(VdiId)).collect())
}

/// Task and records that show a merge.
struct Shown<'a> {
    app: &'a Arc<AppState>,
    storage: &'a SrHandle,
    cancel: &'a CancelToken,
    inner: Mutex<ShownMerge>,
}

#[derive(Default)]
struct ShownMerge {
    task: Option<BackgroundTask>,
    text: String,
    disks: Vec<Ref>,
}

impl Shown<'_> {
    fn inner(&self) -> MutexGuard<'_, ShownMerge> {
        // Each change is complete before it can panic.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn report(&self, MergeState { count, part, users }: MergeState<'_>) {
        let mut inner = self.inner();
        if inner.task.is_none() {
            let name = self.app.db.read(|view| {
                text(view, &self.storage.sr, sr::Field::name_label).map(str::to_owned)
            });
            let description =
                format!("merges {count} images of `{}`", name.as_deref().unwrap_or_default());
            let task = BackgroundTask::begin(self.app, "SR.coalesce", &description, self.cancel);
            inner.task = Some(task);
            inner.disks = self.app.db.read(|view| {
                let of = |vdi: &VdiId| view.by_uuid(&vdi::CLASS, &vdi.to_string()).ok().cloned();
                users.iter().filter_map(of).collect()
            });
        }
        if let Some(task) = &inner.task {
            task.progress(part);
        }
        // From 0 to 100.
        let percent = (part.clamp(0.0, 1.0) * 100.0) as u32;
        let percent = percent - percent % SHOWN_STEP;
        let text = format!("merging {count} images, {percent}%");
        if inner.text != text {
            self.show(Some(&text), &inner.disks);
            inner.text = text;
        }
    }

    /// Shows a state in the records of the SR and of its VDIs.
    fn show(&self, state: Option<&str>, disks: &[Ref]) {
        let shown = self.app.db.write_observed(|tx| {
            let value = || state.map(Value::text);
            tx.set_key(&self.storage.sr, sr::Field::sm_config, KEY, value())?;
            for disk in disks {
                // A VDI may be destroyed meanwhile.
                if tx.view().object(&vdi::CLASS, disk).is_ok() {
                    tx.set_key(disk, vdi::Field::sm_config, KEY, value())?;
                }
            }
            Ok::<_, ApiError>(())
        });
        if let Err(error) = shown {
            tracing::warn!(sr = %self.storage.id, "a merge of images is not shown: {error}");
        }
    }

    fn end(&self, answer: &CallResult) {
        // A daemon that was killed may have left what it showed.
        if let Some(disks) = self.app.db.read(|view| left(view, &self.storage.sr)) {
            self.show(None, &disks);
        }
        if let Some(task) = self.inner().task.take() {
            task.end(answer);
        }
    }
}

/// Returns the VDIs that show a merge. `None` if neither they nor the SR do.
fn left(view: &View<'_>, place: &Ref) -> Option<Vec<Ref>> {
    let has = |of: &Ref, field: FieldIx| {
        pairs(view, of, field).is_ok_and(|config| config.contains_key(KEY))
    };
    let mut disks = references(view, place, sr::Field::VDIs).unwrap_or_default();
    disks.retain(|disk| has(disk, vdi::Field::sm_config.into()));
    let is_shown = !disks.is_empty() || has(place, sr::Field::sm_config.into());
    is_shown.then_some(disks)
}
