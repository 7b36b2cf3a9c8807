//! Workers that die, during calls or at once.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use model::id::VdiId;
use rustix::process::Signal;
use tokio::task::JoinSet;
use toolstack::helper_command::HelperCommand;
use toolstack::sr::dir::DirDriver;
use toolstack::sr::worker::Host;
use toolstack::sr::{SrDriver, SrError, Volume};

use super::dir::{Place, sr, vdi};
use super::{again, eventually, kill, processes, signal};

const DEADLINE: Duration = Duration::from_secs(20);
/// Text that only this test's workers have on their command line.
const OURS: &str = "worker-that-is-killed";

/// Repeated kills of workers cost only calls: acknowledged changes exist, and no change exists in
/// part.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_is_killed_costs_the_calls_under_way_there() {
    let place = Place::new();
    let host = Host::new(again("storage_worker", &[OURS]), DEADLINE);
    let driver = Arc::new(DirDriver::new("dir", host, "/nonexistent".into()));
    driver.create(sr(), &place.config()).await.unwrap();
    driver.attach(sr(), &place.config()).await.unwrap();

    let (mut acknowledged, mut died) = (Vec::new(), 0);
    let turns = u8::try_from(testkit::rounds(15, 60)).unwrap();
    // Duration of the calls without kills.
    let mut undisturbed = Duration::ZERO;
    for turn in 0..turns {
        // A worker that was just killed costs one call.
        while let Err(error) = driver.scan(sr()).await {
            assert!(matches!(error, SrError::Worker(_)), "{error:?}");
        }
        let (workers, begun) = (processes(OURS), Instant::now());
        if turn == 1 {
            // The stopped worker dies during its calls.
            workers.iter().for_each(|pid| signal(*pid, Signal::STOP));
        }
        let mut calls = four(&driver, turn);
        if turn > 0 {
            // Each turn kills at another point of the calls.
            let point = undisturbed * u32::from(turn) / u32::from(turns);
            tokio::task::block_in_place(|| std::thread::sleep(point));
            workers.into_iter().for_each(kill);
        }
        while let Some(ended) = calls.join_next().await {
            match ended.unwrap() {
                (vdi, Ok(volume)) => acknowledged.push((vdi, volume)),
                (_, Err(SrError::Worker(_))) => died += 1,
                (_, Err(error)) => panic!("{error:?}"),
            }
        }
        if turn == 0 {
            undisturbed = begun.elapsed();
        }
    }
    println!("{} calls were answered and {died} lost with their workers", acknowledged.len());
    assert!(died >= 4, "a call was answered by one that had been stopped");
    while let Err(error) = driver.attach(sr(), &place.config()).await {
        assert!(matches!(error, SrError::Worker(_)), "{error:?}");
    }
    let there = driver.scan(sr()).await.unwrap().volumes;
    assert!(there.iter().all(|volume| volume.virtual_bytes == 1 << 20), "{there:?}");
    for (vdi, volume) in acknowledged {
        assert!(there.contains(&volume), "{vdi} was told to be there");
    }
    let names = place.path().read_dir().unwrap().map(|entry| entry.unwrap().file_name());
    let whole = |name: std::ffi::OsString| {
        let name = name.into_string().unwrap();
        [".ringway-sr", ".ringway-storage-blocks"].contains(&name.as_str())
            || (name.ends_with(".raw") && !name.starts_with('.'))
    };
    assert!(names.into_iter().all(whole), "something is left half done");
}

type Calls = JoinSet<(VdiId, Result<Volume, SrError>)>;

/// Begins four calls, for other volumes in each turn.
fn four(driver: &Arc<DirDriver>, turn: u8) -> Calls {
    let mut calls = JoinSet::new();
    for n in 0..4 {
        let (driver, vdi) = (Arc::clone(driver), vdi(4 * turn + n));
        calls.spawn(async move { (vdi, driver.create_volume(sr(), vdi, 1 << 20).await) });
    }
    calls
}

/// A limit of file sizes (`ulimit -f`) is an error of the call that exceeds it.
#[tokio::test]
async fn one_that_may_not_write_such_a_file_says_so_and_goes_on() {
    let place = Place::new();
    let HelperCommand { program, mut words } = again("storage_worker", &[]);
    words.splice(0..0, ["--fsize=1048576".into(), program.into()]);
    let limited = HelperCommand { program: "prlimit".into(), words };
    let driver = DirDriver::new("dir", Host::new(limited, DEADLINE), place.path());
    driver.create(sr(), &place.config()).await.unwrap();
    driver.attach(sr(), &place.config()).await.unwrap();
    let error = driver.create_volume(sr(), vdi(1), 2 << 20).await.unwrap_err();
    let told = format!("{error:?}");
    assert!(!matches!(error, SrError::Worker(_)) && told.contains("too large"), "{told}");
    driver.create_volume(sr(), vdi(2), 1 << 20).await.unwrap();
    assert_eq!(driver.scan(sr()).await.unwrap().volumes.len(), 1);
}

async fn failure(helper_command: HelperCommand) -> SrError {
    let place = Place::new();
    let driver = DirDriver::new("dir", Host::new(helper_command, DEADLINE), place.path());
    driver.create(sr(), &place.config()).await.unwrap_err()
}

fn program(name: &str, words: &[&str]) -> HelperCommand {
    HelperCommand { program: PathBuf::from(name), words: words.iter().map(Into::into).collect() }
}

#[tokio::test]
async fn one_that_is_none_is_told() {
    for (helper_command, why) in [
        (program("false", &[]), "exit status: 1"),
        (program("sh", &["-c", "echo alas >&2; exit 3"]), "alas"),
        (program("sh", &["-c", "read call; echo '[]' >&0; exec sleep 1000"]), "answer is invalid"),
        (program("sh", &["-c", "read call; echo 'hello' >&0; exec sleep 1000"]), "not JSON"),
        (program("sh", &["-c", "read call; exec >&0 yes x | tr -d '\\n'"]), "Worker"),
    ] {
        let error = failure(helper_command).await;
        let message = format!("{error:?}");
        assert!(matches!(error, SrError::Worker(_)) && message.contains(why), "{why}: {message}");
    }
    let error = failure(program("/nonexistent/worker", &[])).await;
    assert!(matches!(&error, SrError::Os { what, .. } if what.contains("/nonexistent/worker")));
}

#[tokio::test]
async fn it_ends_with_its_sr_and_with_whoever_started_it() {
    const NAME: &str = "worker-of-an-sr-that-goes";
    let place = Place::new();
    let host = Host::new(again("storage_worker", &[NAME]), DEADLINE);
    let driver = DirDriver::new("dir", host, "/nonexistent".into());
    driver.create(sr(), &place.config()).await.unwrap();
    driver.attach(sr(), &place.config()).await.unwrap();
    driver.scan(sr()).await.unwrap();
    assert_eq!(processes(NAME).len(), 1, "who made it and attached it works on it");
    let other = Place::new();
    driver.create(model::id::SrId(vdi(7).0), &other.config()).await.unwrap();
    assert_eq!(processes(NAME).len(), 2, "one for what is not attached");
    driver.detach(sr()).await.unwrap();
    eventually("the SR's worker ends", async || processes(NAME).len() == 1).await;
    drop(driver);
    eventually("nobody is left", async || processes(NAME).is_empty()).await;
}
