//! Filter of `tracing` that counts repeated lines instead of writing them.

use std::fmt::{Debug, Write as _};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Filter};

use crate::line_queue::LineQueue;
use crate::repeats::{Repeats, Source, Verdict};

/// Fields whose values name the device or object that a line is about.
const DEVICE: [&str; 14] = [
    "disk", "nic", "port", "network", "tap", "socket", "path", "export", "vm", "sr", "vdi", "vif",
    "of", "id",
];

/// Filter in front of the queue.
#[derive(Debug)]
pub(crate) struct RepeatFilter {
    queue: LineQueue,
    repeats: Arc<Mutex<Repeats>>,
}

impl RepeatFilter {
    pub(crate) fn new(queue: LineQueue) -> Self {
        Self { queue, repeats: Arc::default() }
    }

    /// Returns the windows, whose summaries the writer writes.
    pub(crate) fn repeats(&self) -> Arc<Mutex<Repeats>> {
        Arc::clone(&self.repeats)
    }
}

impl<S: Subscriber> Filter<S> for RepeatFilter {
    fn enabled(&self, _: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        true
    }

    fn event_enabled(&self, event: &Event<'_>, _: &Context<'_, S>) -> bool {
        // The user chose the levels below `info` to see everything.
        if *event.metadata().level() > Level::INFO {
            return true;
        }
        let mut fields = Fields::default();
        event.record(&mut fields);
        let callsite = std::ptr::from_ref(event.metadata()).addr();
        let source = Source { callsite, device: fields.device };
        let line = fields.line.finish();
        let text = || format!("{} {}", event.metadata().level(), fields.text);
        let mut repeats = self.repeats.lock().unwrap_or_else(PoisonError::into_inner);
        let verdict = repeats.admit(source, line, Instant::now(), text);
        drop(repeats);
        if verdict == Verdict::CountFirst {
            self.queue.report_repetition();
        }
        verdict == Verdict::Write
    }
}

/// Values of an event.
#[derive(Default)]
struct Fields {
    device: u64,
    line: DefaultHasher,
    text: String,
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let name = field.name();
        let begin = self.text.len();
        // A string takes any text.
        let _ = match name {
            "message" => write!(self.text, "{value:?} "),
            _ => write!(self.text, "{name}={value:?} "),
        };
        let written = self.text.get(begin..).unwrap_or_default();
        written.hash(&mut self.line);
        if DEVICE.contains(&name) {
            let mut hasher = DefaultHasher::new();
            (self.device, written).hash(&mut hasher);
            self.device = hasher.finish();
        }
    }
}
