//! `image.commit` that a power cut or a kill ends: the new image is complete, or is not there.
//!
//! The cut is XFS's shutdown without a flush of its log: what was not synced is lost. The next mount
//! recovers as after a power cut.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc;
use std::time::Duration;

use crate::common::sectors::{connect, write_bytes};
use crate::common::*;
use model::report::DiskState;
use rustix::process::Signal;
use serde_json::json;
use testkit::in_namespace::on_reflinks;
use testkit::process::eventually;
use testkit::reconnecting::Random;
use testkit::rounds;

const MIB: u64 = 1 << 20;
const SIZE: u64 = 16 * MIB;

/// Paused disk with an overlay whose guest has written.
struct Written {
    io: Io,
    /// Bytes of the disk that a guest would read.
    bytes: Vec<u8>,
}

impl Written {
    fn start() -> Self {
        let io = Io::start();
        let base = PathBuf::from(image(&io.folder, "base.raw", SIZE));
        let mut bytes = vec![9; SIZE as usize];
        std::fs::write(&base, &bytes).unwrap();
        let over = io.folder.path().join("over");
        let tree = json!({"overlay": {"base": {"file": base}, "ram": 4 * MIB, "overflow": over}});
        let mut spec = io.spec("d", tree);
        spec["cache"] = json!("writeback");
        io.caller().disk("disk.attach", spec);
        let mut guest = connect(&io.socket("d"));
        // Most of it, in pieces with gaps.
        for at in (0..SIZE / MIB).filter(|at| at % 5 != 4) {
            let first = (at * MIB + at % 3 * 4096) as usize;
            let data = vec![at as u8 + 20; (MIB - 8192) as usize];
            write_bytes(&mut guest, first as u64 / 512, &data);
            bytes[first..first + data.len()].copy_from_slice(&data);
        }
        io.caller().disk("disk.pause", json!({"id": "d"}));
        Self { io, bytes }
    }

    /// Begins a commit, and calls `end` after a random time, or at once after the commit. Returns
    /// whether the call was answered with success.
    fn commit_until(
        &mut self,
        path: &Path,
        random: &mut Random,
        end: impl FnOnce(&mut Io),
    ) -> bool {
        let mut caller = self.io.caller();
        let params = json!({"id": "d", "path": path});
        let after = Duration::from_micros(random.below(120_000));
        let (sender, ended) = mpsc::channel();
        std::thread::scope(|scope| {
            let call = scope.spawn(move || {
                let line = json!({"jsonrpc": "2.0", "id": 1, "method": "image.commit",
                                  "params": params});
                caller.send_line(format!("{line}\n").as_bytes());
                let is_done = caller.receive().is_some_and(|reply| reply.error.is_none());
                let _ = sender.send(());
                is_done
            });
            let _ = ended.recv_timeout(after);
            end(&mut self.io);
            call.join().unwrap()
        })
    }

    /// Checks that an image is complete. Returns false if there is none.
    fn is_there(&self, path: &Path) -> bool {
        if !path.exists() {
            return false;
        }
        let raw = self.io.folder.path().join("out.raw");
        let convert = ["convert", "-f", "qcow2", "-O", "raw"];
        let output = Command::new("qemu-img").args(convert).args([path, &raw]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        assert!(std::fs::read(&raw).unwrap() == self.bytes, "the image has other contents");
        true
    }

    /// Commits again, if there is no image, and checks it.
    fn commit(&self, path: &Path) {
        // A new worker first ends its takeover of the disk.
        eventually("it is committed", || {
            let params = json!({"id": "d", "path": path});
            path.exists() || self.io.caller().call("image.commit", params).is_ok()
        });
        assert!(self.is_there(path));
    }
}

fn tool(program: &str, words: &[&str]) -> String {
    let output = Command::new(program).args(words).output().unwrap();
    assert!(output.status.success(), "{program} {words:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap().trim().into()
}

const CUT: &str = concat!(module_path!(), "::a_power_cut_leaves_a_complete_image_or_none");

#[test]
fn a_power_cut_leaves_a_complete_image_or_none() {
    let output = on_reflinks(CUT, |dir| {
        let shown = dir.to_str().unwrap();
        let device = tool("findmnt", &["-n", "-o", "SOURCE", shown]);
        let file = tool("losetup", &["-n", "-O", "BACK-FILE", &device]);
        let mut written = Written::start();
        let (mut random, mut done, mut left) = (Random::new(36), 0, 0);
        let path = dir.join("new.qcow2");
        for _ in 0..rounds(10, 300) {
            let cut = |_: &mut Io| drop(tool("xfs_io", &["-x", "-c", "shutdown", shown]));
            let is_done = written.commit_until(&path, &mut random, cut);
            tool("umount", &[shown]);
            tool("mount", &["-o", "loop", &file, shown]);
            let is_there = written.is_there(&path);
            assert!(is_there || !is_done, "an image is gone that was complete");
            let others = std::fs::read_dir(dir).unwrap().count() - usize::from(is_there);
            assert_eq!(others, 0, "files are left over");
            (done, left) = (done + u32::from(is_done), left + u32::from(is_there));
            if is_there {
                std::fs::remove_file(&path).unwrap();
            }
        }
        println!("{done} calls were answered, {left} images were there");
        if rounds(0, 1) == 1 {
            assert!(done > 0 && left < 300, "cuts came before and after the end");
        }
        written.commit(&path);
    });
    print!("{}", output.unwrap());
}

#[test]
fn a_killed_worker_leaves_a_complete_image_or_none_and_the_writes_stay() {
    let mut written = Written::start();
    let mut random = Random::new(7);
    let path = written.io.folder.path().join("new.qcow2");
    for _ in 0..rounds(6, 200) {
        let is_done = written.commit_until(&path, &mut random, |io| {
            let serving = io.caller().stats().pid;
            let pid = rustix::process::Pid::from_raw(serving.try_into().unwrap()).unwrap();
            rustix::process::kill_process(pid, Signal::KILL).unwrap();
            io.process.next_worker(Some(serving)).unwrap();
            eventually("it is taken over", || io.caller().state("d") == Some(DiskState::Paused));
        });
        assert!(written.is_there(&path) || !is_done, "an image is gone that was complete");
        written.commit(&path);
        std::fs::remove_file(&path).unwrap();
    }
    written.io.caller().disk("disk.resume", json!({"id": "d"}));
}
