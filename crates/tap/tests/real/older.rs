//! A driver that cannot report that a read would wait, like that of TAP devices before Linux 6.4.
//! Here inotify takes its place: its records are read as frames.

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
    // An idle queue sleeps, and does not delay the end of the reactor.
    at_rest(&reactor);
}
