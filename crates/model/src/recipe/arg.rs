//! A disk of a recipe on a command line: `DISK[,queues=N][,target=T][,boot=N]`.

use std::path::PathBuf;
use std::str::FromStr;

use crate::disk_arg::{number, split_commas};
use crate::spec::{SpecError, refuse, validate_id};

/// Options, for messages.
const OPTIONS: &str = "queues=N, target=vda, boot=N";

/// Selects a disk. Text with a slash is a socket's path, any other text is a disk's id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DiskSelector {
    /// Socket of a running backend.
    Socket(PathBuf),
    /// A disk of a running `ringway-io`.
    Id(String),
}

/// A parsed DISK.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecipeDiskArg {
    /// Disk.
    pub disk_selector: DiskSelector,
    /// Number of queues, if given.
    pub queues: Option<u16>,
    /// Device name in the machine's definition, if given.
    pub target: Option<String>,
    /// Position in the boot order, if given.
    pub boot: Option<u16>,
}

impl FromStr for RecipeDiskArg {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let mut parts = split_commas(text).into_iter();
        let disk_selector = match parts.next().unwrap_or_default() {
            path if path.contains('/') => DiskSelector::Socket(path.into()),
            id if validate_id(&id).is_ok() => DiskSelector::Id(id),
            other => {
                let problem = format!(
                    "{other:?} is neither a socket's path, which holds a slash, nor a disk's id"
                );
                return refuse("disk", problem);
            }
        };
        let mut arg = Self { disk_selector, queues: None, target: None, boot: None };
        for option in parts {
            match option.split_once('=') {
                Some(("queues", count)) => arg.queues = Some(number("queues", count)?),
                Some(("target", name)) => arg.target = Some(name.into()),
                Some(("boot", place)) => arg.boot = Some(number("boot", place)?),
                _ => {
                    let problem = format!("{option:?} is not an option; known: {OPTIONS}");
                    return refuse("disk", problem);
                }
            }
        }
        Ok(arg)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_have_a_slash_and_ids_have_none() {
        let place = |text: &str| text.parse::<RecipeDiskArg>().unwrap().disk_selector;
        assert_eq!(place("/run/a.sock"), DiskSelector::Socket("/run/a.sock".into()));
        assert_eq!(place("./d1"), DiskSelector::Socket("./d1".into()));
        assert_eq!(place("/run/a,,b"), DiskSelector::Socket("/run/a,b".into()));
        assert_eq!(place("d1"), DiskSelector::Id("d1".into()));
    }

    #[test]
    fn options_are_taken() {
        let arg: RecipeDiskArg = "d1,queues=4,target=vdc,boot=1".parse().unwrap();
        let expected = RecipeDiskArg {
            disk_selector: DiskSelector::Id("d1".into()),
            queues: Some(4),
            target: Some("vdc".into()),
            boot: Some(1),
        };
        assert_eq!(arg, expected);
    }

    #[test]
    fn what_cannot_be_understood_is_refused() {
        for (text, field) in [
            ("", "disk"),
            ("a b", "disk"),
            ("d1,ro", "disk"),
            ("d1,serial=A", "disk"),
            ("d1,queues=x", "queues"),
            ("d1,boot=-1", "boot"),
        ] {
            assert_eq!(text.parse::<RecipeDiskArg>().unwrap_err().field, field, "{text}");
        }
    }
}
