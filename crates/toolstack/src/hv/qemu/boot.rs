//! Kernels and ramdisks that a machine may boot: files in configured directories, and images of
//! volumes.

use std::path::{Path, PathBuf};

use model::domain::{Boot, BootFile};

use crate::hv::HvError;

/// Resolves the files of `boot` to their real paths and checks that they may be used.
///
/// # Errors
/// [`HvError::Boot`]. The check opens no file: opening a FIFO or a device would have effects.
pub(super) fn checked(boot: &Boot, directories: &[PathBuf]) -> Result<Boot, HvError> {
    let Boot::Kernel { kernel, ramdisk, args } = boot else { return Ok(boot.clone()) };
    let kernel = usable("kernel", kernel, directories)?;
    let ramdisk = ramdisk.as_ref().map(|file| usable("ramdisk", file, directories)).transpose()?;
    Ok(Boot::Kernel { kernel, ramdisk, args: args.clone() })
}

/// Checks one file. An image is not accessed, because its storage may hang. QEMU will report a
/// missing image.
fn usable(what: &str, named: &BootFile, directories: &[PathBuf]) -> Result<BootFile, HvError> {
    match named {
        BootFile::File(path) => file(what, path, directories).map(BootFile::File),
        BootFile::Image(_) => Ok(named.clone()),
    }
}

fn file(what: &str, path: &Path, directories: &[PathBuf]) -> Result<PathBuf, HvError> {
    let refuse =
        |why: String| Err(HvError::Boot { why: format!("the {what} {} {why}", path.display()) });
    // Resolve symbolic links: the real location decides.
    let real = match path.canonicalize() {
        Ok(real) => real,
        Err(error) => return refuse(format!("cannot be found: {error}")),
    };
    let named = |dir: &PathBuf| dir.canonicalize().is_ok_and(|dir| real.starts_with(dir));
    if !directories.iter().any(named) {
        let names: Vec<_> = directories.iter().map(|dir| dir.display().to_string()).collect();
        return refuse(match names.as_slice() {
            [] => "cannot be used: no directory is configured for kernels".to_owned(),
            names => format!("is not in {}: put it there", names.join(" or ")),
        });
    }
    match real.metadata() {
        Ok(metadata) if metadata.is_file() => Ok(real),
        Ok(_) => refuse("is not a file".to_owned()),
        Err(error) => refuse(format!("cannot be examined: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    fn kernel(path: &Path) -> Boot {
        Boot::Kernel { kernel: path.to_owned().into(), ramdisk: None, args: "quiet".into() }
    }

    #[test]
    fn what_lies_in_a_named_directory_starts_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let (boot, other) = (root.join("boot"), root.join("other"));
        for dir in [&boot, &other, &boot.join("dir")] {
            fs::create_dir(dir).unwrap();
        }
        for file in [boot.join("vmlinuz"), other.join("secret")] {
            fs::write(file, "").unwrap();
        }
        symlink(other.join("secret"), boot.join("out")).unwrap();
        symlink(boot.join("vmlinuz"), other.join("in")).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, boot.join("fifo"), 0o600.into()).unwrap();
        let named = [boot.clone()];
        for good in [boot.join("vmlinuz"), other.join("in"), boot.join("dir/../vmlinuz")] {
            let checked = checked(&kernel(&good), &named).unwrap();
            assert_eq!(checked, kernel(&boot.join("vmlinuz")), "{}", good.display());
        }
        for (bad, why) in [
            (boot.join("none"), "cannot be found"),
            (other.join("secret"), "is not in"),
            (boot.join("../other/secret"), "is not in"),
            (boot.join("out"), "is not in"),
            (boot.join("dir"), "is not a file"),
            (boot.join("fifo"), "is not a file"),
        ] {
            let error = checked(&kernel(&bad), &named).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
        let error = checked(&kernel(&boot.join("vmlinuz")), &[]).unwrap_err().to_string();
        assert!(error.contains("no directory"), "{error}");
    }

    #[test]
    fn a_ramdisk_is_held_to_the_same_and_firmware_needs_no_file() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("k"), "").unwrap();
        let boot = Boot::Kernel {
            kernel: dir.path().join("k").into(),
            ramdisk: Some("/nonexistent".into()),
            args: String::new(),
        };
        let error = checked(&boot, &[dir.path().into()]).unwrap_err().to_string();
        assert!(error.contains("ramdisk /nonexistent"), "{error}");
        let (sr, vdi) = (
            (model::id::SrId(model::id::Uuid::default()), "dir".to_owned()),
            model::id::VdiId(model::id::Uuid::default()),
        );
        let image =
            BootFile::Image(model::domain::BootImage { path: "/nonexistent".into(), sr, vdi });
        let boot = Boot::Kernel { kernel: image, ramdisk: None, args: String::new() };
        assert_eq!(checked(&boot, &[]).unwrap(), boot, "an image is nowhere but in its storage");
        let firmware = Boot::Firmware(vec![]);
        assert_eq!(checked(&firmware, &[]).unwrap(), firmware);
    }
}
