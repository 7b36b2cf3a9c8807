//! Command line of a shell: its words, as far as they are typed.

/// Last word of a line, up to the cursor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LastWord {
    /// Text without quotes and escapes.
    pub(crate) text: String,
    /// True if the cursor is within quotes.
    pub(crate) is_quoted: bool,
}

/// Splits a line into words, as bash does without expansions. The last word may be incomplete or
/// empty.
pub(crate) fn words(line: &str) -> (Vec<String>, LastWord) {
    let (mut words, mut word) = (Vec::new(), None::<String>);
    let mut quote = None;
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        match (quote, c) {
            (Some(end), c) if c == end => quote = None,
            (Some('"'), '\\') | (None, '\\') => {
                word.get_or_insert_default().extend(chars.next());
            }
            (Some(_), c) => word.get_or_insert_default().push(c),
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, c) if c.is_whitespace() => words.extend(word.take()),
            (None, c) => word.get_or_insert_default().push(c),
        }
    }
    (words, LastWord { text: word.unwrap_or_default(), is_quoted: quote.is_some() })
}

/// Returns the part of a candidate that the shell puts in place of `current`, the last part of the
/// word that it regards as one. `None` if the candidate does not continue the word.
pub(crate) fn replacement(candidate: &str, last: &LastWord, current: &str) -> Option<String> {
    // bash breaks words at `=` and `:`. Right after one, this is the current part.
    let is_break = !current.is_empty() && current.chars().all(|c| matches!(c, '=' | ':'));
    let current = if is_break { String::new() } else { words(current).1.text };
    let before = last.text.strip_suffix(current.as_str()).unwrap_or_default();
    let rest = candidate.strip_prefix(before)?;
    Some(if last.is_quoted { rest.to_owned() } else { escaped(rest) })
}

/// Escapes what the shell would interpret.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_ascii_whitespace() || "\\'\"`$&|;<>()[]{}*?!#~".contains(c) {
            escaped.push('\\');
        }
        escaped.push(c);
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_split_as_the_shell_does() {
        for (line, words_of, last, is_quoted) in [
            ("xe vm-st", &["xe"][..], "vm-st", false),
            ("xe vm-start ", &["xe", "vm-start"], "", false),
            ("xe  vm-start\tvm=my\\ v", &["xe", "vm-start"], "vm=my v", false),
            ("xe a 'b c' vm=\"my v", &["xe", "a", "b c"], "vm=my v", true),
            ("xe vm='a\"b", &["xe"], "vm=a\"b", true),
            ("xe ''", &["xe"], "", false),
            ("", &[], "", false),
            ("xe \\", &["xe"], "", false),
        ] {
            let expected = LastWord { text: last.to_owned(), is_quoted };
            assert_eq!(words(line), (words_of.iter().map(|w| (*w).to_owned()).collect(), expected));
        }
    }

    #[test]
    fn the_shell_gets_the_part_that_it_replaces() {
        let last = |text: &str, is_quoted| LastWord { text: text.to_owned(), is_quoted };
        for (candidate, typed, quoted, current, part) in [
            ("vm-start", "vm-st", false, "vm-st", Some("vm-start")),
            ("vm=web", "vm=", false, "=", Some("web")),
            ("vm=my web", "vm=my w", false, "my\\ w", Some("my\\ web")),
            ("vm=my web", "vm=my w", true, "\"my w", Some("my web")),
            ("vm=a:bc", "vm=a:b", false, "b", Some("bc")),
            ("other-config:key=", "other-config:", false, ":", Some("key=")),
            ("params=uuid,name-label", "params=uuid,na", false, "uuid,na", Some("uuid,name-label")),
            // A shell that does not break words there.
            ("vm=a:bc", "vm=a:b", false, "vm=a:b", Some("vm=a:bc")),
            ("other", "vm=", false, "=", None),
        ] {
            let is = replacement(candidate, &last(typed, quoted), current);
            assert_eq!(is.as_deref(), part, "{typed}");
        }
    }
}
