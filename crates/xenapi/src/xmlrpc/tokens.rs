//! Tokenizer of a body: elements of XML-RPC, and text.

use std::borrow::Cow;

use quick_xml::Reader;
use quick_xml::events::{BytesRef, Event};

use super::write::is_allowed;
use crate::error::BadBody;

/// Longest part of a body in an error, in characters.
const QUOTED_CHARS: usize = 40;

/// Element of XML-RPC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tag {
    MethodCall,
    MethodName,
    MethodResponse,
    Params,
    Param,
    Value,
    Str,
    Int,
    Bool,
    Double,
    Date,
    Nil,
    Struct,
    Member,
    Name,
    Array,
    Data,
}

impl Tag {
    fn of(name: &str) -> Option<Self> {
        Some(match name {
            "methodCall" => Self::MethodCall,
            "methodName" => Self::MethodName,
            "methodResponse" => Self::MethodResponse,
            "params" => Self::Params,
            "param" => Self::Param,
            "value" => Self::Value,
            "string" => Self::Str,
            "int" | "i4" | "i8" => Self::Int,
            "boolean" => Self::Bool,
            "double" => Self::Double,
            "dateTime.iso8601" => Self::Date,
            "nil" => Self::Nil,
            "struct" => Self::Struct,
            "member" => Self::Member,
            "name" => Self::Name,
            "array" => Self::Array,
            "data" => Self::Data,
            _ => return None,
        })
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Token<'a> {
    Open(Tag),
    Close,
    Text(Cow<'a, str>),
    End,
}

/// Reader of tokens, one after the other.
pub(super) struct Tokens<'a> {
    reader: Reader<&'a [u8]>,
    /// Token that [`next_text`](Self::next_text) has put back.
    ahead: Option<Token<'a>>,
}

impl<'a> Tokens<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        let mut reader = Reader::from_str(text);
        reader.config_mut().expand_empty_elements = true;
        Self { reader, ahead: None }
    }

    /// Removes and returns the next token.
    pub(super) fn next(&mut self) -> Result<Token<'a>, BadBody> {
        match self.ahead.take() {
            Some(token) => Ok(token),
            None => self.read(),
        }
    }

    /// Returns the next token if it is text. Otherwise keeps it.
    fn next_text(&mut self) -> Result<Option<Cow<'a, str>>, BadBody> {
        match self.next()? {
            Token::Text(text) => Ok(Some(text)),
            other => {
                self.ahead = Some(other);
                Ok(None)
            }
        }
    }

    /// Returns all text up to the next tag.
    pub(super) fn text(&mut self) -> Result<Cow<'a, str>, BadBody> {
        let mut whole = self.next_text()?.unwrap_or_default();
        while let Some(more) = self.next_text()? {
            whole.to_mut().push_str(&more);
        }
        match whole.chars().find(|c| !is_allowed(*c)) {
            Some(c) => Err(self.error(format!("U+{:04X} is not allowed in XML", u32::from(c)))),
            None => Ok(whole),
        }
    }

    /// Returns the next token after optional white space.
    pub(super) fn next_tag(&mut self) -> Result<Token<'a>, BadBody> {
        let text = self.text()?;
        self.blank(&text)?;
        self.next()
    }

    /// Expects the start of an element.
    pub(super) fn open(&mut self, tag: Tag) -> Result<(), BadBody> {
        match self.next_tag()? {
            Token::Open(found) if found == tag => Ok(()),
            other => Err(self.unexpected(&other, tag)),
        }
    }

    /// Expects the end of an element.
    pub(super) fn close(&mut self) -> Result<(), BadBody> {
        match self.next_tag()? {
            Token::Close => Ok(()),
            Token::End => Err(self.error("the document ends too early".to_owned())),
            other => Err(self.error(format!("{other:?} where an element should end"))),
        }
    }

    /// Reads the rest of an element that contains only text.
    pub(super) fn text_and_close(&mut self) -> Result<Cow<'a, str>, BadBody> {
        let text = self.text()?;
        self.close()?;
        Ok(text)
    }

    /// Rejects text other than white space.
    pub(super) fn blank(&self, text: &str) -> Result<(), BadBody> {
        if text.trim_ascii().is_empty() {
            return Ok(());
        }
        Err(self.error(format!("text between elements: {:?}", quoted(text))))
    }

    pub(super) fn unexpected(&self, token: &Token<'_>, wanted: Tag) -> BadBody {
        self.error(match token {
            Token::End => "the document ends too early".to_owned(),
            other => format!("{other:?} where {wanted:?} should begin"),
        })
    }

    pub(super) fn error(&self, what: String) -> BadBody {
        BadBody::malformed(format_args!("at byte {}: {what}", self.reader.buffer_position()))
    }

    fn read(&mut self) -> Result<Token<'a>, BadBody> {
        loop {
            let event = self.reader.read_event();
            let event = event.map_err(|error| self.error(error.to_string()))?;
            return Ok(match event {
                Event::Start(start) | Event::Empty(start) => {
                    let name = start.name();
                    let tag = Tag::of(name.0);
                    let unknown = || format!("unknown element {:?}", quoted(name.0));
                    Token::Open(tag.ok_or_else(|| self.error(unknown()))?)
                }
                Event::End(_) => Token::Close,
                Event::Text(text) => Token::Text(text.xml10_content()),
                Event::CData(text) => Token::Text(text.xml10_content()),
                Event::GeneralRef(reference) => Token::Text(self.character(&reference)?.into()),
                Event::Comment(_) | Event::Decl(_) => continue,
                Event::PI(_) => return Err(self.error("a processing instruction".to_owned())),
                Event::DocType(_) => return Err(self.error("a document type".to_owned())),
                Event::Eof => Token::End,
            });
        }
    }

    /// Returns the character of a reference: by number, or one of the five predefined XML entities.
    fn character(&self, reference: &BytesRef<'_>) -> Result<String, BadBody> {
        let named = match reference.as_ref() {
            "lt" => Some('<'),
            "gt" => Some('>'),
            "amp" => Some('&'),
            "apos" => Some('\''),
            "quot" => Some('"'),
            _ => reference.resolve_char_ref().ok().flatten(),
        };
        let unknown = || self.error(format!("unknown reference {:?}", quoted(reference)));
        named.map(String::from).ok_or_else(unknown)
    }
}

/// Returns the start of a text, for an error.
fn quoted(text: &str) -> String {
    text.chars().take(QUOTED_CHARS).collect()
}
