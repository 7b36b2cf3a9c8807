//! Parameters of a command: names and values.

use std::collections::BTreeMap;

use crate::error::XeError;
use crate::parse;

/// Parameters of the program itself, which select no objects.
pub(crate) const STANDARD: [&str; 10] = [
    "server",
    "password",
    "port",
    "username",
    "minimal",
    "force",
    "multiple",
    "all",
    "message-priority",
    "trace",
];

/// Names and values in the order of the command line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Params(Vec<(String, String)>);

impl Params {
    pub(crate) fn new(pairs: Vec<(String, String)>) -> Self {
        Self(pairs)
    }

    /// Returns the first value of this name.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// Returns the first value of this name.
    ///
    /// # Errors
    /// There is none.
    pub(crate) fn required(&self, name: &str) -> Result<&str, XeError> {
        self.get(name).ok_or_else(|| XeError::missing(name))
    }

    /// Returns a boolean; false if it is absent.
    pub(crate) fn flag(&self, name: &str) -> Result<bool, XeError> {
        self.flag_or(name, false)
    }

    /// Returns a boolean; `otherwise` if it is absent.
    pub(crate) fn flag_or(&self, name: &str, otherwise: bool) -> Result<bool, XeError> {
        let Some(text) = self.get(name) else { return Ok(otherwise) };
        parse::flag(text)
            .ok_or_else(|| XeError::error(format!("'{name}' is true or false, and not '{text}'")))
    }

    /// Returns a required size in bytes.
    pub(crate) fn size(&self, name: &str) -> Result<i64, XeError> {
        let text = self.required(name)?;
        parse::size(text).ok_or_else(|| {
            let units = "a number, with KiB, MiB, GiB or TiB or without";
            XeError::error(format!("'{name}' is {units}, and not '{text}'"))
        })
    }

    /// Returns a required integer.
    pub(crate) fn int(&self, name: &str) -> Result<i64, XeError> {
        let text = self.required(name)?;
        text.parse()
            .map_err(|_| XeError::error(format!("'{name}' is a whole number, and not '{text}'")))
    }

    /// Returns the members of a map, from `name:key=value` or the old form `name-key=value`.
    pub(crate) fn map(&self, name: &str) -> BTreeMap<String, String> {
        let member = |(key, value): &(String, String)| {
            let key = key.strip_prefix(name)?.strip_prefix([':', '-'])?;
            (!key.is_empty()).then(|| (key.to_owned(), value.clone()))
        };
        self.0.iter().filter_map(member).collect()
    }

    /// Returns all parameters in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, value)| (key.as_str(), value.as_str()))
    }

    /// Returns the parameters that are neither standard nor in `known`. Compares names up to a
    /// colon. A known name with a colon is a map, of which `name-key` is a member, too.
    pub(crate) fn others(&self, known: &[&str]) -> Vec<(&str, &str)> {
        let stem = |key: &str| key.split(':').next().map(str::to_owned).unwrap_or_default();
        let other = |key: &str| {
            let stem = stem(key);
            !STANDARD.contains(&stem.as_str())
                && !known.iter().any(|known| match known.strip_suffix(':') {
                    Some(map) => stem
                        .strip_prefix(map)
                        .is_some_and(|rest| rest.is_empty() || rest.starts_with('-')),
                    None => *known == stem,
                })
        };
        self.iter().filter(|(key, _)| other(key)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn params(pairs: &[(&str, &str)]) -> Params {
        Params::new(pairs.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect())
    }

    #[test]
    fn values_are_read_as_what_they_are() {
        let params = params(&[
            ("uuid", "1"),
            ("uuid", "2"),
            ("force", "true"),
            ("live", "maybe"),
            ("size", "2GiB"),
            ("device-config:location", "/a"),
            ("device-config-mode", "x"),
            ("device-config:", "nothing"),
        ]);
        assert_eq!(params.get("uuid"), Some("1"));
        assert!(params.flag("force").unwrap());
        assert!(!params.flag("absent").unwrap());
        assert!(params.flag_or("absent", true).unwrap());
        assert!(params.flag("live").unwrap_err().errors().contains("not 'maybe'"));
        assert_eq!(params.size("size").unwrap(), 2 << 30);
        assert!(params.int("size").is_err());
        let map = params.map("device-config");
        let expected = [("location", "/a"), ("mode", "x")];
        assert_eq!(map, expected.map(|(k, v)| (k.to_owned(), v.to_owned())).into());
        assert_eq!(
            params.required("name-label").unwrap_err().errors(),
            "Required parameter not found: name-label\nFor usage run: 'xe help'\n"
        );
    }

    #[test]
    fn what_selects_is_neither_of_the_program_nor_of_the_command() {
        let params = params(&[
            ("username", "root"),
            ("minimal", "true"),
            ("new-name-label", "a"),
            ("other-config:k", "v"),
            ("name-label", "b"),
        ]);
        let others = params.others(&["new-name-label"]);
        assert_eq!(others, [("other-config:k", "v"), ("name-label", "b")]);
        assert_eq!(params.others(&["new-name-label", "other-config:"]), [("name-label", "b")]);
        let old_form = Params::new(vec![("other-config-k".into(), "v".into())]);
        assert_eq!(old_form.others(&["other-config:"]), []);
        assert_eq!(old_form.others(&["other-config"]), [("other-config-k", "v")]);
        assert_eq!(old_form.others(&["other:"]), []);
    }
}
