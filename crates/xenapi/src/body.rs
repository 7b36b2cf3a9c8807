//! Response or request body in pieces.

use std::mem;
use std::sync::Arc;

use crate::value::Encoded;

/// Encoding of values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// XML-RPC.
    Xml,
    /// JSON, in both versions of JSON-RPC.
    Json,
}

/// Body to send. It refers to cached texts of values and does not copy them.
#[derive(Clone, Debug)]
pub struct Body {
    pieces: Vec<Piece>,
}

/// Part of a body.
#[derive(Clone, Debug)]
pub enum Piece {
    /// Text of this body alone.
    Text(String),
    /// Value with a cached text, in this encoding.
    Kept(Arc<Encoded>, Encoding),
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        self.text().as_bytes()
    }
}

impl Piece {
    fn text(&self) -> &str {
        match self {
            Self::Text(text) => text,
            Self::Kept(encoded, Encoding::Xml) => encoded.xml(),
            Self::Kept(encoded, Encoding::Json) => encoded.json(),
        }
    }
}

impl Body {
    /// Returns the length in bytes.
    pub fn bytes(&self) -> usize {
        self.pieces.iter().map(|piece| piece.text().len()).sum()
    }

    /// Returns the pieces, to be sent in order.
    pub fn into_pieces(self) -> Vec<Piece> {
        self.pieces
    }

    /// Returns the whole body as one text.
    pub fn to_text(&self) -> String {
        let mut text = String::with_capacity(self.bytes());
        self.pieces.iter().for_each(|piece| text.push_str(piece.text()));
        text
    }
}

/// Destination of a writer.
pub(crate) trait Sink {
    /// Returns the text so far. The caller appends to it.
    fn buffer(&mut self) -> &mut String;
    /// Appends a value whose text is cached.
    fn append_cached(&mut self, encoded: &Arc<Encoded>, encoding: Encoding);
}

/// Appends to a single text. Copies cached texts.
impl Sink for String {
    fn buffer(&mut self) -> &mut String {
        self
    }

    fn append_cached(&mut self, encoded: &Arc<Encoded>, encoding: Encoding) {
        self.push_str(match encoding {
            Encoding::Xml => encoded.xml(),
            Encoding::Json => encoded.json(),
        });
    }
}

/// Collector of the pieces of a [`Body`].
#[derive(Debug, Default)]
pub(crate) struct Pieces {
    pieces: Vec<Piece>,
    text: String,
}

impl Sink for Pieces {
    fn buffer(&mut self) -> &mut String {
        &mut self.text
    }

    fn append_cached(&mut self, encoded: &Arc<Encoded>, encoding: Encoding) {
        self.flush();
        self.pieces.push(Piece::Kept(Arc::clone(encoded), encoding));
    }
}

impl Pieces {
    pub(crate) fn body(mut self) -> Body {
        self.flush();
        Body { pieces: self.pieces }
    }

    fn flush(&mut self) {
        if !self.text.is_empty() {
            self.pieces.push(Piece::Text(mem::take(&mut self.text)));
        }
    }
}

/// Formats a number for both encodings, without an exponent, which XML-RPC does not allow. NaN and
/// infinities have the names that Java, JavaScript and Python read.
pub(crate) fn float(number: f64) -> String {
    if number.is_nan() {
        return "NaN".to_owned();
    }
    if number.is_infinite() {
        return if number > 0.0 { "Infinity" } else { "-Infinity" }.to_owned();
    }
    let text = number.to_string();
    if text.contains('.') { text } else { text + ".0" }
}

/// Returns whether a text has a byte that matches. Checks all bytes, several at a time, because
/// most texts have no match.
pub(crate) fn has(text: &str, such: impl Fn(u8) -> bool) -> bool {
    text.bytes().fold(false, |any, byte| any | such(byte))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Value;

    #[test]
    fn a_kept_value_is_not_copied() {
        let kept = Encoded::new(Value::text("kept"));
        let mut pieces = Pieces::default();
        pieces.buffer().push_str("before ");
        pieces.append_cached(&kept, Encoding::Json);
        pieces.append_cached(&kept, Encoding::Xml);
        pieces.buffer().push_str(" after");
        let body = pieces.body();
        assert_eq!(body.to_text(), "before \"kept\"<value>kept</value> after");
        assert_eq!(body.bytes(), body.to_text().len());
        let pieces = body.into_pieces();
        assert_eq!(pieces.len(), 4);
        assert!(
            matches!(&pieces[1], Piece::Kept(same, Encoding::Json) if Arc::ptr_eq(same, &kept))
        );
        assert_eq!(pieces[2].as_ref().as_ptr(), kept.xml().as_ptr());
    }

    #[test]
    fn numbers() {
        for (number, text) in [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1.0, "1.0"),
            (0.1, "0.1"),
            (-2.5, "-2.5"),
            (1e21, "1000000000000000000000.0"),
            (f64::NAN, "NaN"),
            (f64::INFINITY, "Infinity"),
            (f64::NEG_INFINITY, "-Infinity"),
        ] {
            assert_eq!(float(number), text);
        }
        assert!(!float(5e-324).contains('e'));
    }
}
