//! Parser from text to steps.

use super::{BadFilter, FilterProblem, MAX_BYTES, MAX_COMPARISONS, MAX_DEPTH, Step, Term};
use crate::table::Class;

/// Longest part of an unknown name in an error, in characters.
const SHOWN_CHARS: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token<'a> {
    Open,
    Close,
    Equal,
    Word(&'a str),
    Text(&'a str),
    End,
}

struct Parser<'a> {
    text: &'a str,
    /// Position of the unparsed rest.
    at: usize,
    class: &'static Class,
    steps: Vec<Step>,
    comparisons: usize,
}

pub(super) fn parse(text: &str, class: &'static Class) -> Result<Vec<Step>, BadFilter> {
    if text.len() > MAX_BYTES {
        return Err(BadFilter { at: MAX_BYTES, filter_problem: FilterProblem::TooLong });
    }
    let mut parser = Parser { text, at: 0, class, steps: Vec::new(), comparisons: 0 };
    parser.expression(0)?;
    match parser.next()? {
        (Token::End, _) => Ok(parser.steps),
        (_, at) => Err(expected(at, "`and`, `or` or the end")),
    }
}

fn expected(at: usize, what: &'static str) -> BadFilter {
    BadFilter { at, filter_problem: FilterProblem::Expected(what) }
}

impl<'a> Parser<'a> {
    fn expression(&mut self, depth: usize) -> Result<(), BadFilter> {
        if depth > MAX_DEPTH {
            return Err(BadFilter { at: self.at, filter_problem: FilterProblem::TooDeep });
        }
        self.operand(depth)?;
        loop {
            let before = self.at;
            let step = match self.next()?.0 {
                Token::Word("and") => Step::And,
                Token::Word("or") => Step::Or,
                _ => {
                    self.at = before;
                    return Ok(());
                }
            };
            self.operand(depth)?;
            self.steps.push(step);
        }
    }

    fn operand(&mut self, depth: usize) -> Result<(), BadFilter> {
        let before = self.at;
        match self.next()? {
            (Token::Word("not"), _) => {
                self.expression(depth + 1)?;
                self.steps.push(Step::Not);
            }
            (Token::Word("true"), _) => self.steps.push(Step::Constant(true)),
            (Token::Word("false"), _) => self.steps.push(Step::Constant(false)),
            (Token::Open, _) => {
                self.expression(depth + 1)?;
                match self.next()? {
                    (Token::Close, _) => {}
                    (_, at) => return Err(expected(at, "`and`, `or` or `)`")),
                }
            }
            _ => {
                self.at = before;
                self.comparison()?;
            }
        }
        Ok(())
    }

    fn comparison(&mut self) -> Result<(), BadFilter> {
        let left = self.value()?;
        match self.next()? {
            (Token::Equal, _) => {}
            (_, at) => return Err(expected(at, "`=`")),
        }
        let right = self.value()?;
        self.comparisons += 1;
        if self.comparisons > MAX_COMPARISONS {
            return Err(BadFilter {
                at: self.at,
                filter_problem: FilterProblem::TooManyComparisons,
            });
        }
        self.steps.push(Step::Equal(left, right));
        Ok(())
    }

    fn value(&mut self) -> Result<Term, BadFilter> {
        match self.next()? {
            (Token::Text(text), _) => Ok(Term::Text(text.to_owned())),
            (Token::Word("field"), _) => match self.next()? {
                (Token::Text(name), at) => self.field(name, at),
                (_, at) => Err(expected(at, "the name of a field, in double quotes,")),
            },
            (_, at) => Err(expected(at, "`field`, `not`, `true`, `false`, `(` or a text")),
        }
    }

    fn field(&self, name: &str, at: usize) -> Result<Term, BadFilter> {
        let known = self.class.field(name).or_else(|| self.class.field(&name.replace("__", "_")));
        known.map(|(ix, _)| Term::Field(ix)).ok_or_else(|| {
            let name = name.chars().take(SHOWN_CHARS).collect();
            BadFilter {
                at,
                filter_problem: FilterProblem::NoField { class: self.class.name, name },
            }
        })
    }

    /// Returns the next token and its position.
    fn next(&mut self) -> Result<(Token<'a>, usize), BadFilter> {
        let rest = self.text.get(self.at..).unwrap_or_default();
        let blanks = rest.len() - rest.trim_start_matches([' ', '\t', '\n', '\r']).len();
        let at = self.at + blanks;
        let rest = rest.get(blanks..).unwrap_or_default();
        let (token, length) = match rest.chars().next() {
            None => (Token::End, 0),
            Some('(') => (Token::Open, 1),
            Some(')') => (Token::Close, 1),
            Some('=') => (Token::Equal, 1),
            Some('"') => {
                let inside = rest.get(1..).unwrap_or_default();
                let (text, _) = inside
                    .split_once('"')
                    .ok_or(BadFilter { at, filter_problem: FilterProblem::OpenText })?;
                (Token::Text(text), text.len() + 2)
            }
            Some(_) => {
                let word = rest.split(|letter: char| !letter.is_ascii_alphabetic()).next();
                let word = word.unwrap_or_default();
                (Token::Word(word), word.len())
            }
        };
        self.at = at + length;
        Ok((token, at))
    }
}
