//! Datapath with real `ringway-io` processes.

use std::path::Path;

use model::poll::PollMode;
use model::report::DiskState;
use model::rpc::code;
use model::spec::{Caps, DiskSpec, FileRef, PollSpec};
use toolstack::cgroup::{Leaf, SliceTree, Weights};
use toolstack::helper_command::HelperCommand;
use toolstack::machines::DatapathProvider;
use toolstack::ringway_io::{DatapathError, IoDatapaths, IoLaunch};

use super::again;
use super::host::{Host, disk, of, sr, state, stats_of};

fn is(error: &DatapathError, code: i64) -> bool {
    matches!(error, DatapathError::Refused { source, .. } if source.code == code)
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
    let image = spec.backend.files().next().and_then(FileRef::path).unwrap();
    std::fs::File::options().write(true).open(image).unwrap().set_len(3 << 20).unwrap();
    assert_eq!(io.resize("d", None).await.unwrap(), 3 << 20);

    for _ in 0..2 {
        io.deactivate("d").await.unwrap();
        assert_eq!(state(&io, "d").await, Some(DiskState::Attached));
    }
    for _ in 0..2 {
        io.detach("d").await.unwrap();
        assert_eq!(state(&io, "d").await, None);
    }
    io.deactivate("d").await.unwrap();
    assert!(!spec.socket.as_deref().unwrap().exists());
    daemon.end(sr()).await.unwrap();
    assert!(host.processes().is_empty());
    assert!(!host.folder().exists());
}

#[tokio::test]
async fn a_disk_whose_guest_wrote_a_header_is_attached() {
    let host = Host::new();
    let daemon = host.daemon();
    let io = of(&daemon).await;
    let spec = host.disk("d");
    let image = spec.backend.files().next().and_then(FileRef::path).unwrap();
    let mut bytes = std::fs::read(image).unwrap();
    bytes[..4].copy_from_slice(b"QFI\xfb");
    std::fs::write(image, bytes).unwrap();
    let reply = io.attach(&spec).await.unwrap();
    assert!(reply.notes[0].contains("begins like a qcow2 image"), "{:?}", reply.notes);
    daemon.end(sr()).await.unwrap();
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
    let pid = stats_of(&io).await.pid;
    drop((io, before));

    let daemon = host.daemon();
    let io = of(&daemon).await;
    let stats = stats_of(&io).await;
    assert_eq!((stats.pid, stats.disks.len()), (pid, 1));
    // Live settings are adapted as requested. Other differences are refused.
    let wanted = DiskSpec { caps: None, ..host.disk("d") };
    let reply = io.attach(&wanted).await.unwrap();
    assert_eq!(reply.state, DiskState::Active, "it is left active");
    assert_eq!(disk(&io, "d").await.unwrap().caps, None);
    assert_eq!(stats_of(&io).await.pid, pid);
    daemon.end(sr()).await.unwrap();
    assert!(host.processes().is_empty());
    // No leftovers disturb this or another SR.
    let io = of(&daemon).await;
    io.attach(&spec).await.unwrap();
    assert_eq!(state(&io, "d").await, Some(DiskState::Attached));
    daemon.end(sr()).await.unwrap();
    daemon.end(sr()).await.unwrap();
}

#[tokio::test]
async fn one_that_cannot_be_started_is_told_with_its_last_words() {
    let host = Host::new();
    let start = async |program: &Path, helper: HelperCommand| {
        let launch = IoLaunch { program: program.into(), options: Vec::new(), helper, tree: None };
        let daemon = IoDatapaths::new(host.dir.path(), launch);
        let io = of(&daemon).await;
        io.attach(&host.disk("d")).await.unwrap_err()
    };
    let script = host.dir.path().join("serves");
    testkit::process::write_script(&script, "echo 'no ring for you' >&2; exit 7").unwrap();
    let error = start(&script, again("spawned", &[])).await;
    let DatapathError::Died { status, tail } = &error else { panic!("{error:?}") };
    assert_eq!(status.code(), Some(7));
    assert!(tail.ends_with("no ring for you"), "{tail}");
    let error = start(Path::new("/nonexistent/io"), again("spawned", &[])).await;
    let DatapathError::Died { tail, .. } = &error else { panic!("{error:?}") };
    assert!(tail.contains("/nonexistent/io") && !tail.contains("ring for"), "{tail}");
    let none = HelperCommand { program: "/nonexistent/ringwayd".into(), words: Vec::new() };
    assert!(matches!(start(&script, none).await, DatapathError::Start { .. }));
    std::fs::remove_dir_all(host.folder()).unwrap();
    std::fs::write(host.folder(), "in the way").unwrap();
    let daemon = host.daemon();
    let error = daemon.of(sr()).await.unwrap_err();
    assert!(matches!(&error, DatapathError::Folder { folder, .. } if *folder == host.folder()));
}

#[tokio::test]
async fn it_runs_in_the_slice_of_the_datapath() {
    let name = format!("rwio{}", std::process::id());
    let tree = SliceTree::find(Path::new("/"), &name)
        .and_then(|tree| tree.make().and_then(|()| tree.set(Weights::default())).map(|()| tree));
    let tree = match tree {
        Ok(tree) => tree,
        Err(error) => {
            return testkit::HostRequirement::Groups.leave_out(&error.to_string()).unwrap();
        }
    };
    let mut host = Host::new();
    host.tree = Some(tree.clone());
    let daemon = host.daemon();
    let io = of(&daemon).await;
    io.attach(&host.disk("d")).await.unwrap();
    let stats = stats_of(&io).await;
    let group = tree.path(Leaf::Datapath(sr()));
    let inside = std::fs::read_to_string(group.join("cgroup.procs")).unwrap();
    let mut inside: Vec<u32> = inside.lines().map(|line| line.parse().unwrap()).collect();
    inside.sort_unstable();
    let mut expected = [stats.pid, stats.keeper.unwrap().pid];
    expected.sort_unstable();
    assert_eq!(inside, expected);
    daemon.end(sr()).await.unwrap();
    assert!(!group.exists());
}
