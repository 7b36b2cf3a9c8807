//! Tests of all stores and of exports.

mod conformance;
mod export;
