use std::os::unix::fs::MetadataExt as _;

use super::*;

const SIZE: u64 = 40 * BLOCK_BYTES;

fn block(number: u8) -> Vec<u8> {
    vec![number; BLOCK_BYTES as usize]
}

fn open(path: &Path, limit: u64) -> io::Result<CacheFile> {
    CacheFile::open(path, "id", SIZE, limit)
}

#[test]
fn a_file_has_its_header_before_its_name_and_mode_0600() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("c.golden");
    // Many at once: one creates it, all have it.
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| open(&path, u64::MAX).unwrap().write(3, &block(3)).unwrap());
        }
    });
    assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    assert_eq!(known_size(&path, "id"), Some(SIZE));
    assert_eq!(known_size(&path, "other"), None);
}

#[test]
fn files_of_others_are_refused_and_left_as_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("c.golden");
    for content in [Vec::new(), b"short".to_vec(), header("other", SIZE), header("id", SIZE + 1)] {
        std::fs::write(&path, &content).unwrap();
        let error = open(&path, u64::MAX).unwrap_err();
        assert!(error.to_string().contains("move it away"), "{error}");
        assert_eq!(std::fs::read(&path).unwrap(), content);
    }
    std::fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink("/dev/null", &path).unwrap();
    open(&path, u64::MAX).unwrap_err();
}

#[test]
fn a_file_never_has_more_blocks_than_its_limit() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("c.golden");
    let file = open(&path, 5).unwrap();
    std::thread::scope(|scope| {
        for number in 0..40 {
            let file = &file;
            scope.spawn(move || file.write(number, &block(1)).unwrap());
        }
    });
    let count = |file: &CacheFile| (0..40).filter(|number| file.may_have(*number)).count();
    assert_eq!((file.stored(), count(&file)), (5, 5));
    // A block that is there may be written again; the next process finds the same.
    let there = (0..40).find(|number| file.may_have(*number)).unwrap();
    file.write(there, &block(1)).unwrap();
    let next = open(&path, 5).unwrap();
    assert_eq!((next.stored(), count(&next)), (5, 5));
    // What another process has stored since is read, and known from then on.
    let more = open(&path, 6).unwrap();
    let new = (0..40).find(|number| !more.may_have(*number)).unwrap();
    more.write(new, &block(7)).unwrap();
    let mut data = block(0);
    assert!(!next.may_have(new) && next.read(new, &mut data) && next.may_have(new));
    assert_eq!((data, next.stored()), (block(7), 6));
}

#[test]
fn a_truncated_file_has_the_blocks_that_are_whole() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("c.golden");
    let file = open(&path, u64::MAX).unwrap();
    (0..40).for_each(|number| file.write(number, &block(number as u8)).unwrap());
    let whole = |file: &CacheFile| {
        let mut data = block(0);
        (0..40).filter(|number| file.read(*number, &mut data)).count()
    };
    assert_eq!(whole(&file), 40);
    let end = file.place(40);
    for (len, left) in [(end - 1, 39), (file.place(7) + 5, 7), (HEADER_BYTES + 20, 0)] {
        std::fs::File::options().write(true).open(&path).unwrap().set_len(len).unwrap();
        // The process that has the file open goes on, and so does the next one.
        assert_eq!((whole(&file), whole(&open(&path, u64::MAX).unwrap())), (left, left), "{len}");
    }
    assert_eq!(open(&path, u64::MAX).unwrap().stored(), 2, "entries that are left");
    std::fs::File::options().write(true).open(&path).unwrap().set_len(100).unwrap();
    assert!(!file.read(0, &mut block(0)));
    open(&path, u64::MAX).unwrap_err();
}
