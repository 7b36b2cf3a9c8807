//! Boxed futures, for traits whose implementation is chosen when the daemon starts.

use std::pin::Pin;

/// Future that a method of a trait object returns.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;
