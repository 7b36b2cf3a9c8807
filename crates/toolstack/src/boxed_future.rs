//! Futures of traits whose implementation is chosen when the daemon starts.

use std::pin::Pin;

/// What an `async fn` of a trait object returns.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;
