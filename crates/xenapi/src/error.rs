//! What the API answers instead of a result.

use std::borrow::Cow;
use std::fmt;

/// A failure as clients see it: `[code, params..]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiError {
    /// For example `VM_BAD_POWER_STATE`.
    pub code: Cow<'static, str>,
    /// What it is about, in the order that the code has.
    pub params: Vec<String>,
}

impl ApiError {
    /// A failure with this code.
    pub fn new(
        code: impl Into<Cow<'static, str>>,
        params: impl IntoIterator<Item = impl Into<String>>,
    ) -> Self {
        Self { code: code.into(), params: params.into_iter().map(Into::into).collect() }
    }

    /// The code, then the parameters: `ErrorDescription` on the wire.
    pub fn details(&self) -> Vec<String> {
        let code = self.code.clone().into_owned();
        std::iter::once(code).chain(self.params.iter().cloned()).collect()
    }
}

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.code)?;
        self.params.iter().try_for_each(|param| write!(f, ", {param}"))
    }
}

impl std::error::Error for ApiError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_code_comes_first() {
        let error = ApiError::new("UUID_INVALID", ["VM", "x"]);
        assert_eq!(error.details(), ["UUID_INVALID", "VM", "x"]);
        assert_eq!(error.to_string(), "UUID_INVALID, VM, x");
        assert_eq!(ApiError::new("INTERNAL_ERROR", [""; 0]).details(), ["INTERNAL_ERROR"]);
    }
}
