//! The datapath by real `ringway-io` processes.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use model::id::{SrId, Uuid};
use model::poll::PollMode;
use model::report::{DiskState, DiskStats, Stats};
use model::rpc::code;
use model::spec::{Backend, Caps, DiskSpec, PollSpec};
use tempfile::TempDir;
use testkit::process::find_binary;
use tokio::task::JoinSet;
use toolstack::cgroup::{Group, Tree, Weights};
use toolstack::io::{Client, Datapath, IoDatapaths, IoError, IoLaunch};
use toolstack::launch::Launch;
use toolstack::machines::{Datapaths, sockets};

use super::{again, eventually, kill, processes};

/// A host with images, on which daemons come and go.
struct Host {
    dir: TempDir,
    tree: Option<Tree>,
}

impl Host {
    fn new() -> Self {
        Self { dir: tempfile::Builder::new().prefix("rw-").tempdir().unwrap(), tree: None }
    }

    fn launch(&self) -> IoLaunch {
        let (program, helper) = (find_binary("ringway-io").unwrap(), again("spawned", &[]));
        // One that dies often is replaced at once all the same.
        let options = ["--restart-pause-max", "0"].map(Into::into).into();
        IoLaunch { program, options, helper, tree: self.tree.clone() }
    }

    /// What a daemon that has just started has.
    fn daemon(&self) -> IoDatapaths {
        IoDatapaths::new(self.dir.path(), self.launch())
    }

    fn folder(&self) -> PathBuf {
        sockets(self.dir.path(), sr())
    }

    /// A disk that is not active yet.
    fn disk(&self, id: &str) -> DiskSpec {
        let image = self.dir.path().join(format!("{id}.raw"));
        if !image.exists() {
            std::fs::File::create(&image).unwrap().set_len(1 << 20).unwrap();
        }
        let socket = self.folder().join(format!("{id}.sock"));
        let mut spec = DiskSpec::new(id, socket, Backend::File(image));
        (spec.activate, spec.stop_deadline_ms) = (false, 10_000);
        spec
    }

    /// All processes of its datapaths.
    fn processes(&self) -> Vec<i32> {
        processes(self.dir.path().to_str().unwrap())
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.processes().into_iter().for_each(kill);
        if let Some(tree) = &self.tree {
            // Until the kernel has taken the last process out.
            let cleared = (0..1000).any(|_| {
                std::thread::sleep(Duration::from_millis(9));
                tree.clear().is_ok()
            });
            assert!(cleared || std::thread::panicking());
        }
    }
}

fn sr() -> SrId {
    SrId(Uuid::from_random([5; 16]))
}

async fn of(daemon: &IoDatapaths) -> Arc<dyn Datapath> {
    daemon.of(sr()).await.unwrap()
}

async fn told(io: &Arc<dyn Datapath>) -> Stats {
    io.stats().await.unwrap().unwrap()
}

async fn disk(io: &Arc<dyn Datapath>, id: &str) -> Option<DiskStats> {
    told(io).await.disks.into_iter().find(|disk| disk.id == id)
}

async fn state(io: &Arc<dyn Datapath>, id: &str) -> Option<DiskState> {
    disk(io, id).await.map(|disk| disk.state)
}

fn is(error: &IoError, code: i64) -> bool {
    matches!(error, IoError::Refused { source, .. } if source.code == code)
}

