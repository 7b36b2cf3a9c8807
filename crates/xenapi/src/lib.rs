//! The XenAPI as it is on the wire: classes, values, encodings.
//!
//! # Words
//! - **Class**, **field**, **message**: what the API consists of ([`table`]).
//! - **Record**: one object of a class, as a map from field to [`Value`].
//! - **Reference**: how a record is named on the wire, `OpaqueRef:` and a UUID; [`NULL_REF`] for none.
//! - **Type**: what a field, a parameter or a result may hold ([`table::Type`]).
//!
//! # Invariants
//! Nothing here decides what a call does. Server and clients share these types and nothing else.
//!
//! # Errors
//! [`ApiError`] is what the API itself answers: a code and its parameters, in order.
//!
//! # How to test
//! Everything is a value: encode and compare with literal bytes, decode and compare with values.
//!
//! Source: the XenAPI of XenServer 7.0 and what its clients rely on.
#![forbid(unsafe_code)]

pub mod codes;
mod date;
mod error;
#[cfg(test)]
mod samples;
pub mod sentences;
pub mod table;
pub mod typed;
mod value;

pub use date::Date;
pub use error::ApiError;
pub use value::{Encoded, NULL_REF, Value};
