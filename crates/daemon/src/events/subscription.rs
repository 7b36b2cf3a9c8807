//! Subscriptions of clients.

use std::collections::{BTreeMap, HashSet};

use xenapi::table::{Class, classes};
use xenapi::{ApiError, codes};

use crate::db::Ref;

/// Subscribed classes and objects.
#[derive(Debug, Default)]
pub struct Subscription {
    /// Filters by class name.
    wanted: BTreeMap<&'static str, ClassFilter>,
}

/// Filter of one class.
#[derive(Debug)]
pub(super) struct ClassFilter {
    pub(super) class: &'static Class,
    /// Subscribed objects. `None` for all objects of the class.
    pub(super) objects: Option<HashSet<Ref>>,
}

impl Subscription {
    /// Parses a subscription: `*`, class names, or class names with `/` and a reference. Case does
    /// not matter. Unknown classes (of other releases) and classes without events are ignored.
    ///
    /// # Errors
    /// `EVENT_SUBSCRIPTION_PARSE_FAILURE` if an entry is invalid.
    pub fn parse(entries: &[String]) -> Result<Self, ApiError> {
        let (mut all, mut everything) = (Self::default(), false);
        for one in entries {
            match one.split_once('/') {
                None if one == "*" => everything = true,
                None if is_class(one) => {
                    named(one).into_iter().for_each(|class| all.want(class, None));
                }
                Some((class, object)) if is_class(class) && is_object(object) => {
                    let one = || Some(Ref::written(object));
                    named(class).into_iter().for_each(|class| all.want(class, one()));
                }
                _ => return Err(codes::event_subscription(one.as_str())),
            }
        }
        if everything {
            classes_with_events().for_each(|class| all.want(class, None));
        }
        Ok(all)
    }

    /// Returns the filters, one for each class.
    pub(super) fn wanted(&self) -> impl Iterator<Item = &ClassFilter> {
        self.wanted.values()
    }

    /// Adds an object of a class, or all objects.
    fn want(&mut self, class: &'static Class, object: Option<Ref>) {
        let nothing = || ClassFilter { class, objects: Some(HashSet::new()) };
        let class_filter = self.wanted.entry(class.name).or_insert_with(nothing);
        match (&mut class_filter.objects, object) {
            (Some(objects), Some(object)) => drop(objects.insert(object)),
            (all, None) => *all = None,
            (None, Some(_)) => {}
        }
    }
}

/// Returns the classes that have events.
fn classes_with_events() -> impl Iterator<Item = &'static Class> {
    classes().iter().copied().filter(|class| class.events)
}

/// Returns the class with events of this name. Case does not matter.
pub(super) fn named(name: &str) -> Option<&'static Class> {
    classes_with_events().find(|class| class.name.eq_ignore_ascii_case(name))
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

    fn of(entries: &[&str]) -> Result<Subscription, ApiError> {
        Subscription::parse(&entries.iter().map(|&one| one.to_owned()).collect::<Vec<_>>())
    }

    /// Returns the subscription in its text form.
    fn wanted(entries: &[&str]) -> Vec<String> {
        let subscription = of(entries).unwrap();
        let each = subscription.wanted().flat_map(|ClassFilter { class, objects }| match objects {
            None => vec![class.name.to_owned()],
            Some(these) => these.iter().map(|one| format!("{}/{one}", class.name)).collect(),
        });
        let mut each: Vec<_> = each.collect();
        each.sort();
        each
    }

    #[test]
    fn case_does_not_count() {
        assert_eq!(
            wanted(&["vM", "TASK/opaqueref:AB", "task/OpaqueRef:0"]),
            ["VM", "task/OpaqueRef:0", "task/OpaqueRef:ab"]
        );
        assert_eq!(wanted(&["task/x", "Task/X"]), ["task/x"]);
    }

    #[test]
    fn a_class_is_more_than_one_of_its_objects() {
        for both in [["vm", "vm/a"], ["vm/a", "vm"], ["vm", "VM"]] {
            assert_eq!(wanted(&both), ["VM"]);
        }
        let all = wanted(&["*"]);
        assert!(all.contains(&"VBD".to_owned()) && !all.contains(&"session".to_owned()));
        assert_eq!(wanted(&["*", "vm/a", "vbd"]), all);
        assert_eq!(wanted(&["pool_update", "pool_update/a", "session"]), [""; 0]);
    }

    #[test]
    fn what_cannot_be_read_is_told() {
        for bad in ["", "/", "vm/", "/OpaqueRef:1", "vm/a/b", "v m", "**", "vm,vbd"] {
            let error = of(&["vm", bad]).unwrap_err();
            assert_eq!(error.details(), ["EVENT_SUBSCRIPTION_PARSE_FAILURE", bad]);
        }
    }
}
