//! Test of conversions in the list of running ones.

use super::*;
use crate::error::error_chain;

#[test]
fn a_conversion_is_shown_while_it_runs_and_leaves_nothing_when_it_is_stopped() {
    let folder = tempfile::tempdir().unwrap();
    let (from, to) = (folder.path().join("a"), folder.path().join("b"));
    std::fs::write(&from, [1; 4096]).unwrap();
    let source = model::spec::Backend::File(from.into());
    let call = model::image::ImageConvert {
        deadline_s: 1,
        ..model::image::ImageConvert::whole(source, to.clone(), ImageFormat::Qcow2)
    };
    let calls = ImageCalls::default();
    let shown = Shown::new(Arc::clone(&calls.converting), &to);
    let stop = Arc::new(AtomicBool::new(true));
    let error = convert::convert(&call, &stop, &shown.progress, &DiskLoad::default).unwrap_err();
    assert!(error_chain(&error).contains("stopped"), "{error}");
    let progress = ImageProgress { path: to.clone(), done_bytes: 0, total_bytes: 4096 };
    assert_eq!(calls.progress().converting, [progress]);
    assert_eq!(folder.path().read_dir().unwrap().count(), 1);
    stop.store(false, Ordering::Relaxed);
    convert::convert(&call, &stop, &shown.progress, &DiskLoad::default).unwrap();
    assert_eq!(calls.progress().converting[0].done_bytes, 4096);
    drop(shown);
    assert_eq!(calls.progress().converting, []);
}
