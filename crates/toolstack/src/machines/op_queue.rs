//! Queue of a machine's operations.

use std::collections::VecDeque;

use model::plan::MachineOp;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::{OpError, OpHooks};
use crate::exec::CancelToken;

/// Operations in the order of their calls. A forced shutdown goes first.
#[derive(Debug, Default)]
pub(super) struct OpQueue {
    turns: VecDeque<QueuedOp>,
    next: u64,
    /// True if the operation loop runs.
    pub(super) owned: bool,
    /// Running operation.
    current: Option<(MachineOp, CancelToken)>,
    /// True if a reconciliation is needed.
    unsettled: bool,
}

/// Operation that waits.
#[derive(Debug)]
pub(super) struct QueuedOp {
    pub(super) number: u64,
    pub(super) op: MachineOp,
    pub(super) op_hooks: OpHooks,
    pub(super) deadline: Instant,
    pub(super) reply_sender: oneshot::Sender<Result<(), OpError>>,
}

/// Next action of the operation loop.
#[derive(Debug)]
pub(super) enum NextAction {
    Turn(QueuedOp),
    Settle(CancelToken),
    Nothing,
}

impl OpQueue {
    /// Queues an operation and returns its number.
    pub(super) fn push(
        &mut self,
        (op, op_hooks): (MachineOp, OpHooks),
        deadline: Instant,
        reply_sender: oneshot::Sender<Result<(), OpError>>,
    ) -> u64 {
        let number = self.next;
        self.next += 1;
        let by_force = |op: &MachineOp| *op == MachineOp::HardShutdown;
        let mut at = self.turns.len();
        if by_force(&op) {
            at = self.turns.iter().take_while(|queued_op| by_force(&queued_op.op)).count();
            if let Some((current, cancel)) = &self.current
                && !by_force(current)
            {
                cancel.preempt();
            }
        }
        self.turns.insert(at, QueuedOp { number, op, op_hooks, deadline, reply_sender });
        number
    }

    /// Removes an operation that still waits.
    pub(super) fn withdraw(&mut self, number: u64) -> Option<QueuedOp> {
        let at = self.turns.iter().position(|queued_op| queued_op.number == number)?;
        self.turns.remove(at)
    }

    /// Returns the next action. A forced shutdown goes before a reconciliation and makes it
    /// needless.
    pub(super) fn take(&mut self) -> NextAction {
        let by_force =
            self.turns.front().is_some_and(|queued_op| queued_op.op == MachineOp::HardShutdown);
        if self.unsettled && !by_force {
            self.unsettled = false;
            let cancel = CancelToken::new();
            self.current = Some((MachineOp::Reconcile, cancel.clone()));
            return NextAction::Settle(cancel);
        }
        self.current = None;
        let Some(queued_op) = self.turns.pop_front() else { return NextAction::Nothing };
        self.current = Some((queued_op.op, queued_op.op_hooks.cancel.clone()));
        NextAction::Turn(queued_op)
    }

    pub(super) fn request_reconcile(&mut self) {
        self.unsettled = true;
    }

    /// Returns whether there is no work.
    pub(super) fn is_idle(&self) -> bool {
        self.turns.is_empty() && !self.unsettled
    }
}
