//! External programs.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;
use tokio::time::timeout;

use super::super::NetError;
use super::InternalError;
use crate::binaries::in_path;

/// Longest run. Each program does one thing, and dnsmasq detaches when it is ready.
const DEADLINE: Duration = Duration::from_secs(10);
/// Directories of such programs, in case that they are not in a user's PATH.
const SYSTEM: [&str; 2] = ["/usr/sbin", "/sbin"];

/// Program name, and the Debian package that contains it.
pub(crate) type Named = (&'static str, &'static str);
pub(crate) const IP: Named = ("ip", "iproute2");
pub(super) const NFT: Named = ("nft", "nftables");
pub(super) const DNSMASQ: Named = ("dnsmasq", "dnsmasq-base");

/// Returns the missing programs.
pub(crate) fn missing() -> Vec<Named> {
    [IP, NFT, DNSMASQ].into_iter().filter(|named| Tool::find(*named).is_err()).collect()
}

/// Program that exists.
#[derive(Clone, Debug)]
pub(super) struct Tool {
    name: &'static str,
    pub(super) program: PathBuf,
}

impl Tool {
    /// Finds a program.
    pub(super) fn find((name, package): Named) -> Result<Self, InternalError> {
        let elsewhere = || {
            let mut all = SYSTEM.iter().map(|dir| PathBuf::from(dir).join(name));
            all.find(|file| file.is_file())
        };
        let program = in_path(name).or_else(elsewhere);
        program
            .map(|program| Self { name, program })
            .ok_or(InternalError::Missing { name, package })
    }

    /// Runs the program with these arguments and this standard input. Returns its output.
    pub(super) async fn run(&self, words: &[&str], input: &str) -> Result<String, NetError> {
        let what = || format!("{} {}", self.name, words.join(" "));
        let refused = |why: String| NetError::Refused { what: what(), why };
        let mut command = Command::new(&self.program);
        command.args(words).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let run = async {
            let mut child = command.kill_on_drop(true).spawn()?;
            if let Some(mut stdin) = child.stdin.take() {
                // A program that stops reading reports the reason by its exit status.
                let _taken = stdin.write_all(input.as_bytes()).await;
            }
            child.wait_with_output().await
        };
        let output = timeout(DEADLINE, run).await.map_err(|_| NetError::Late(what()))?;
        let output = output.map_err(|error| refused(error.to_string()))?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let message = [output.stderr, output.stdout].concat();
        Err(refused(String::from_utf8_lossy(&message).trim().to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_missing_is_named_with_its_package() {
        let error = Tool::find(("no-such-tool", "some-package")).unwrap_err().to_string();
        assert!(error.contains("no-such-tool") && error.contains("apt-get install some-package"));
        let cat = Tool::find(("cat", "coreutils")).unwrap();
        assert_eq!(cat.run(&[], "hello").await.unwrap(), "hello");
        let error = cat.run(&["/nonexistent/file"], "").await.unwrap_err().to_string();
        assert!(error.starts_with("cat /nonexistent/file: "), "{error}");
    }
}
