//! A driver that cannot tell that a read would wait, as that of TAP devices before Linux 6.4. Here that
//! is inotify, whose records are taken for frames.

use std::sync::Arc;

use reactor::Reactor;
use rustix::fs::inotify::{CreateFlags, WatchFlags, add_watch, init};

use crate::ends::{Watched, at_rest};

#[test]
fn frames_are_read_one_by_one() {
    let dir = tempfile::tempdir().unwrap();
    let fd = init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).unwrap();
    add_watch(&fd, dir.path(), WatchFlags::CREATE).unwrap();
    let reactor = Reactor::spawn("test").unwrap();
    let queue = Watched::of(&reactor, Arc::new(fd));
    for number in 0..100 {
        let name = format!("file-{number}.");
        std::fs::write(dir.path().join(&name), "").unwrap();
        let is_it = |bytes: &[u8]| bytes.windows(name.len()).any(|part| part == name.as_bytes());
        queue.until(|seen| {
            assert_eq!(seen.errors, []);
            seen.frames.iter().any(|(bytes, _)| is_it(bytes)).then_some(())
        });
    }
    // An idle queue sleeps, and nothing keeps the reactor from its end.
    at_rest(&reactor);
}
