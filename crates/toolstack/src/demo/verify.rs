//! The host's look at the files, after the datapath has gone.

use std::io;
use std::path::Path;
use std::process::Stdio;

use model::report::Stats;
use tokio::process::Command;

use super::console::Story;
use super::images::{Images, MULTI_MIB, RANDOM_BYTES, golden, read_at, sha256};

/// One thing that the host looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// What was looked at, and by which means.
    pub what: String,
    /// Empty if it is as the guest left it; else what is wrong.
    pub problem: Option<String>,
}

impl Check {
    fn new(what: &str, problem: Option<String>) -> Self {
        Self { what: what.into(), problem }
    }

    /// Passes if `found` is `expected`.
    fn same(what: &str, found: &str, expected: &str) -> Self {
        let problem = format!("found {found:?}, expected {expected:?}");
        Self::new(what, (found != expected || expected.is_empty()).then_some(problem))
    }
}

/// The worker was killed and replaced, and the guest noticed nothing but a pause.
pub(super) fn restart(stats: Option<&Stats>, story: &Story) -> Check {
    let restarts =
        stats.and_then(|stats| stats.keeper.as_ref()).map_or(0, |keeper| keeper.restarts);
    let longest = story.longest.unwrap_or_default().as_secs_f64();
    let what = format!(
        "kill -9 in the middle of writes: no error in the guest, longest request {longest:.1} s"
    );
    let problem = (restarts != 1).then(|| format!("the worker was replaced {restarts} times"));
    Check { what, problem }
}

/// Looks at every file.
pub(super) async fn verify(images: &Images, story: &Story) -> io::Result<Vec<Check>> {
    let random = story.sums.get("random").cloned().unwrap_or_default();
    let region = read_at(&images.multi, MULTI_MIB << 20, RANDOM_BYTES)?;
    let golden = golden();
    let unchanged = std::fs::read(&images.golden)? == golden;
    Ok(vec![
        fsck(&images.data).await?,
        Check::same(
            "data: random file, read by debugfs: SHA-256 as in the guest",
            &sha256(&file_in(images, "random").await?).await?,
            &random,
        ),
        Check::new(
            "data: copy of golden, read by debugfs: every byte",
            (file_in(images, "golden").await? != golden).then(|| "bytes differ".into()),
        ),
        Check::same(
            "multi: the region that the guest wrote: SHA-256 as in the guest",
            &sha256(&region).await?,
            &random,
        ),
        Check::new(
            "golden: every byte as before",
            (!unchanged).then(|| "the read-only file was changed".into()),
        ),
    ])
}

/// Lets e2fsck look at the file system without changing it.
async fn fsck(image: &Path) -> io::Result<Check> {
    let output = tool("e2fsck").arg("-fn").arg(image).output().await?;
    let text = String::from_utf8_lossy(&output.stdout).trim().replace('\n', "; ");
    let problem = (!output.status.success()).then_some(text);
    Ok(Check::new("data: the file system, by e2fsck", problem))
}

/// The content of a file in the guest's file system.
async fn file_in(images: &Images, name: &str) -> io::Result<Vec<u8>> {
    let request = format!("cat /{name}");
    let output = tool("debugfs").args(["-R", &request]).arg(&images.data).output().await?;
    Ok(output.stdout)
}

/// One of e2fsprogs, which are not in an ordinary user's PATH.
fn tool(name: &str) -> Command {
    let program = crate::binaries::in_path(name);
    let mut command = Command::new(program.unwrap_or_else(|| Path::new("/usr/sbin").join(name)));
    command.stdin(Stdio::null()).kill_on_drop(true);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file system as the guest leaves it, made by the host's own tools.
    async fn world(dir: &Path) -> (Images, Story) {
        let images = Images::make(dir).await.unwrap();
        let random = vec![0x5a; RANDOM_BYTES];
        std::fs::write(dir.join("random"), &random).unwrap();
        let mkfs = tool("mkfs.ext4").args(["-q", "-F"]).arg(&images.data).status().await.unwrap();
        assert!(mkfs.success());
        for (name, source) in [("random", dir.join("random")), ("golden", images.golden.clone())] {
            let request = format!("write {} {name}", source.display());
            let mut debugfs = tool("debugfs");
            debugfs.args(["-w", "-R", &request]).arg(&images.data);
            assert!(debugfs.output().await.unwrap().status.success());
        }
        write_at(&images.multi, MULTI_MIB << 20, &random);
        let mut story = Story::default();
        story.sums.insert("random".into(), sha256(&random).await.unwrap());
        (images, story)
    }

    fn write_at(path: &Path, offset: u64, bytes: &[u8]) {
        use std::os::unix::fs::FileExt;
        let file = std::fs::File::options().write(true).open(path).unwrap();
        file.write_all_at(bytes, offset).unwrap();
    }

    async fn failing(images: &Images, story: &Story) -> Vec<usize> {
        let checks = verify(images, story).await.unwrap();
        (0..checks.len()).filter(|i| checks[*i].problem.is_some()).collect()
    }

    #[tokio::test]
    async fn each_check_fails_for_its_own_damage() {
        let dir = tempfile::tempdir().unwrap();
        let (images, mut story) = world(dir.path()).await;
        assert_eq!(failing(&images, &story).await, [] as [usize; 0]);
        write_at(&images.multi, (MULTI_MIB << 20) + 4096, b"x");
        assert_eq!(failing(&images, &story).await, [3]);
        write_at(&images.golden, 8 << 20, b"x");
        assert_eq!(failing(&images, &story).await, [3, 4]);
        // The counts of free blocks in the superblock.
        write_at(&images.data, 1024 + 12, &[0; 4]);
        assert!(failing(&images, &story).await.contains(&0));
        // A guest that told nothing has proved nothing.
        story.sums.clear();
        assert!(failing(&images, &story).await.contains(&1));
    }
}
