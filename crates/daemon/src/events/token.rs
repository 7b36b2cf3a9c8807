//! Tokens of clients.

use xenapi::{ApiError, Value, codes};

/// Digits of a number in a token. The fixed width makes tokens sort as texts like as numbers.
const DIGITS: usize = 20;

/// Generations up to which a client knows all messages and all other records. The text form is two
/// numbers of twenty digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Token {
    /// Generation up to which the client knows records.
    pub(super) records: u64,
    /// Generation up to which the client knows messages.
    pub(super) messages: u64,
}

impl Token {
    /// Creates the token of a client that knows everything up to this generation.
    pub(super) fn of(generation: u64) -> Self {
        Self { records: generation, messages: generation }
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
        let parts = text.split_once(',');
        let parts = parts.and_then(|(one, two)| Some((number(one)?, number(two)?)));
        let (records, messages) = parts.ok_or_else(|| codes::event_token(text))?;
        Ok(Self { records, messages })
    }

    /// Converts the token to a result value.
    pub fn value(self) -> Value {
        Value::text(format!("{:0DIGITS$},{:0DIGITS$}", self.records, self.messages))
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
            let [one, two] = [one, two].map(|(records, messages)| Token { records, messages });
            prop_assert_eq!(text(one).cmp(&text(two)), one.cmp(&two));
            prop_assert_eq!(Token::parse(&text(one)), Ok(one));
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
