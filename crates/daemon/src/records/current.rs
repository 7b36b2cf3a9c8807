//! Operations under way.

use std::time::Duration;

use model::refusal::Refusal;
use model::vbd::VbdOp;
use model::vm::VmOp;
use tokio::time::Instant;
use xenapi::table::{FieldIx, vbd, vm};
use xenapi::{ApiError, Value, codes};

use super::fields::references;
use super::machine_config::makes_domain;
use crate::db::{Db, Ref, Tx, View};

/// An operation that `current_operations` of an object is to tell.
#[derive(Clone, Debug)]
pub(crate) struct CurrentOp {
    /// The object.
    pub(crate) of: Ref,
    /// Its `current_operations`.
    pub(crate) field: FieldIx,
    /// The operation's name.
    pub(crate) op: &'static str,
}

/// Operations under way. They have ended when this is dropped, however that comes about.
pub(crate) struct CurrentOps {
    db: Db,
    key: String,
    marked: Vec<(Ref, FieldIx)>,
    /// The gate has written something.
    told: bool,
}

impl CurrentOps {
    /// Begins them under this key, a task's reference, if `gate` lets them; nobody comes between
    /// the gate and the beginning. What the gate writes belongs to it.
    ///
    /// A machine that gets a domain takes its disks: its slots are busy from then on too, so that
    /// nobody removes a disk that is about to be served.
    ///
    /// # Errors
    /// That of `gate`; an object is gone.
    pub(crate) fn begin(
        db: &Db,
        key: &str,
        marks: &[CurrentOp],
        gate: impl FnOnce(&mut Tx<'_>) -> Result<(), Refusal>,
    ) -> Result<Self, Refusal> {
        let (mut refused, mut marked, mut told) = (None, Vec::new(), false);
        let begun = db.write_observed(|tx| {
            if let Err(refusal) = gate(tx) {
                let why = codes::operation_not_allowed(refusal.to_string());
                refused = Some(refusal);
                return Err(why);
            }
            told = tx.touched().next().is_some();
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
        Ok(Self { db: db.clone(), key: key.to_owned(), marked, told })
    }

    /// Whether something was written as they began, which is to be on disk before they do anything.
    pub(crate) fn has_told(&self) -> bool {
        self.told
    }

    /// The same, but waits while another operation is in the way, until `deadline` has passed.
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

/// The same and, where a machine gets a domain, what is done to its slots.
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
        // An object that is gone has no operations; the others of this change have.
        let _ = self.db.write_observed(|tx| {
            for (of, field) in &self.marked {
                let _ = tx.set_key(of, *field, &self.key, None);
            }
            Ok(())
        });
    }
}
