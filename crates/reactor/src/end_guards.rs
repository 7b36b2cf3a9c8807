//! Values that outlive the last operation of a reactor.

use std::any::Any;
use std::cell::RefCell;
use std::rc::Rc;

/// Values that a reactor drops after it has ended and the kernel has completed its operations. A
/// poller that is dropped with operations in flight leaves here what their end must release.
#[derive(Clone, Debug, Default)]
pub struct EndGuards(Rc<RefCell<Vec<Box<dyn Any>>>>);

impl EndGuards {
    /// Keeps `value` until the kernel has completed all operations of the ended reactor.
    pub fn keep(&self, value: impl Any) {
        self.0.borrow_mut().push(Box::new(value));
    }
}
