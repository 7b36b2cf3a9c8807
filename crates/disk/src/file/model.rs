//! Requests of a channel whose storage is a model: each ends when the kernel and the model have ended
//! it.

use std::sync::Arc;

use reactor::{Context, IoOp, OpCompletion};
use share::OpKind;
use share::device::Command;

use super::channel::{FileChannel, INLINE_READ, MODEL_TIMER};
use super::request::{FileRequest, IoMethod};
use crate::model_device::{ModelChannel, ModelDevice};

/// Model of the storage below a file, and where the file lies there.
#[derive(Clone, Debug)]
pub(super) struct ModelPlace {
    pub(super) device: Arc<ModelDevice>,
    /// First byte of the file on the device.
    pub(super) offset: u64,
}

/// Requests of one channel on a modelled device.
pub(super) struct ModelQueue {
    channel: ModelChannel,
    offset: u64,
    /// Steps by the tags of their operations.
    steps: Vec<Step>,
    // Kept for its capacity.
    ended: Vec<usize>,
}

/// State of a step.
#[derive(Default)]
enum Step {
    /// Neither has ended it.
    #[default]
    Both,
    /// The model has ended it.
    Kernel,
    /// The kernel has ended it.
    Model(OpCompletion),
}

impl ModelQueue {
    pub(super) fn open(place: &ModelPlace, context: &Context<'_>) -> Self {
        let channel = ModelChannel::enter(&place.device, context);
        Self { channel, offset: place.offset, steps: Vec::new(), ended: Vec::new() }
    }

    /// Returns whether ends may have come.
    #[inline]
    pub(super) fn needs_look(&self) -> bool {
        self.channel.needs_look()
    }

    /// Notes that the kernel has ended a step. Returns it if the model has, too.
    fn end_in_kernel(&mut self, completion: OpCompletion) -> Option<OpCompletion> {
        let step = self.steps.get_mut(usize::try_from(completion.tag).ok()?)?;
        if matches!(step, Step::Kernel) {
            return Some(completion);
        }
        *step = Step::Model(completion);
        None
    }

    /// Notes that the model has ended a step. Returns it if the kernel has, too.
    fn end_in_model(&mut self, slot: usize) -> Option<OpCompletion> {
        let step = self.steps.get_mut(slot)?;
        match std::mem::replace(step, Step::Kernel) {
            Step::Model(completion) => Some(completion),
            Step::Both | Step::Kernel => None,
        }
    }

    /// Returns the steps that only the model has not ended.
    pub(super) fn into_ended(self) -> impl Iterator<Item = OpCompletion> {
        self.steps.into_iter().filter_map(|step| match step {
            Step::Model(completion) => Some(completion),
            Step::Both | Step::Kernel => None,
        })
    }
}

impl<const IS_MODELLED: bool> FileChannel<IS_MODELLED> {
    /// Hands the next step of a request to the model, and to the kernel. A small read of memory needs no
    /// kernel: it is done at once, as without a model.
    pub(super) fn issue_modelled(&mut self, context: &mut Context<'_>, mut request: FileRequest) {
        let op = request.scheduled_op(true);
        let (first, is_small) = (request.offset, request.left <= INLINE_READ);
        let read = match &request.io_method {
            IoMethod::Whole if is_small && op.kind == OpKind::Read => {
                self.file.read_memory(&request.buffers, first).ok()
            }
            _ => None,
        };
        let (ended, kernel_op) = match read.and_then(|read| i32::try_from(read).ok()) {
            Some(result) => (Some((result, std::mem::take(&mut request.buffers))), None),
            None => (None, Some(request.op(&self.file, self.buffered))),
        };
        let slot = self.keep(request);
        let Some(model) = &mut self.model else { return };
        if model.steps.len() <= slot {
            model.steps.resize_with(slot + 1, Step::default);
        }
        if let Some(step) = model.steps.get_mut(slot) {
            let completion = |(result, buffers)| {
                let buffers = Some(buffers);
                Step::Model(OpCompletion { tag: slot as u64, result, buffers })
            };
            *step = ended.map_or(Step::Both, completion);
        }
        let offset = model.offset.saturating_add(first);
        let command = Command { id: 0, kind: op.kind, offset, bytes: op.bytes };
        if let Some(after) = model.channel.submit(context, slot, command) {
            context.submit(&self.port, IoOp::Timer { after }, MODEL_TIMER);
        }
        if let Some(kernel_op) = kernel_op {
            context.submit(&self.port, kernel_op, slot as u64);
        }
    }

    /// Goes on with a step that the kernel has ended, once the model has, too. Without a model any more,
    /// the kernel alone decides.
    pub(super) fn end_modelled(&mut self, context: &mut Context<'_>, completion: OpCompletion) {
        let ended = match &mut self.model {
            Some(model) => model.end_in_kernel(completion),
            None => Some(completion),
        };
        ended.into_iter().for_each(|completion| self.step(context, completion));
    }

    /// Goes on with the steps that the model has ended.
    pub(super) fn look_at_model(&mut self, context: &mut Context<'_>) {
        let Some(model) = &mut self.model else { return };
        let mut ended = std::mem::take(&mut model.ended);
        if let Some(after) = model.channel.look(context, &mut ended) {
            context.submit(&self.port, IoOp::Timer { after }, MODEL_TIMER);
        }
        for slot in ended.drain(..) {
            let completion = self.model.as_mut().and_then(|model| model.end_in_model(slot));
            completion.into_iter().for_each(|completion| self.step(context, completion));
        }
        if let Some(model) = &mut self.model {
            model.ended = ended;
        }
    }

    pub(super) fn end_model_timer(&mut self) {
        if let Some(model) = &self.model {
            model.channel.end_timer();
        }
    }
}
