//! Function calls per request or frame, counted under callgrind.
//!
//! A test program starts itself under valgrind, with a short and with a long load. The long run
//! calls the functions of a request more often. Tests are built without optimization, so atomic
//! read-modify-writes and locks are calls like all others.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::error::{Error, Result};
use crate::process::find_tool;

/// Environment variable that carries the load.
const LOAD: &str = "RINGWAY_TEST_LOAD";

/// Number of calls of each function.
pub type Calls = BTreeMap<String, u64>;

/// Returns the load of this process. `None` outside of callgrind, where the ignored test does
/// nothing.
pub fn load() -> Option<Vec<String>> {
    std::env::var(LOAD).ok().map(|words| words.split(' ').map(String::from).collect())
}

/// Returns the functions that the longer load calls more often than the shorter, with the
/// differences.
///
/// `test` is the path of the ignored test in this program that calls [`load`].
///
/// # Errors
/// [`Error::Missing`] without valgrind; another one if a load fails or its counts cannot be read.
pub fn extra_calls(test: &str, short: &str, long: &str) -> Result<Calls> {
    let (before, mut grown) = (calls(test, short)?, calls(test, long)?);
    grown.retain(|name, count| {
        *count = count.saturating_sub(before.get(name).copied().unwrap_or_default());
        *count > 0
    });
    Ok(grown)
}

/// Returns the first function with `path` in its name, such as `Hub::forward`, and its calls.
/// Compilers write the type of a method as `Hub` or as `<Hub>`.
pub fn find<'a>(calls: &'a Calls, path: &str) -> Option<(&'a str, u64)> {
    let mut calls = calls.iter().map(|(name, count)| (name.as_str(), *count));
    calls.find(|(name, _)| name.replace(">::", "::").contains(path))
}

/// Returns whether a function allocates or frees heap memory, or takes a lock.
pub fn allocates_or_locks(name: &str) -> bool {
    const HEAP: [&str; 5] = ["malloc", "calloc", "realloc", "free", "posix_memalign"];
    const LOCKS: [&str; 6] =
        ["::Mutex<", "::RwLock<", "::Condvar", "futex", "pthread_mutex", "pthread_rwlock"];
    HEAP.contains(&name) || LOCKS.iter().any(|lock| name.contains(lock))
}

/// Returns whether a function is as in [`allocates_or_locks`], or atomically changes shared memory.
pub fn writes_shared(name: &str) -> bool {
    const ATOMIC: &str = "sync::atomic";
    const CHANGES: [&str; 7] =
        ["fetch_", "compare_exchange", "swap", "atomic_add", "atomic_sub", "atomic_and", "xchg"];
    let changes = || CHANGES.iter().any(|change| name.contains(change));
    allocates_or_locks(name) || name.contains(ATOMIC) && changes()
}

/// Counts the calls of each function in a run of this program's test.
fn calls(test: &str, load: &str) -> Result<Calls> {
    let io = |what: &str| {
        let what = format!("cannot {what} the load `{load}` under valgrind");
        move |source| Error::Io { what, source }
    };
    let dir = tempfile::tempdir().map_err(io("make a directory for"))?;
    let out = dir.path().join("out");
    let status = Command::new(find_tool("valgrind", "valgrind")?)
        // Valgrind runs one thread at a time. Unfair scheduling lets a busy thread delay the others
        // for minutes.
        .args(["--tool=callgrind", "--fair-sched=yes", "--quiet"])
        .args(["--compress-strings=no", "--compress-pos=no"])
        .arg(format!("--callgrind-out-file={}", out.display()))
        .arg(std::env::current_exe().map_err(io("find"))?)
        .args(["--exact", test, "--ignored", "--test-threads=1"])
        .env(LOAD, load)
        .stdout(Stdio::null())
        .status()
        .map_err(io("start"))?;
    if !status.success() {
        return Err(Error::Reply {
            request: format!("the load `{load}`"),
            what: status.to_string(),
        });
    }
    read(&out).map_err(io("read the calls of"))
}

/// Reads the lines `cfn=NAME` and the `calls=COUNT ...` after each.
fn read(out: &Path) -> std::io::Result<Calls> {
    Ok(parse(&std::fs::read_to_string(out)?))
}

fn parse(text: &str) -> Calls {
    let (mut calls, mut called) = (Calls::new(), "");
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("cfn=") {
            called = name;
        } else if let Some(rest) = line.strip_prefix("calls=") {
            let count = rest.split(' ').next().and_then(|count| count.parse::<u64>().ok());
            *calls.entry(called.to_owned()).or_default() += count.unwrap_or_default();
        }
    }
    calls
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_of_a_function_are_added_up() {
        let text = "fn=main\ncfn=a\ncalls=3 17\n12 1\ncfn=b\ncalls=1 2\nfn=b\ncfn=a\ncalls=4 17\n";
        assert_eq!(parse(text), Calls::from([("a".into(), 7), ("b".into(), 1)]));
    }

    #[test]
    fn functions_are_found_in_both_notations() {
        for name in ["<nic::hub::Hub>::forward", "nic::hub::Hub::forward"] {
            let calls = Calls::from([(name.into(), 3), ("main".into(), 1)]);
            assert_eq!(find(&calls, "Hub::forward"), Some((name, 3)));
            assert_eq!(find(&calls, "Hub::drop"), None);
        }
    }

    #[test]
    fn what_is_shared_is_known_by_name() {
        let dear = ["malloc", "<std::sync::poison::mutex::Mutex<T>>::lock"];
        assert!(dear.iter().all(|name| allocates_or_locks(name) && writes_shared(name)));
        let writes = [
            "core::sync::atomic::AtomicU64::fetch_add",
            "core::sync::atomic::atomic_compare_exchange",
        ];
        assert!(writes.iter().all(|name| !allocates_or_locks(name) && writes_shared(name)));
        for name in ["core::mem::swap", "core::sync::atomic::AtomicU64::load", "ringway::free_list"]
        {
            assert!(!writes_shared(name), "{name}");
        }
    }
}