#[tokio::test]
async fn a_disk_from_attach_to_detach() {
    let host = Host::new();
    let daemon = host.daemon();
    let io = of(&daemon).await;
    assert_eq!(io.stats().await.unwrap(), None);
    io.deactivate("d").await.unwrap();
    io.detach("d").await.unwrap();
    assert!(host.processes().is_empty(), "what needs none starts none");

    let spec = host.disk("d");
    let reply = io.attach(&spec).await.unwrap();
    assert_eq!((reply.state, reply.geometry.size_bytes), (DiskState::Attached, 1 << 20));
    assert_eq!(io.attach(&spec).await.unwrap(), reply, "the same again is done");
    let other = DiskSpec { queues: 2, ..spec.clone() };
    assert!(is(&io.attach(&other).await.unwrap_err(), code::WRONG_STATE));
    let other = DiskSpec { stop_deadline_ms: 5, ..spec.clone() };
    assert!(is(&io.attach(&other).await.unwrap_err(), code::WRONG_STATE), "though it is not told");

    for _ in 0..2 {
        io.activate("d").await.unwrap();
        assert_eq!(state(&io, "d").await, Some(DiskState::Active));
    }
    assert!(is(&io.activate("none").await.unwrap_err(), code::NO_SUCH_DISK));
    let caps = Caps { iops: Some(500), ..Caps::default() };
    io.caps("d", &caps).await.unwrap();
    assert_eq!(disk(&io, "d").await.unwrap().caps, Some(caps));
    io.caps("d", &Caps::default()).await.unwrap();
    assert_eq!(disk(&io, "d").await.unwrap().caps, None);
    io.poll("d", &PollSpec { poll: Some(PollMode::Off), ..PollSpec::default() }).await.unwrap();
    assert_eq!(disk(&io, "d").await.unwrap().poll, PollMode::Off);
    io.poll("d", &PollSpec::default()).await.unwrap();
    assert_eq!(disk(&io, "d").await.unwrap().poll, PollMode::Auto);
    let Backend::File(image) = &spec.backend else { panic!() };
    std::fs::File::options().write(true).open(image).unwrap().set_len(3 << 20).unwrap();
    assert_eq!(io.resize("d").await.unwrap(), 3 << 20);

    for _ in 0..2 {
        io.deactivate("d").await.unwrap();
        assert_eq!(state(&io, "d").await, Some(DiskState::Attached));
    }
    for _ in 0..2 {
        io.detach("d").await.unwrap();
        assert_eq!(state(&io, "d").await, None);
    }
    io.deactivate("d").await.unwrap();
    assert!(!spec.socket.exists());
    daemon.end(sr()).await.unwrap();
    assert!(host.processes().is_empty());
    assert!(!host.folder().exists());
}

#[tokio::test]
async fn a_daemon_that_starts_finds_what_runs() {
    let host = Host::new();
    let before = host.daemon();
    let io = of(&before).await;
    let caps = Some(Caps { iops: Some(500), ..Caps::default() });
    let spec = DiskSpec { caps, ..host.disk("d") };
    io.attach(&spec).await.unwrap();
    io.activate("d").await.unwrap();
    let pid = told(&io).await.pid;
    drop((io, before));

    let daemon = host.daemon();
    let io = of(&daemon).await;
    let stats = told(&io).await;
    assert_eq!((stats.pid, stats.disks.len()), (pid, 1));
    // What changes while it is served is made as it is wanted; what does not is not touched.
    let wanted = DiskSpec { caps: None, ..host.disk("d") };
    let reply = io.attach(&wanted).await.unwrap();
    assert_eq!(reply.state, DiskState::Active, "it is left active");
    assert_eq!(disk(&io, "d").await.unwrap().caps, None);
    assert_eq!(told(&io).await.pid, pid);
    daemon.end(sr()).await.unwrap();
    assert!(host.processes().is_empty());
    // Nothing is left that another SR, or this one, would stumble on.
    let io = of(&daemon).await;
    io.attach(&spec).await.unwrap();
    assert_eq!(state(&io, "d").await, Some(DiskState::Attached));
    daemon.end(sr()).await.unwrap();
    daemon.end(sr()).await.unwrap();
}

