//! Operations under way.

use std::time::Duration;

use model::refusal::Refusal;
use model::vbd::VbdOp;
use model::vm::VmOp;
use tokio::time::Instant;
use xenapi::table::{FieldIx, vbd, vm};
use xenapi::{ApiError, Value, codes};

use crate::db::{Db, Ref, Tx, View};
use crate::records::fields::references;
use crate::records::machine_config::makes_domain;

/// One entry of an object's `current_operations`.
#[derive(Clone, Debug)]
pub(crate) struct CurrentOp {
    /// Object of the operation.
    pub(crate) of: Ref,
    /// Its `current_operations` field.
    pub(crate) field: FieldIx,
    /// Name of the operation.
    pub(crate) op: &'static str,
}

/// Guard of entries in `current_operations`. Dropping it removes the entries.
pub(crate) struct CurrentOps {
    db: Db,
    key: String,
    marked: Vec<(Ref, FieldIx)>,
    /// Whether the precheck has written something.
    precheck_wrote: bool,
}

impl CurrentOps {
    /// Adds the entries under a task's reference if the precheck `gate` passes. Precheck and
    /// entries are one change, which includes writes of the precheck.
    ///
    /// An operation that creates a domain attaches the VM's VBDs. They get entries too, so that no
    /// other call removes a VDI that is about to be attached.
    ///
    /// # Errors
    /// The refusal of `gate`, or `NotAllowed` if an object does not exist.
    pub(crate) fn begin(
        db: &Db,
        key: &str,
        marks: &[CurrentOp],
        gate: impl FnOnce(&mut Tx<'_>) -> Result<(), Refusal>,
    ) -> Result<Self, Refusal> {
        let (mut refused, mut marked, mut precheck_wrote) = (None, Vec::new(), false);
        let begun = db.write_observed(|tx| {
            if let Err(refusal) = gate(tx) {
                let why = codes::operation_not_allowed(refusal.to_string());
                refused = Some(refusal);
                return Err(why);
            }
            precheck_wrote = tx.touched().next().is_some();
            for current_op in with_slots(&tx.view(), marks)? {
                tx.set_key(
                    &current_op.of,
                    current_op.field,
                    key,
                    Some(Value::text(current_op.op)),
                )?;
                marked.push((current_op.of, current_op.field));
            }
            Ok(())
        });
        if let Some(refusal) = refused {
            return Err(refusal);
        }
        begun.map_err(|error| Refusal::NotAllowed(error.to_string()))?;
        Ok(Self { db: db.clone(), key: key.to_owned(), marked, precheck_wrote })
    }

    /// Returns whether the precheck has written something. That must be persisted before the
    /// operation acts.
    pub(crate) fn precheck_wrote(&self) -> bool {
        self.precheck_wrote
    }

    /// Does the work of `begin`, but waits up to `deadline` while another operation is in the way.
    ///
    /// # Errors
    /// The last refusal.
    pub(crate) async fn wait(
        db: &Db,
        key: &str,
        marks: &[CurrentOp],
        deadline: Duration,
        gate: impl Fn(&mut Tx<'_>) -> Result<(), Refusal>,
    ) -> Result<Self, Refusal> {
        let end = Instant::now() + deadline;
        let mut changed = db.changed();
        loop {
            changed.mark_unchanged();
            let refusal = match Self::begin(db, key, marks, &gate) {
                Ok(begun) => return Ok(begun),
                Err(refusal) if refusal.passes() => refusal,
                Err(refusal) => return Err(refusal),
            };
            match tokio::time::timeout_at(end, changed.changed()).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) | Err(_) => return Err(refusal),
            }
        }
    }
}

/// Returns the entries, plus those of the VBDs of each VM that gets a domain.
fn with_slots(view: &View<'_>, marks: &[CurrentOp]) -> Result<Vec<CurrentOp>, ApiError> {
    let mut all = marks.to_vec();
    let field = vm::Field::current_operations.into();
    let takes = |current_op: &&CurrentOp| {
        current_op.field == field && VmOp::parse(current_op.op).is_some_and(makes_domain)
    };
    for current_op in marks.iter().filter(takes) {
        let slots = references(view, &current_op.of, vm::Field::VBDs)?;
        let (field, op) = (vbd::Field::current_operations.into(), VbdOp::Attach.name());
        all.extend(slots.into_iter().map(|of| CurrentOp { of, field, op }));
    }
    Ok(all)
}

impl Drop for CurrentOps {
    fn drop(&mut self) {
        // An object that no longer exists is skipped; the others are still updated.
        let _ = self.db.write_observed(|tx| {
            for (of, field) in &self.marked {
                let _ = tx.set_key(of, *field, &self.key, None);
            }
            Ok(())
        });
    }
}
