//! What every store does, and what exports hold.

mod conformance;
mod export;