/// Whoever serves is killed again and again while disks come and go: each call does what it is to.
#[tokio::test]
async fn calls_survive_the_death_of_whoever_serves() {
    let host = Host::new();
    let daemon = host.daemon();
    let io = of(&daemon).await;
    io.attach(&host.disk("first")).await.unwrap();
    let keeper = told(&io).await.keeper.unwrap().pid;
    let rounds = testkit::rounds(3, 30);
    let (tell, mut told_of) = tokio::sync::mpsc::unbounded_channel();
    let mut users = JoinSet::new();
    for user in 0..4 {
        let (io, tell) = (Arc::clone(&io), tell.clone());
        let spec = host.disk(&format!("d{user}"));
        users.spawn(async move {
            let (id, done) = (spec.id.as_str(), || tell.send(()).unwrap());
            for _ in 0..rounds {
                assert_eq!(io.attach(&spec).await.unwrap().id, id);
                done();
                io.activate(id).await.unwrap();
                done();
                io.caps(id, &Caps { iops: Some(9), ..Caps::default() }).await.unwrap();
                done();
                assert_eq!(io.resize(id).await.unwrap(), 1 << 20);
                done();
                io.deactivate(id).await.unwrap();
                done();
                io.detach(id).await.unwrap();
                done();
            }
        });
    }
    drop(tell);
    // While others wait for their answers; not so often that a disk is never taken over to the end.
    let (mut calls, mut kills) = (0, 0);
    while told_of.recv().await.is_some() {
        calls += 1;
        if calls % 8 == 0 {
            let serving = host.processes().into_iter().filter(|pid| pid.unsigned_abs() != keeper);
            serving.for_each(kill);
            kills += 1;
        }
    }
    users.join_all().await;
    let stats = told(&io).await;
    assert_eq!(stats.keeper.unwrap().pid, keeper, "it was the same all the time");
    let ids: Vec<_> = stats.disks.iter().map(|disk| disk.id.as_str()).collect();
    assert_eq!(ids, ["first"], "nothing is left and nothing is lost");
    println!("{calls} calls and {kills} deaths");
    daemon.end(sr()).await.unwrap();
}

#[tokio::test]
async fn another_one_takes_the_place_of_one_that_dies() {
    let host = Host::new();
    let daemon = host.daemon();
    let io = of(&daemon).await;
    for id in ["a", "b"] {
        io.attach(&host.disk(id)).await.unwrap();
    }
    io.activate("a").await.unwrap();
    let before = told(&io).await;
    let keeper = before.keeper.unwrap().pid;
    // It alone: who serves goes on, and another keeps it, though nobody calls.
    kill(keeper.cast_signed());
    let new_keeper = async || {
        let stats = io.stats().await.ok().flatten();
        stats.and_then(|stats| stats.keeper).is_some_and(|new| new.pid != keeper)
    };
    eventually("another keeper", new_keeper).await;
    assert_eq!(told(&io).await.pid, before.pid);

    // Both at once: disks are as they were, by another process.
    host.processes().into_iter().for_each(kill);
    eventually("the disks are back", async || state(&io, "a").await == Some(DiskState::Active))
        .await;
    assert_eq!(state(&io, "b").await, Some(DiskState::Attached));
    assert_ne!(told(&io).await.pid, before.pid);

    // Both while no daemon runs.
    drop((io, daemon));
    host.processes().into_iter().for_each(kill);
    eventually("they have gone", async || host.processes().is_empty()).await;
    let daemon = host.daemon();
    let io = of(&daemon).await;
    assert_eq!(state(&io, "a").await, Some(DiskState::Active));
    assert_eq!(state(&io, "b").await, Some(DiskState::Attached));
    for id in ["a", "b"] {
        io.detach(id).await.unwrap();
    }
    // Nothing is to be served any more: nobody comes back.
    host.processes().into_iter().for_each(kill);
    eventually("they have gone", async || host.processes().is_empty()).await;
    eventually("nobody is missed", async || io.stats().await.unwrap().is_none()).await;
    io.attach(&host.disk("c")).await.unwrap();
    daemon.end(sr()).await.unwrap();
}

/// What the process behind the control socket serves, without the datapath that is tested.
async fn served(host: &Host) -> Vec<(String, DiskState)> {
    let Ok(mut client) = Client::connect(&host.folder().join("control.sock")).await else {
        return Vec::new();
    };
    let stats = client.stats().await.ok();
    let disks = stats.into_iter().flat_map(|stats| stats.disks);
    disks.map(|disk| (disk.id, disk.state)).collect()
}

#[tokio::test]
async fn disks_come_back_though_nobody_calls() {
    let host = Host::new();
    let daemon = host.daemon();
    let io = of(&daemon).await;
    for id in ["a", "b"] {
        io.attach(&host.disk(id)).await.unwrap();
        io.activate(id).await.unwrap();
    }
    let image = host.dir.path().join("b.raw");
    let away = image.with_extension("away");
    std::fs::rename(&image, &away).unwrap();
    // There are connections to those that die.
    host.processes().into_iter().for_each(kill);
    let a = ("a".to_owned(), DiskState::Active);
    eventually("what can be had is back", async || served(&host).await.contains(&a)).await;
    assert_eq!(served(&host).await.len(), 1, "the image of the other is not there");
    std::fs::rename(&away, &image).unwrap();
    let b = ("b".to_owned(), DiskState::Active);
    eventually("the other is back", async || served(&host).await.contains(&b)).await;
    daemon.end(sr()).await.unwrap();
}

