//! Streams with one JSON object a line, in both directions, with a length limit for each line.

use std::io;

use serde::Serialize;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader};

/// Error of reading a line.
#[derive(Debug, thiserror::Error)]
pub enum LineError {
    /// The stream failed.
    #[error("the connection failed")]
    Io(#[from] io::Error),
    /// The peer closed the stream. The field is the length of an unfinished last line.
    #[error("the other side closed the connection ({unfinished_bytes} bytes into a line)")]
    Closed {
        /// Bytes of the unfinished line.
        unfinished_bytes: usize,
    },
    /// The line is longer than the limit.
    #[error("a line of more than {limit_bytes} bytes")]
    TooLong {
        /// Limit in bytes.
        limit_bytes: usize,
    },
    /// The line is not JSON.
    #[error("not JSON: {start:?}")]
    NotJson {
        /// First characters of the line.
        start: String,
        /// Error of the JSON parser.
        source: serde_json::Error,
    },
}

/// Longest part of an invalid line that an error quotes, in characters.
const QUOTED_CHARS: usize = 80;

/// Line reader over `R`. Dropping a pending call loses no data: the bytes read stay in the buffer.
#[derive(Debug)]
pub struct JsonLines<R> {
    reader: BufReader<R>,
    line: Vec<u8>,
    limit_bytes: usize,
}

impl<R: AsyncRead + Unpin> JsonLines<R> {
    /// Creates a reader for lines of at most `limit_bytes` bytes.
    pub fn new(reader: R, limit_bytes: usize) -> Self {
        Self { reader: BufReader::new(reader), line: Vec::new(), limit_bytes }
    }

    /// Returns the next line without its line break. Invalid UTF-8 is replaced.
    ///
    /// # Errors
    /// Every [`LineError`] except [`LineError::NotJson`].
    pub async fn next_text(&mut self) -> Result<String, LineError> {
        loop {
            let available = self.reader.fill_buf().await?;
            if available.is_empty() {
                return Err(LineError::Closed { unfinished_bytes: self.line.len() });
            }
            let (chunk, ended) = match available.iter().position(|b| *b == b'\n') {
                Some(end) => (available.get(..end).unwrap_or_default(), true),
                None => (available, false),
            };
            if self.line.len() + chunk.len() > self.limit_bytes {
                return Err(LineError::TooLong { limit_bytes: self.limit_bytes });
            }
            self.line.extend_from_slice(chunk);
            let used = chunk.len() + usize::from(ended);
            self.reader.consume(used);
            if ended {
                let line = std::mem::take(&mut self.line);
                let text = String::from_utf8_lossy(&line);
                return Ok(text.trim_end_matches('\r').to_owned());
            }
        }
    }

    /// Returns the next line as JSON.
    ///
    /// # Errors
    /// Every [`LineError`].
    pub async fn next_json(&mut self) -> Result<Value, LineError> {
        let text = self.next_text().await?;
        serde_json::from_str(&text).map_err(|source| LineError::NotJson {
            start: text.chars().take(QUOTED_CHARS).collect(),
            source,
        })
    }
}

/// Writes `value` as one line.
///
/// # Errors
/// The stream failed.
pub async fn write_json<W, T>(writer: &mut W, value: &T) -> io::Result<()>
where
    W: AsyncWrite + Unpin,
    T: Serialize,
{
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    writer.write_all(&line).await?;
    writer.flush().await
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn read_all(text: &[u8], limit: usize) -> (Vec<String>, LineError) {
        let mut lines = JsonLines::new(text, limit);
        let mut good = Vec::new();
        loop {
            match lines.next_text().await {
                Ok(line) => good.push(line),
                Err(error) => return (good, error),
            }
        }
    }

    #[tokio::test]
    async fn lines_end_at_newlines_and_lose_carriage_returns() {
        let (lines, end) = read_all(b"a\r\n\nbc\nd", 10).await;
        assert_eq!(lines, ["a", "", "bc"]);
        assert!(matches!(end, LineError::Closed { unfinished_bytes: 1 }), "{end}");
    }

    #[tokio::test]
    async fn a_line_at_the_bound_passes_and_one_over_it_does_not() {
        let (lines, end) = read_all(b"abcd\nabcde\n", 4).await;
        assert_eq!(lines, ["abcd"]);
        assert!(matches!(end, LineError::TooLong { limit_bytes: 4 }), "{end}");
    }

    #[tokio::test]
    async fn an_interrupted_read_goes_on_where_it_was() {
        let (mut tx, rx) = tokio::io::duplex(64);
        let mut lines = JsonLines::new(rx, 64);
        tx.write_all(b"{\"a\"").await.unwrap();
        // The first poll takes half of the line. Dropping the call must not lose it.
        let interrupted = tokio::select! {
            biased;
            _ = lines.next_json() => false,
            () = std::future::ready(()) => true,
        };
        assert!(interrupted);
        tx.write_all(b":1}\n").await.unwrap();
        assert_eq!(lines.next_json().await.unwrap(), serde_json::json!({"a":1}));
    }

    #[tokio::test]
    async fn what_is_not_json_is_quoted() {
        let mut lines = JsonLines::new(&b"hello\n"[..], 64);
        let error = lines.next_json().await.unwrap_err();
        assert!(error.to_string().contains("hello"), "{error}");
    }
}
