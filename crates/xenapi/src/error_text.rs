//! Explains errors to human readers.

use crate::ApiError;
use crate::codes::{ALL, Code};

/// Text for an unknown code.
const UNKNOWN: &str = "The server refused, with a code that this program does not know.";
/// Name for a parameter without a name.
const NAMELESS: &str = "parameter";

/// Returns the code with this name.
pub fn code(name: &str) -> Option<&'static Code> {
    ALL.iter().find(|code| code.name == name)
}

impl Code {
    /// Returns the meaning in one or two sentences.
    pub fn sentence(&self) -> &'static str {
        self.doc.trim_start()
    }
}

/// Explains an error: its meaning, and name and value of each parameter.
///
/// An unknown code also has a text, so that its parameters appear in any case.
pub fn explain(error: &ApiError) -> (&'static str, Vec<(&'static str, &str)>) {
    let code = code(&error.code);
    let names = code.map_or(&[] as &[&str], |code| code.params).iter().copied();
    let names = names.chain(std::iter::repeat(NAMELESS));
    let params = names.zip(error.params.iter().map(String::as_str)).collect();
    (code.map_or(UNKNOWN, Code::sentence), params)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::codes;

    #[test]
    fn a_code_has_its_parameters_in_order() {
        let error = codes::bad_power_state("OpaqueRef:1", "halted", "running");
        let details = ["VM_BAD_POWER_STATE", "OpaqueRef:1", "halted", "running"];
        assert_eq!(error.details(), details);
        let (sentence, params) = explain(&error);
        assert_eq!(sentence, "The machine is in a state in which this cannot be done.");
        assert_eq!(params, [("vm", "OpaqueRef:1"), ("expected", "halted"), ("actual", "running")]);
        assert_eq!(codes::too_many_pending_tasks().details(), ["TOO_MANY_PENDING_TASKS"]);
    }

    #[test]
    fn a_foreign_code_is_told_with_all_that_it_has() {
        let error = ApiError::new("HOST_ON_FIRE", ["a", "b"]);
        let (sentence, params) = explain(&error);
        assert_eq!(sentence, UNKNOWN);
        assert_eq!(params, [("parameter", "a"), ("parameter", "b")]);
    }

    #[test]
    fn parameters_beyond_those_of_the_code_are_told() {
        let error = ApiError::new("HANDLE_INVALID", ["VM", "x", "more"]);
        assert_eq!(explain(&error).1.last(), Some(&("parameter", "more")));
        let error = ApiError::new("HANDLE_INVALID", ["VM"]);
        assert_eq!(explain(&error).1, [("class", "VM")]);
    }

    #[test]
    fn every_code_is_there_once_and_has_a_sentence_of_its_own() {
        let names: BTreeSet<_> = ALL.iter().map(|code| code.name).collect();
        let sentences: BTreeSet<_> = ALL.iter().map(Code::sentence).collect();
        assert_eq!((names.len(), sentences.len()), (ALL.len(), ALL.len()));
        for one in ALL {
            assert_eq!(code(one.name), Some(one));
            let upper = |letter: char| letter.is_ascii_uppercase() || letter == '_';
            assert!(one.name.chars().all(upper), "{}", one.name);
            assert!(one.sentence().ends_with('.') && !one.sentence().starts_with(' '), "{one:?}");
        }
    }
}
