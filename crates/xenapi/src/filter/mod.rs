//! Expressions of `get_all_records_where`.
//!
//! # Grammar
//! ```text
//! expression = operand { ("and" | "or") operand }
//! operand    = "not" expression | "true" | "false" | "(" expression ")" | value "=" value
//! value      = "field" text | text
//! text       = '"' any characters but '"' '"'
//! ```
//! `and` and `or` have the same precedence and associate to the left: `a or b and c` is
//! `(a or b) and c`. A `not` applies to everything up to the next closing parenthesis. Clients
//! rely on neither and write parentheses.
//!
//! # Comparing
//! Text compares unchanged. Whole numbers, dates and booleans compare as text: `-5`, `true`. A
//! floating-point number equals each text of its value: `1`, `1.0`. A set is `('a' 'b')`, and a map
//! is `(('k' 'v'))`. Fields also have their old names, with two underscores in names that once had
//! two parts: `name__label`.
//!
//! # Limits
//! [`MAX_BYTES`], [`MAX_DEPTH`], [`MAX_COMPARISONS`]. Evaluation needs no recursion.

mod eval;
mod parse;
#[cfg(test)]
mod tests;

use crate::ApiError;
use crate::codes;
use crate::table::{Class, FieldIx};

/// Longest expression in bytes. An expression with a thousand UUIDs fits.
pub const MAX_BYTES: usize = 64 << 10;
/// Deepest nesting of parentheses and `not`, which is also the parser's recursion depth.
pub const MAX_DEPTH: usize = 64;
/// Most comparisons, because each is evaluated for each record.
pub const MAX_COMPARISONS: usize = 1_024;

/// Expression about records of one class.
#[derive(Clone, Debug, PartialEq)]
pub struct Filter {
    /// Steps in postfix order.
    steps: Vec<Step>,
}

#[derive(Clone, Debug, PartialEq)]
enum Step {
    Constant(bool),
    Equal(Term, Term),
    Not,
    And,
    Or,
}

#[derive(Clone, Debug, PartialEq)]
enum Term {
    Field(FieldIx),
    Text(String),
}

impl Filter {
    /// Parses an expression about records of this class.
    ///
    /// # Errors
    /// [`BadFilter`]: the text is no expression, is too large, or names an unknown field.
    pub fn parse(text: &str, class: &'static Class) -> Result<Self, BadFilter> {
        parse::parse(text, class).map(|steps| Self { steps })
    }
}

/// Error of text that is no expression.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{filter_problem} (at byte {at})")]
pub struct BadFilter {
    /// Position in bytes from the start.
    pub at: usize,
    /// Problem at this position.
    pub filter_problem: FilterProblem,
}

/// Problem of an expression.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FilterProblem {
    /// The text is too long.
    #[error("the expression is longer than {MAX_BYTES} bytes")]
    TooLong,
    /// There are too many comparisons.
    #[error("the expression has more than {MAX_COMPARISONS} comparisons")]
    TooManyComparisons,
    /// The nesting is too deep.
    #[error("the expression is nested deeper than {MAX_DEPTH}")]
    TooDeep,
    /// A quoted text has no end.
    #[error("a text begins with `\"` and does not end")]
    OpenText,
    /// The expression must continue with this.
    #[error("{0} is expected")]
    Expected(&'static str),
    /// The class has no such field.
    #[error("{class} has no field `{name}`")]
    NoField {
        /// Name of the class.
        class: &'static str,
        /// Start of the unknown name.
        name: String,
    },
}

impl From<BadFilter> for ApiError {
    fn from(bad: BadFilter) -> Self {
        codes::invalid_value("expr", bad.to_string())
    }
}
