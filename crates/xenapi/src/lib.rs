//! The XenAPI as it is on the wire: classes, values, encodings.
//!
//! # Words
//! - **Class**, **field**, **message**: what the API consists of ([`table`]).
//! - **Record**: one object of a class, as a map from field to [`Value`].
//! - **Reference**: the name of a record on the wire, `OpaqueRef:` and a UUID; [`NULL_REF`] for
//!   none.
//! - **Type**: what a field, a parameter or a result may hold ([`table::Type`]).
//! - **Filter**: for which records an expression of a client is true ([`filter`]).
//! - **Call**, **answer**: the two bodies of the wire ([`envelope`]); a **body** that is neither is
//!   a [`BadBody`]. An answer carries an **outcome**: a result, or an [`ApiError`].
//!
//! # Encodings
//! A body is XML-RPC ([`xmlrpc`]) or JSON-RPC ([`jsonrpc`]). It is read once, within [`limits`],
//! into [`Value`]s, which [`coerce`] converts to the types of the table. It is written compactly,
//! because clients do not accept white space. A value that many clients ask for keeps its text
//! ([`Encoded`]), and bodies refer to it.
//!
//! # Design
//! **Readers and writers are our own.** Clients depend on bytes that libraries do not write: text
//! without a type, nothing between elements.
//!
//! **Classes are data** ([`table`]). Getters, setters, lists and constructors follow from them.
//!
//! # Invariants
//! Nothing here decides what a call does. Server and clients share these types and nothing else.
//!
//! # Client
//! [`client`] calls a server: blocking, without a runtime.
//!
//! # Errors
//! [`ApiError`] is what the API itself answers: a code and its parameters, in order. [`codes`] has
//! a function for each, [`error_text`] what it means. [`BadBody`] is for bodies that are not the
//! API at all.
//!
//! # How to test
//! Everything is a value: encode and compare with literal bytes, decode and compare with values.
//!
//! Source: the XenAPI of XenServer 7.0 and what its clients rely on.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod body;
pub mod client;
pub mod codes;
pub mod coerce;
mod date;
pub mod envelope;
mod error;
pub mod error_text;
pub mod filter;
pub mod jsonrpc;
pub mod limits;
pub mod table;
#[cfg(test)]
mod test_values;
mod value;
pub mod xmlrpc;

pub use date::Date;
pub use error::{ApiError, BadBody};
pub use value::{Encoded, NULL_REF, Value};
