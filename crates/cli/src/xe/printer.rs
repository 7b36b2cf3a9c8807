//! Output of commands, for terminals and for scripts.

use std::iter;

/// A line of a record: the text before the colon, and the text after it.
pub(crate) type Line = (String, String);

/// Output of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Printed {
    /// Records.
    Records(Vec<Vec<Line>>),
    /// Records, each with a heading that scripts do not get.
    Headed(Vec<(String, Vec<Line>)>),
    /// Values, one a line.
    Values(Vec<String>),
    /// Text that scripts do not get.
    Text(String),
}

impl Printed {
    /// Creates empty output.
    pub(crate) fn nothing() -> Self {
        Self::Values(Vec::new())
    }

    /// Creates output of one value.
    pub(crate) fn value(value: impl Into<String>) -> Self {
        Self::Values(vec![value.into()])
    }

    /// Returns the text to print. The script format has one line with commas: the first value of
    /// each record, or all values.
    pub(crate) fn text(&self, minimal: bool) -> String {
        match (self, minimal) {
            (Self::Records(records), false) => records.iter().map(|one| record(one)).collect(),
            (Self::Records(records), true) => first_values(records.iter()),
            (Self::Headed(records), false) => {
                records.iter().map(|(above, one)| format!("{above}\n{}", record(one))).collect()
            }
            (Self::Headed(records), true) => first_values(records.iter().map(|(_, one)| one)),
            (Self::Values(values), false) => {
                values.iter().flat_map(|value| [value.as_str(), "\n"]).collect()
            }
            (Self::Values(values), true) => in_one_line(values.iter().map(String::as_str)),
            (Self::Text(text), false) => text.clone(),
            (Self::Text(_), true) => "\n".to_owned(),
        }
    }
}

/// Formats a record. The first name begins at the start of its line. The others are right-aligned
/// with the longest name, four columns in. Two empty lines follow.
fn record(lines: &[Line]) -> String {
    let width = lines.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0) + 4;
    let mut text = String::new();
    for (at, (name, value)) in lines.iter().enumerate() {
        let blanks = " ".repeat(width.saturating_sub(name.chars().count()));
        let parts = if at == 0 { [name.as_str(), &blanks] } else { [&blanks, name.as_str()] };
        text.extend(parts.into_iter().chain([": ", value, "\n"]));
    }
    text + "\n\n"
}

fn first_values<'a>(records: impl Iterator<Item = &'a Vec<Line>>) -> String {
    in_one_line(records.filter_map(|one| one.first()).map(|(_, value)| value.as_str()))
}

fn in_one_line<'a>(values: impl Iterator<Item = &'a str>) -> String {
    let escaped: Vec<String> = values
        .map(|value| {
            let mark = |c| matches!(c, ',' | '\\').then_some('\\');
            value.chars().flat_map(|c| mark(c).into_iter().chain(iter::once(c))).collect()
        })
        .collect();
    escaped.join(",") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records() -> Printed {
        let line = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        Printed::Records(vec![
            vec![
                line("uuid ( RO)", "6f1c"),
                line("name-label ( RW)", "web1"),
                line("power-state ( RO)", "running"),
            ],
            vec![line("uuid ( RO)", "a,b\\c")],
        ])
    }

    #[test]
    fn records_for_people() {
        assert_eq!(
            records().text(false),
            "uuid ( RO)           : 6f1c\n     name-label ( RW): web1\n    power-state ( RO): running\n\
             \n\nuuid ( RO)    : a,b\\c\n\n\n"
        );
        assert_eq!(Printed::Records(vec![]).text(false), "");
    }

    #[test]
    fn records_for_scripts() {
        assert_eq!(records().text(true), "6f1c,a\\,b\\\\c\n");
        assert_eq!(Printed::Records(vec![]).text(true), "\n");
        assert_eq!(Printed::Records(vec![vec![]]).text(true), "\n");
    }

    #[test]
    fn records_with_a_line_above() {
        let line = |value: &str| vec![("uuid ( RO)".to_owned(), value.to_owned())];
        let headed =
            Printed::Headed(vec![("CD 0 VBD:".into(), line("1")), ("CD 0 VDI:".into(), line("2"))]);
        let text = "CD 0 VBD:\nuuid ( RO)    : 1\n\n\nCD 0 VDI:\nuuid ( RO)    : 2\n\n\n";
        assert_eq!((headed.text(false).as_str(), headed.text(true).as_str()), (text, "1,2\n"));
    }

    #[test]
    fn values() {
        let values = Printed::Values(vec!["a".into(), "b,c".into()]);
        assert_eq!(
            (values.text(false).as_str(), values.text(true).as_str()),
            ("a\nb,c\n", "a,b\\,c\n")
        );
        assert_eq!(
            (Printed::nothing().text(false).as_str(), Printed::nothing().text(true).as_str()),
            ("", "\n")
        );
        let text = Printed::Text("one\ntwo\n".into());
        assert_eq!((text.text(false).as_str(), text.text(true).as_str()), ("one\ntwo\n", "\n"));
    }
}
