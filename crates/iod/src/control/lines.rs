//! Lines of bounded length.

use std::io::{self, BufRead, Read};

/// Result of reading a line.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Line {
    /// Complete line, without its newline.
    Whole(Vec<u8>),
    /// More bytes than a line may have, without a newline.
    TooLong,
    /// The other side has closed. Bytes after the last newline are dropped.
    End,
}

/// Reads up to the next newline, at most `max` bytes.
pub(crate) fn read(from: &mut impl BufRead, max: usize) -> io::Result<Line> {
    let mut bytes = Vec::new();
    let limit = u64::try_from(max).unwrap_or(u64::MAX).saturating_add(1);
    from.by_ref().take(limit).read_until(b'\n', &mut bytes)?;
    if bytes.pop_if(|last| *last == b'\n').is_some() {
        return Ok(Line::Whole(bytes));
    }
    Ok(if bytes.len() > max { Line::TooLong } else { Line::End })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_end_and_are_bounded() {
        let mut from: &[u8] = b"ab\n\nabc\nrest";
        let whole = |text: &str| Line::Whole(text.into());
        assert_eq!(read(&mut from, 3).unwrap(), whole("ab"));
        assert_eq!(read(&mut from, 3).unwrap(), whole(""));
        assert_eq!(read(&mut from, 3).unwrap(), whole("abc"));
        assert_eq!(read(&mut from, 4).unwrap(), Line::End);
        let mut from: &[u8] = b"abcd\n";
        assert_eq!(read(&mut from, 3).unwrap(), Line::TooLong);
    }
}
