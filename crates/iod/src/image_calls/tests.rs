//! Tests of waits and permits.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use super::*;

fn wait_from(caller: &UnixStream, ended: &StopSignal, until: Instant) -> WaitEnd {
    wait(ended, caller.as_fd(), until).unwrap()
}

#[test]
fn a_wait_ends_with_the_work_the_caller_or_the_time() {
    let far = Instant::now() + Duration::from_secs(600);
    let ended = StopSignal::new().unwrap();
    let (caller, other) = UnixStream::pair().unwrap();
    assert_eq!(wait_from(&caller, &ended, Instant::now()), WaitEnd::Late);
    drop(other);
    assert_eq!(wait_from(&caller, &ended, far), WaitEnd::CallerLeft);
    ended.stop();
    assert_eq!(wait_from(&caller, &ended, far), WaitEnd::Ended);
}

#[test]
fn a_caller_that_sends_its_next_call_still_waits() {
    let ended = StopSignal::new().unwrap();
    let (caller, mut other) = UnixStream::pair().unwrap();
    std::io::Write::write_all(&mut other, b"{}\n").unwrap();
    assert_eq!(wait_from(&caller, &ended, Instant::now()), WaitEnd::Late);
}

#[test]
fn calls_beyond_the_permits_are_told_to_try_again() {
    let calls = ImageCalls::default();
    let permits: Vec<_> = (0..MAX_CALLS).map(|_| calls.permit().unwrap()).collect();
    assert_eq!(calls.permit().err().unwrap().code, code::BUSY);
    drop(permits);
    assert!(calls.permit().is_ok());
}

#[test]
fn work_that_is_late_is_told_to_stop() {
    let calls = ImageCalls::default();
    let (caller, _other) = UnixStream::pair().unwrap();
    let (stopped, wait) = sync_channel(1);
    let refused = calls.run_stoppable(0, caller.as_fd(), move |stop| {
        while !stop.load(Ordering::Relaxed) {
            std::thread::yield_now();
        }
        stopped.send(()).unwrap();
        Ok(())
    });
    assert!(refused.unwrap_err().message.contains("did not end within 0 s"));
    wait.recv().unwrap();
}

#[test]
fn a_conversion_is_shown_while_it_runs_and_leaves_nothing_when_it_is_stopped() {
    let folder = tempfile::tempdir().unwrap();
    let (from, to) = (folder.path().join("a"), folder.path().join("b"));
    std::fs::write(&from, [1; 4096]).unwrap();
    let call = model::image::ImageConvert {
        source: model::spec::Backend::File(from.into()),
        path: to.clone(),
        format: ImageFormat::Qcow2,
        deadline_s: 1,
    };
    let calls = ImageCalls::default();
    let shown = Shown::new(Arc::clone(&calls.converting), &to);
    let stop = Arc::new(AtomicBool::new(true));
    let error = convert::convert(&call, &stop, &shown.progress).unwrap_err();
    assert!(error_chain(&error).contains("stopped"), "{error}");
    let progress = ImageProgress { path: to.clone(), done_bytes: 0, total_bytes: 4096 };
    assert_eq!(calls.progress().converting, [progress]);
    assert_eq!(folder.path().read_dir().unwrap().count(), 1);
    stop.store(false, Ordering::Relaxed);
    convert::convert(&call, &stop, &shown.progress).unwrap();
    assert_eq!(calls.progress().converting[0].done_bytes, 4096);
    drop(shown);
    assert_eq!(calls.progress().converting, []);
}
