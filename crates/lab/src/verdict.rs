//! Verdicts on bars, with their words, colours and exit codes.

use serde::{Deserialize, Serialize};

/// Verdict on a bar, or on all bars of a run. A worse verdict is greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The bar is met.
    Pass,
    /// The median misses the bar, and its spread is as large as its distance from 1.
    Undecided,
    /// The bar is missed, or has no figure.
    Fail,
}

impl Verdict {
    /// All verdicts, the worst first.
    pub const ALL: [Self; 3] = [Self::Fail, Self::Undecided, Self::Pass];

    /// Returns the word for reports.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Pass => "PASS",
            Self::Undecided => "UNDECIDED",
            Self::Fail => "FAIL",
        }
    }

    /// Returns the exit code of a run with this verdict.
    #[must_use]
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Pass => 0,
            Self::Fail => 3,
            Self::Undecided => 4,
        }
    }

    /// Returns the colour in pictures.
    pub(crate) fn colour(self) -> &'static str {
        match self {
            Self::Pass => "#1a7f37",
            Self::Undecided => "#9a6700",
            Self::Fail => "#cf222e",
        }
    }

    /// Returns the ANSI parameters of the colour on a terminal: bold green, yellow or red.
    fn ansi(self) -> &'static str {
        match self {
            Self::Pass => "1;32",
            Self::Undecided => "1;33",
            Self::Fail => "1;31",
        }
    }
}

/// Colours the verdict that begins a heading or a list item of a report, for a terminal.
#[must_use]
pub fn coloured(report: &str) -> String {
    report.split_inclusive('\n').map(coloured_line).collect()
}

fn coloured_line(line: &str) -> String {
    let start = if line.starts_with("# ") || line.starts_with("- ") { 2 } else { 0 };
    let (mark, rest) = line.split_at(start);
    let found = Verdict::ALL.into_iter().find_map(|verdict| {
        let rest = rest.strip_prefix(verdict.word())?;
        rest.starts_with([' ', ':']).then_some((verdict, rest))
    });
    match found {
        Some((verdict, rest)) => {
            format!("{mark}\x1b[{}m{}\x1b[0m{rest}", verdict.ansi(), verdict.word())
        }
        None => line.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_miss_is_worse_than_undecided_and_each_has_its_code_and_colour() {
        let worst = |all: &[Verdict]| all.iter().copied().max();
        use Verdict::{Fail, Pass, Undecided};
        assert_eq!(worst(&[Pass, Undecided, Pass]), Some(Undecided));
        assert_eq!(worst(&[Undecided, Fail, Pass]), Some(Fail));
        assert_eq!([Pass, Fail, Undecided].map(Verdict::exit_code), [0, 3, 4]);
        let words = Verdict::ALL.map(|v| serde_json::to_string(&v).unwrap());
        assert_eq!(words, ["\"fail\"", "\"undecided\"", "\"pass\""]);
    }

    #[test]
    fn only_the_verdict_of_a_line_is_coloured() {
        let report = "# FAIL: x (y)\n\n- UNDECIDED 0.9x: z\n- PASS 1x\nPASSING FAIL\n- FAILED";
        let expected = "# \x1b[1;31mFAIL\x1b[0m: x (y)\n\n- \x1b[1;33mUNDECIDED\x1b[0m 0.9x: z\n\
                        - \x1b[1;32mPASS\x1b[0m 1x\nPASSING FAIL\n- FAILED";
        assert_eq!(coloured(report), expected);
    }
}