/// Whoever lets go of a disk while all are attached again does not find it served later.
#[tokio::test]
async fn a_disk_that_is_detached_meanwhile_does_not_come_back() {
    let host = Host::new();
    let daemon = host.daemon();
    let io = of(&daemon).await;
    io.attach(&host.disk("first")).await.unwrap();
    for round in 0..testkit::rounds(4, 40) {
        let ids: Vec<String> = (0..8).map(|n| format!("d{n}")).collect();
        for id in &ids {
            io.attach(&host.disk(id)).await.unwrap();
        }
        host.processes().into_iter().for_each(kill);
        // Half of them at once, half of them as soon as the first one is back.
        let (now, later) = ids.split_at(4);
        for id in now {
            io.detach(id).await.unwrap();
        }
        eventually("one is back", async || !served(&host).await.is_empty()).await;
        for id in later {
            io.detach(id).await.unwrap();
        }
        // By then all have had their turn.
        io.attach(&host.disk("last")).await.unwrap();
        io.detach("last").await.unwrap();
        let left = served(&host).await;
        assert_eq!(left, [("first".to_owned(), DiskState::Attached)], "round {round}");
    }
    daemon.end(sr()).await.unwrap();
}

#[tokio::test]
async fn one_that_cannot_be_started_is_told_with_its_last_words() {
    let host = Host::new();
    let start = async |program: &Path, helper: Launch| {
        let launch = IoLaunch { program: program.into(), options: Vec::new(), helper, tree: None };
        let daemon = IoDatapaths::new(host.dir.path(), launch);
        let io = of(&daemon).await;
        io.attach(&host.disk("d")).await.unwrap_err()
    };
    let script = host.dir.path().join("serves");
    testkit::process::write_script(&script, "echo 'no ring for you' >&2; exit 7").unwrap();
    let error = start(&script, again("spawned", &[])).await;
    let IoError::Died { status, tail } = &error else { panic!("{error:?}") };
    assert_eq!(status.code(), Some(7));
    assert!(tail.ends_with("no ring for you"), "{tail}");
    let error = start(Path::new("/nonexistent/io"), again("spawned", &[])).await;
    let IoError::Died { tail, .. } = &error else { panic!("{error:?}") };
    assert!(tail.contains("/nonexistent/io") && !tail.contains("ring for"), "{tail}");
    let none = Launch { program: "/nonexistent/ringwayd".into(), words: Vec::new() };
    assert!(matches!(start(&script, none).await, IoError::Start { .. }));
    std::fs::remove_dir_all(host.folder()).unwrap();
    std::fs::write(host.folder(), "in the way").unwrap();
    let daemon = host.daemon();
    let error = daemon.of(sr()).await.unwrap_err();
    assert!(matches!(&error, IoError::Folder { folder, .. } if *folder == host.folder()));
}

#[tokio::test]
async fn it_runs_in_the_slice_of_the_datapath() {
    let name = format!("rwio{}", std::process::id());
    let tree = Tree::find(Path::new("/"), &name)
        .and_then(|tree| tree.make().and_then(|()| tree.set(Weights::default())).map(|()| tree));
    let tree = match tree {
        Ok(tree) => tree,
        Err(error) => {
            eprintln!("left out, nothing here shows what it should: {error}");
            return;
        }
    };
    let mut host = Host::new();
    host.tree = Some(tree.clone());
    let daemon = host.daemon();
    let io = of(&daemon).await;
    io.attach(&host.disk("d")).await.unwrap();
    let stats = told(&io).await;
    let group = tree.path(Group::Datapath(sr()));
    let inside = std::fs::read_to_string(group.join("cgroup.procs")).unwrap();
    let mut inside: Vec<u32> = inside.lines().map(|line| line.parse().unwrap()).collect();
    inside.sort_unstable();
    let mut expected = [stats.pid, stats.keeper.unwrap().pid];
    expected.sort_unstable();
    assert_eq!(inside, expected);
    daemon.end(sr()).await.unwrap();
    assert!(!group.exists());
}
