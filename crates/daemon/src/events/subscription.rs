//! What a client wants to be told of.

use std::collections::{HashMap, HashSet};

use xenapi::{ApiError, codes};

/// Classes and objects. Names are compared in lower case.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Subscription {
    all: bool,
    classes: HashSet<String>,
    /// By class, references.
    objects: HashMap<String, HashSet<String>>,
}

impl Subscription {
    /// Of what a client has said: `*`, classes, and classes with a reference after a slash. A class
    /// that there is not here is one of another release, of which nothing is told.
    ///
    /// # Errors
    /// `EVENT_SUBSCRIPTION_PARSE_FAILURE`: one is none of these.
    pub fn parse(said: &[String]) -> Result<Self, ApiError> {
        let mut all = Self::default();
        for one in said {
            let bad = || codes::event_subscription(one.as_str());
            let lower = one.to_ascii_lowercase();
            match lower.split_once('/') {
                None if lower == "*" => all.all = true,
                None if is_class(&lower) => drop(all.classes.insert(lower)),
                Some((class, object)) if is_class(class) && is_object(object) => {
                    all.objects.entry(class.to_owned()).or_default().insert(object.to_owned());
                }
                _ => return Err(bad()),
            }
        }
        Ok(all)
    }

    /// Whether something of this class, in lower case, may be wanted.
    pub(super) fn has_class(&self, class: &str) -> bool {
        self.all || self.classes.contains(class) || self.objects.contains_key(class)
    }

    /// Whether this object is wanted.
    pub(super) fn has(&self, class: &str, reference: &str) -> bool {
        let one = |of: &HashSet<String>| of.contains(&reference.to_ascii_lowercase());
        self.all || self.classes.contains(class) || self.objects.get(class).is_some_and(one)
    }
}

fn is_class(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

fn is_object(text: &str) -> bool {
    !text.is_empty() && !text.contains('/')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(said: &[&str]) -> Result<Subscription, ApiError> {
        Subscription::parse(&said.iter().map(|&one| one.to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn case_does_not_count() {
        let some = of(&["VM", "task/opaqueref:AB"]).unwrap();
        assert!(some.has_class("vm") && some.has("vm", "OpaqueRef:1"));
        assert!(some.has_class("task") && some.has("task", "OpaqueRef:ab"));
        assert!(!some.has("task", "OpaqueRef:abc") && !some.has("vbd", "OpaqueRef:ab"));
        assert!(!some.has_class("vbd") && !of(&[]).unwrap().has_class("vm"));
        let all = of(&["*"]).unwrap();
        assert!(all.has_class("vbd") && all.has("vbd", "OpaqueRef:1"));
        assert!(of(&["pool_update"]).is_ok(), "of another release");
    }

    #[test]
    fn what_cannot_be_read_is_told() {
        for bad in ["", "/", "vm/", "/OpaqueRef:1", "vm/a/b", "v m", "**", "vm,vbd"] {
            let error = of(&["vm", bad]).unwrap_err();
            assert_eq!(error.details(), ["EVENT_SUBSCRIPTION_PARSE_FAILURE", bad]);
        }
    }
}
