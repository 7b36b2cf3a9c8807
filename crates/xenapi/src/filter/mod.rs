//! Expressions of `get_all_records_where`: for which records they are true.
//!
//! # Grammar
//! ```text
//! expression = operand { ("and" | "or") operand }
//! operand    = "not" expression | "true" | "false" | "(" expression ")" | value "=" value
//! value      = "field" text | text
//! text       = '"' any characters but '"' '"'
//! ```
//! `and` and `or` bind alike, from the left: `a or b and c` is `(a or b) and c`. A `not` takes all
//! that follows it up to the next closing parenthesis. Clients rely on neither and write
//! parentheses.
//!
//! # Comparing
//! Text is compared as it is. Whole numbers, moments, yes and no compare as text: `-5`, `true`. A
//! floating-point number equals each text of its value: `1`, `1.0`;
//! a set is `('a' 'b')`, a map `(('k' 'v'))`. Fields are also known by their old names, with two
//! underscores where a name was made of two: `name__label`.
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

/// Longest expression: one that names a thousand records by UUID fits.
pub const MAX_BYTES: usize = 64 << 10;
/// Most parentheses and `not`s inside each other; the parser's own depth.
pub const MAX_DEPTH: usize = 64;
/// Most comparisons: each is made for each record.
pub const MAX_COMPARISONS: usize = 1_024;

/// An expression about records of one class.
#[derive(Clone, Debug, PartialEq)]
pub struct Filter {
    /// Operands before their operators.
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
    /// Reads an expression about records of this class.
    ///
    /// # Errors
    /// [`BadFilter`]: the text is no expression, is too large, or names a field that the class
    /// does not have.
    pub fn parse(text: &str, class: &'static Class) -> Result<Self, BadFilter> {
        parse::parse(text, class).map(|steps| Self { steps })
    }
}

/// Text that is no expression.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{filter_problem} (at byte {at})")]
pub struct BadFilter {
    /// Where, in bytes from the beginning.
    pub at: usize,
    /// Why.
    pub filter_problem: FilterProblem,
}

/// Why text is no expression.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FilterProblem {
    /// It is too long.
    #[error("the expression is longer than {MAX_BYTES} bytes")]
    TooLong,
    /// It compares too often.
    #[error("the expression has more than {MAX_COMPARISONS} comparisons")]
    TooManyComparisons,
    /// It is nested too deep.
    #[error("the expression is nested deeper than {MAX_DEPTH}")]
    TooDeep,
    /// Text begins and does not end.
    #[error("a text begins with `\"` and does not end")]
    OpenText,
    /// Something else had to stand there.
    #[error("{0} is expected")]
    Expected(&'static str),
    /// The class has no such field.
    #[error("{class} has no field `{name}`")]
    NoField {
        /// The class.
        class: &'static str,
        /// The beginning of what stands there.
        name: String,
    },
}

impl From<BadFilter> for ApiError {
    fn from(bad: BadFilter) -> Self {
        codes::invalid_value("expr", bad.to_string())
    }
}
