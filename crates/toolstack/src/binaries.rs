//! Search for the programs that Ringway starts.

use std::path::{Path, PathBuf};

/// Program that was not found.
#[derive(Debug, thiserror::Error)]
#[error("{name} is neither in {} nor in PATH; {advice}", beside.display())]
pub struct NotFound {
    /// Name of the program.
    pub name: String,
    /// Directory that was searched first.
    pub beside: PathBuf,
    /// Remedy for the user.
    pub advice: &'static str,
}

/// Name of the datapath program.
pub const RINGWAY_IO: &str = "ringway-io";
/// Name of the experiment program.
pub const RINGWAY_LAB: &str = "ringway-lab";
/// Name of the emulator.
pub const QEMU: &str = "qemu-system-x86_64";

/// Finds a program of Ringway: first beside the running program, then in `PATH`.
///
/// # Errors
/// [`NotFound`] if neither has it.
pub fn ours(name: &str) -> Result<PathBuf, NotFound> {
    let executable = std::env::current_exe().unwrap_or_default();
    let beside = executable.parent().unwrap_or(Path::new("/")).to_owned();
    let candidate = beside.join(name);
    if is_program(&candidate) {
        return Ok(candidate);
    }
    in_path(name).ok_or_else(|| NotFound {
        name: name.into(),
        beside,
        advice: "build it with `cargo build --release`, or install the whole package",
    })
}

/// Finds a system program in `PATH`.
pub fn in_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(name)).find(|file| is_program(file))
}

fn is_program(path: &Path) -> bool {
    path.is_file() && rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_of_the_system_are_found() {
        assert!(in_path("sh").is_some());
        assert_eq!(in_path("no-such-program-of-ringway"), None);
    }

    #[test]
    fn a_missing_program_says_what_to_do() {
        let error = ours("no-such-program-of-ringway").unwrap_err().to_string();
        assert!(error.contains("cargo build --release"), "{error}");
    }
}
