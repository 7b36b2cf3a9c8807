//! Overlays over golden images: the image has another version in each round, and now and then within one.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use testkit::process::{ServerProgram, Target};
use testkit::reconnecting::{Shape, stamped};

use super::{DISK_BYTES, kill_many_times, shape};

/// Memory of the image and of the overlay: less than the disk has, so that blocks come from the cache
/// file, the source and the overflow file.
const RAM: u64 = 4 << 20;

/// Source whose image changes, and the cache directory.
struct Golden {
    folder: tempfile::TempDir,
}

/// Returns the stamp of the sectors of a version: none that a guest writes to another one.
fn stamp(version: u64) -> u64 {
    version << 40
}

impl Golden {
    fn new() -> Self {
        Self { folder: tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Creates the file of a version, beside the source.
    fn create(&self, version: u64) -> PathBuf {
        let path = self.path(&version.to_string());
        std::fs::write(&path, stamped(DISK_BYTES, stamp(version))).unwrap();
        path
    }

    /// Gives the source a file, as a whole.
    fn put(&self, file: &Path) {
        let (new, source) = (self.path("new"), self.path("source"));
        // A rename to another name of the same file does nothing.
        let _absent = std::fs::remove_file(&source);
        std::fs::hard_link(file, &new).unwrap();
        std::fs::rename(new, source).unwrap();
    }

    fn tree(&self) -> Value {
        let golden = json!({"source": {"file": self.path("source")}, "cache": self.path("cache"),
                            "ram": RAM, "cache_size": DISK_BYTES / 2});
        json!({"overlay": {"base": {"golden": golden}, "ram": RAM,
                           "overflow": self.path("overflow")}})
    }

    /// Boots a machine on a version, and kills its server many times. In half of its lives, the source
    /// has the next version already. What is not in the cache waits then.
    fn kill_under_load(&self, version: u64, program: ServerProgram, shape: Shape) {
        let (own, next) = (self.create(version), self.create(version + 1));
        self.put(&own);
        let shape = Shape { first_stamp: stamp(version), ..shape };
        let lives = testkit::rounds(5, 50);
        let mut lives_left = lives;
        let target = Target::Tree(self.tree());
        kill_many_times(program, target, "writeback", shape, lives, |random| {
            lives_left -= 1;
            let is_next = lives_left > 0 && random.below(2) == 0;
            self.put(if is_next { &next } else { &own });
        });
        std::fs::remove_file(own).unwrap();
    }
}

#[test]
fn overlays_over_versions_of_a_golden_image_are_killed_under_load() {
    let golden = Golden::new();
    for version in 1..=testkit::rounds(4, 20) as u64 {
        let (supervised, deep) = (version % 4 == 0, version % 2 == 0);
        let program = if supervised { ServerProgram::SupervisedBlk } else { ServerProgram::Io };
        let load = if deep { shape(4, 64, 20 + version) } else { shape(1, 8, 20 + version) };
        golden.kill_under_load(version, program, Shape { blocks_max: 20, ..load });
    }
}
