//! Paths of programs.

use std::path::PathBuf;

use crate::error::{Error, Result};

/// Finds one of Ringway's own binaries. Searches the directory of the running executable, the
/// directory above if that one is cargo's `deps`, then `PATH`.
///
/// # Errors
/// [`Error::Missing`] with the command that builds it.
pub fn find_binary(name: &str) -> Result<PathBuf> {
    let exe = std::env::current_exe().map_err(|e| Error::io("cannot find this program", e))?;
    let beside =
        exe.parent().map(|dir| if dir.ends_with("deps") { dir.join("..") } else { dir.into() });
    let release = beside
        .as_ref()
        .is_some_and(|dir: &PathBuf| dir.canonicalize().is_ok_and(|dir| dir.ends_with("release")));
    let found = beside.map(|dir| dir.join(name)).filter(|path| path.is_file());
    found.or_else(|| in_path(name)).ok_or_else(|| Error::Missing {
        program: name.to_owned(),
        next: if release {
            "build it with `cargo build --release`".to_owned()
        } else {
            "build it with `cargo build` (or `cargo build --release` for release tests)".to_owned()
        },
    })
}

/// Finds a program of the system in `PATH`.
///
/// # Errors
/// [`Error::Missing`] with the Debian package that contains it.
pub fn find_tool(name: &str, package: &str) -> Result<PathBuf> {
    in_path(name).ok_or_else(|| Error::Missing {
        program: name.to_owned(),
        next: format!("install it with `apt-get install {package}` or run `make setup`"),
    })
}

fn in_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(name)).find(|file| file.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_the_next_step() {
        let ours = find_binary("ringway-no-such").unwrap_err().to_string();
        assert!(ours.contains("cargo build"), "{ours}");
        let tool = find_tool("no-such-tool", "some-package").unwrap_err().to_string();
        assert!(tool.contains("apt-get install some-package"), "{tool}");
        assert!(find_tool("sh", "dash").is_ok());
    }
}
