//! Tokens of clients.

use xenapi::{ApiError, Value, codes};

/// Digits of a number in a token. The fixed width makes tokens sort as texts like as numbers.
const DIGITS: usize = 20;

/// Generations up to which a client knows all messages and all other records, and how far it is with
/// a large answer. The text form is two numbers of twenty digits with a comma. In the course of a
/// large answer it is six with plus signs, which sort before commas: such a token is lower than any
/// that its client gets when it knows all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token {
    /// Generation up to which the client knows records.
    pub(super) records: u64,
    /// Generation up to which the client knows messages.
    pub(super) messages: u64,
    /// Part of a large answer that the client knows.
    pub(super) part: Option<Part>,
}

/// Position within an answer that is too large for one call. The records of a database may all have one
/// generation, so the position is that of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    /// Generation up to which the client knows everything after the last part.
    pub(super) until: u64,
    /// Key of the last event that the client knows.
    pub(super) after: Position,
}

/// Key of an event in an answer: kind of change, generation, and order within that generation.
pub(super) type Position = (u64, u64, u64);

impl Token {
    /// Creates the token of a client that knows everything up to this generation.
    pub(super) fn of(generation: u64) -> Self {
        Self { records: generation, messages: generation, part: None }
    }

    /// Parses a token. An empty text is a client that knows nothing.
    ///
    /// # Errors
    /// `EVENT_FROM_TOKEN_PARSE_FAILURE` if the text is no token.
    pub fn parse(text: &str) -> Result<Self, ApiError> {
        if text.is_empty() {
            return Ok(Self::of(0));
        }
        let number = |text: &str| {
            let digits = text.len() == DIGITS && text.bytes().all(|byte| byte.is_ascii_digit());
            digits.then(|| text.parse().ok()).flatten()
        };
        let all = |sign| text.split(sign).map(number).collect::<Option<Vec<_>>>();
        let (whole, partial) = (all(',').unwrap_or_default(), all('+').unwrap_or_default());
        match (&*whole, &*partial) {
            (&[records, messages], _) => Ok(Self { records, messages, part: None }),
            (_, &[records, messages, until, kind, generation, order]) => {
                let part = Some(Part { until, after: (kind, generation, order) });
                Ok(Self { records, messages, part })
            }
            _ => Err(codes::event_token(text)),
        }
    }

    /// Converts the token to a result value.
    pub fn value(self) -> Value {
        let Self { records, messages, part } = self;
        let numbers = |numbers: &[u64], sign: &str| {
            let all: Vec<_> = numbers.iter().map(|one| format!("{one:0DIGITS$}")).collect();
            Value::text(all.join(sign))
        };
        match part {
            None => numbers(&[records, messages], ","),
            Some(Part { until, after: (kind, generation, order) }) => {
                numbers(&[records, messages, until, kind, generation, order], "+")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn text(token: Token) -> String {
        match token.value() {
            Value::Str(text) => text,
            other => panic!("{other:?}"),
        }
    }

    proptest! {
        #[test]
        fn tokens_compare_as_texts(one: (u64, u64), two: (u64, u64)) {
            let token = |(records, messages)| Token { records, messages, part: None };
            prop_assert_eq!(text(token(one)).cmp(&text(token(two))), one.cmp(&two));
            prop_assert_eq!(Token::parse(&text(token(one))), Ok(token(one)));
            let part = Some(Part { until: two.0, after: (two.1, one.0, one.1) });
            let partial = Token { part, ..token(one) };
            prop_assert_eq!(Token::parse(&text(partial)), Ok(partial));
            prop_assert!(text(partial) < text(token(one)));
            prop_assert!(one <= two || text(partial) > text(token(two)));
        }

        #[test]
        fn any_text_is_one_or_is_refused(any: String) {
            let _ = Token::parse(&any);
        }
    }

    #[test]
    fn what_is_none_is_refused() {
        assert_eq!(text(Token::of(7)), "00000000000000000007,00000000000000000007");
        assert_eq!(Token::parse(""), Ok(Token::of(0)));
        let nines = "99999999999999999999,00000000000000000000";
        for bad in ["7", "7,7", "00000000000000000007", ",", "+0000000000000000007,0", nines] {
            let error = Token::parse(bad).unwrap_err();
            assert_eq!(error.details(), ["EVENT_FROM_TOKEN_PARSE_FAILURE", bad]);
        }
    }
}
