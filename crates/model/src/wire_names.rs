//! Enumerations whose variants have wire names.

/// Defines an enumeration with `ALL`, `name` and `parse`.
///
/// Gates, records and the parser of calls use the same list, so all of them know the same names.
macro_rules! named {
    ($(#[$doc:meta])* $kind:ident {
        $($(#[$each:meta])* $variant:ident = $name:literal,)+
    }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $kind {
            $($(#[$each])* $variant,)+
        }

        impl $kind {
            /// All variants, in the order of their definition.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// Returns the name on the wire.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }

            /// Returns the variant of this name; case-sensitive.
            pub fn parse(text: &str) -> Option<Self> {
                match text {
                    $($name => Some(Self::$variant),)+
                    _ => None,
                }
            }
        }
    };
}

pub(crate) use named;

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use crate::sr::{SrFeature, SrOp};
    use crate::vbd::{VbdKind, VbdOp};
    use crate::vdi::VdiOp;
    use crate::vdi::automaton::Access;
    use crate::vif::VifOp;
    use crate::vm::exits::{OnCrash, OnExit};
    use crate::vm::{PowerState, VmOp};

    /// Counts the names of an enumeration after parsing each.
    macro_rules! count {
        ($kind:ident) => {{
            let names: BTreeSet<_> = $kind::ALL.iter().map(|one| one.name()).collect();
            for one in $kind::ALL {
                assert_eq!($kind::parse(one.name()), Some(*one));
                assert_eq!($kind::parse(&format!("{} ", one.name())), None);
            }
            assert_eq!(names.len(), $kind::ALL.len(), "two of one name");
            names.len()
        }};
    }

    #[test]
    fn each_name_is_read_back_and_none_is_used_twice() {
        assert_eq!(count!(PowerState), 4);
        assert_eq!(count!(VmOp), 49);
        assert_eq!(count!(VbdOp), 8);
        assert_eq!(count!(VbdKind), 3);
        assert_eq!(count!(VdiOp), 17);
        assert_eq!(count!(Access), 2);
        assert_eq!(count!(SrOp), 20);
        assert_eq!(count!(SrFeature), 10);
        assert_eq!(count!(VifOp), 3);
        assert_eq!(count!(OnExit), 2);
        assert_eq!(count!(OnCrash), 6);
        assert_eq!(PowerState::parse("running"), None, "case counts");
    }
}
