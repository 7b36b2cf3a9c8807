//! Error texts for users and error codes for callers.

use std::error::Error;

pub use error_causes::distinct_error_chain as error_chain;
use model::rpc::{RpcError, code};

/// Returns the error of a valid call that the host could not carry out.
pub(crate) fn failed(error: impl Error + 'static) -> RpcError {
    RpcError { code: code::FAILED, message: error_chain(&error) }
}
