//! Limits on the contents of a body.

use crate::error::BadBody;

/// Limits of one body. A value beyond them is rejected during parsing, before it is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Longest body in bytes.
    pub bytes: usize,
    /// Deepest value. A plain value has depth 1, and each set or map around it adds one.
    pub depth: u16,
    /// Most values, including sets, maps and records.
    pub values: u32,
}

impl Limits {
    /// Limits of a call. XenServer also accepts bodies of 300 KiB. The deepest parameter of the API
    /// has depth 4. 100,000 values take a few MiB of memory.
    pub const CALL: Self = Self { bytes: 300 << 10, depth: 64, values: 100_000 };
    /// Limits of a response. 15,000 disk records are 45 MiB of XML and a million values.
    pub const ANSWER: Self = Self { bytes: 256 << 20, depth: 64, values: 4_000_000 };

    /// Checks the length of the body.
    pub(crate) fn check_length(&self, body: &[u8]) -> Result<(), BadBody> {
        if body.len() > self.bytes {
            return Err(BadBody::TooLarge { limit: self.bytes });
        }
        Ok(())
    }
}

/// Remaining limits during the parsing of a body.
#[derive(Debug)]
pub(crate) struct Budget {
    limits: Limits,
    values: u32,
}

impl Budget {
    pub(crate) fn new(limits: &Limits) -> Self {
        Self { limits: *limits, values: 0 }
    }

    /// Counts a value at depth `depth`. `Err` names the exceeded limit.
    pub(crate) fn enter(&mut self, depth: u16) -> Result<(), String> {
        if depth > self.limits.depth {
            return Err(format!("values within values deeper than {}", self.limits.depth));
        }
        if self.values >= self.limits.values {
            return Err(format!("more than {} values: ask for less at once", self.limits.values));
        }
        self.values += 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_itself_is_allowed() {
        let mut budget = Budget::new(&Limits { bytes: 1, depth: 2, values: 3 });
        for depth in [1, 2, 1] {
            assert_eq!(budget.enter(depth), Ok(()));
        }
        assert!(budget.enter(1).unwrap_err().contains("more than 3 values"));
        assert!(Budget::new(&Limits::CALL).enter(65).unwrap_err().contains("deeper than 64"));
    }
}
