//! Parser from elements to values.

use std::collections::BTreeMap;

use super::tokens::{Tag, Token, Tokens};
use crate::date::Date;
use crate::error::BadBody;
use crate::limits::{Budget, Limits};
use crate::value::Value;

/// Parses a document of one `value` element.
pub(super) fn lone_value(text: &str, limits: &Limits) -> Result<Value, BadBody> {
    let mut values = Values::new(text, limits, Unreadable::Malformed)?;
    values.tokens.open(Tag::Value)?;
    let value = values.value(1)?;
    values.end()?;
    Ok(value)
}

/// Reader of values within the limits.
pub(super) struct Values<'a> {
    pub(super) tokens: Tokens<'a>,
    budget: Budget,
    unreadable: Unreadable,
}

/// Reading of a number, boolean or date whose text is none, such as the date `111T0:0:0`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Unreadable {
    /// The document is malformed.
    Malformed,
    /// The value is null, which no type accepts. So a call that needs the value fails with
    /// `FIELD_TYPE_ERROR`, and a call that ignores it does not fail. Some clients send whole
    /// records with dates that were never set.
    Null,
}

impl<'a> Values<'a> {
    pub(super) fn new(
        text: &'a str,
        limits: &Limits,
        unreadable: Unreadable,
    ) -> Result<Self, BadBody> {
        limits.check_length(text.as_bytes())?;
        Ok(Self { tokens: Tokens::new(text), budget: Budget::new(limits), unreadable })
    }

    /// Expects the end of the document.
    pub(super) fn end(&mut self) -> Result<(), BadBody> {
        match self.tokens.next_tag()? {
            Token::End => Ok(()),
            _ => Err(self.tokens.error("more than one document".to_owned())),
        }
    }

    /// Reads the rest of a `value` element at depth `depth`.
    pub(super) fn value(&mut self, depth: u16) -> Result<Value, BadBody> {
        self.budget.enter(depth).map_err(|what| self.tokens.error(what))?;
        let text = self.tokens.text()?;
        match self.tokens.next()? {
            Token::Close => Ok(Value::Str(text.into_owned())),
            Token::Open(tag) => {
                self.tokens.blank(&text)?;
                let value = self.typed(tag, depth)?;
                self.tokens.close()?;
                Ok(value)
            }
            other => Err(self.tokens.unexpected(&other, Tag::Value)),
        }
    }

    /// Reads the rest of an element that names the type.
    fn typed(&mut self, tag: Tag, depth: u16) -> Result<Value, BadBody> {
        match tag {
            Tag::Str => Ok(Value::Str(self.tokens.text_and_close()?.into_owned())),
            Tag::Int => self.scalar(tag, |text| text.parse().ok().map(Value::Int)),
            Tag::Double => self.scalar(tag, |text| text.parse().ok().map(Value::Float)),
            Tag::Date => self.scalar(tag, |text| Date::parse(text).map(Value::Date)),
            Tag::Bool => self.scalar(tag, |text| match text {
                "1" | "true" => Some(Value::Bool(true)),
                "0" | "false" => Some(Value::Bool(false)),
                _ => None,
            }),
            Tag::Nil => self.scalar(tag, |text| text.is_empty().then_some(Value::Null)),
            Tag::Struct => self.members(depth).map(Value::Map),
            Tag::Array => {
                self.tokens.open(Tag::Data)?;
                let values = self.list(Tag::Value, |this| this.value(depth + 1))?;
                self.tokens.close()?;
                Ok(Value::Set(values))
            }
            other => Err(self.tokens.error(format!("{other:?} is not a type of value"))),
        }
    }

    fn scalar(
        &mut self,
        tag: Tag,
        read: impl FnOnce(&str) -> Option<Value>,
    ) -> Result<Value, BadBody> {
        let text = self.tokens.text_and_close()?;
        match (read(text.trim_ascii()), self.unreadable) {
            (Some(value), _) => Ok(value),
            (None, Unreadable::Null) => Ok(Value::Null),
            (None, Unreadable::Malformed) => {
                Err(self.tokens.error(format!("invalid content of {tag:?}")))
            }
        }
    }

    fn members(&mut self, depth: u16) -> Result<BTreeMap<String, Value>, BadBody> {
        let mut members = BTreeMap::new();
        self.list(Tag::Member, |this| {
            this.tokens.open(Tag::Name)?;
            let name = this.tokens.text_and_close()?.into_owned();
            this.tokens.open(Tag::Value)?;
            let value = this.value(depth + 1)?;
            this.tokens.close()?;
            match members.insert(name, value) {
                None => Ok(()),
                Some(_) => Err(this.tokens.error("two members of one name".to_owned())),
            }
        })?;
        Ok(members)
    }

    /// Reads all `tag` elements up to the end of their parent. `read` reads the rest of one,
    /// including its end.
    pub(super) fn list<T>(
        &mut self,
        tag: Tag,
        mut read: impl FnMut(&mut Self) -> Result<T, BadBody>,
    ) -> Result<Vec<T>, BadBody> {
        let mut all = Vec::new();
        loop {
            match self.tokens.next_tag()? {
                Token::Close => return Ok(all),
                Token::Open(found) if found == tag => all.push(read(self)?),
                other => return Err(self.tokens.unexpected(&other, tag)),
            }
        }
    }
}
