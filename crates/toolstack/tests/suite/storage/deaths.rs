//! Deaths of serving processes, which must not interrupt the service.

use std::sync::Arc;

use model::report::DiskState;
use model::spec::{Caps, DiskShare, DiskSpec};
use testkit::process::write_script;
use tokio::task::JoinSet;
use toolstack::machines::DatapathProvider;
use toolstack::ringway_io::{Datapath, RpcConnection};

use super::host::{Host, disk, of, sr, state, stats_of};
use super::{eventually, kill};

/// Workers are killed repeatedly while disks are attached and detached. Each call must take effect.
#[tokio::test]
async fn calls_survive_the_death_of_whoever_serves() {
    let host = Host::new();
    let daemon = host.daemon();
    let io = of(&daemon).await;
    io.attach(&host.disk("first")).await.unwrap();
    let keeper = stats_of(&io).await.keeper.unwrap().pid;
    let rounds = testkit::rounds(3, 30);
    let (sender, mut receiver) = tokio::sync::mpsc::unbounded_channel();
    let mut users = JoinSet::new();
    for user in 0..4 {
        let (io, sender) = (Arc::clone(&io), sender.clone());
        let spec = host.disk(&format!("d{user}"));
        users.spawn(async move {
            let (id, done) = (spec.id.as_str(), || sender.send(()).unwrap());
            for _ in 0..rounds {
                assert_eq!(io.attach(&spec).await.unwrap().id, id);
                done();
                io.activate(id).await.unwrap();
                done();
                io.caps(id, &Caps { iops: Some(9), ..Caps::default() }).await.unwrap();
                done();
                assert_eq!(io.resize(id, None).await.unwrap(), 1 << 20);
                done();
                io.deactivate(id).await.unwrap();
                done();
                io.detach(id).await.unwrap();
                done();
            }
        });
    }
    drop(sender);
    // Kill while calls wait for their answers, but rarely enough that every disk gets adopted in
    // between.
    let (mut calls, mut kills) = (0, 0);
    while receiver.recv().await.is_some() {
        calls += 1;
        if calls % 8 == 0 {
            let serving = host.processes().into_iter().filter(|pid| pid.unsigned_abs() != keeper);
            serving.for_each(kill);
            kills += 1;
        }
    }
    users.join_all().await;
    let stats = stats_of(&io).await;
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
    let before = stats_of(&io).await;
    let keeper = before.keeper.unwrap().pid;
    // Kill only the keeper: the worker continues, and gets another keeper even without calls.
    kill(keeper.cast_signed());
    let new_keeper = async || {
        let stats = io.stats().await.ok().flatten();
        stats.and_then(|stats| stats.keeper).is_some_and(|new| new.pid != keeper)
    };
    eventually("another keeper", new_keeper).await;
    assert_eq!(stats_of(&io).await.pid, before.pid);

    // Kill both: another process serves the same disks.
    host.processes().into_iter().for_each(kill);
    eventually("the disks are back", async || state(&io, "a").await == Some(DiskState::Active))
        .await;
    assert_eq!(state(&io, "b").await, Some(DiskState::Attached));
    assert_ne!(stats_of(&io).await.pid, before.pid);

    // Kill both while no daemon runs.
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
    // Without disks to serve, no process returns.
    host.processes().into_iter().for_each(kill);
    eventually("they have gone", async || host.processes().is_empty()).await;
    eventually("nobody is missed", async || io.stats().await.unwrap().is_none()).await;
    io.attach(&host.disk("c")).await.unwrap();
    daemon.end(sr()).await.unwrap();
}

/// A share survives the death of the worker, and of all processes.
#[tokio::test]
async fn a_share_stays_through_deaths() {
    let host = Host::new();
    host.calibrated();
    let daemon = host.daemon();
    let io = of(&daemon).await;
    let heavy = DiskShare { weight: 400, floor_iops: Some(50), floor_bytes: Some(1 << 20) };
    io.attach(&DiskSpec { share: Some(heavy), ..host.disk("a") }).await.unwrap();
    io.attach(&host.disk("b")).await.unwrap();
    assert_eq!(share(&io, "a").await, Some(heavy));
    assert_eq!(share(&io, "b").await, Some(DiskShare::default()));
    let light = DiskShare { weight: 4, ..DiskShare::default() };
    io.share("b", &light).await.unwrap();
    io.share("a", &DiskShare::default()).await.unwrap();
    let keeper = stats_of(&io).await.keeper.unwrap().pid.cast_signed();
    for all in [false, true] {
        let pid = stats_of(&io).await.pid;
        host.processes().into_iter().filter(|pid| all || *pid != keeper).for_each(kill);
        let as_before = async || {
            let Ok(Some(stats)) = io.stats().await else { return false };
            // A disk without a share is not open yet.
            let shares = stats.disks.into_iter().map(|disk| Some((disk.id, disk.share?.share)));
            let shares: Option<Vec<_>> = shares.collect();
            let before = [("a".into(), DiskShare::default()), ("b".into(), light)];
            stats.pid != pid && shares.is_some_and(|shares| shares == before)
        };
        eventually("another worker with the same shares", as_before).await;
    }
    // An attach of a served disk adapts the share.
    io.attach(&DiskSpec { share: Some(heavy), ..host.disk("b") }).await.unwrap();
    assert_eq!(share(&io, "b").await, Some(heavy));
    assert_eq!(share(&io, "a").await, Some(DiskShare::default()));
    daemon.end(sr()).await.unwrap();
}

async fn share(io: &Arc<dyn Datapath>, id: &str) -> Option<DiskShare> {
    disk(io, id).await?.share.map(|report| report.share)
}

/// Returns the disks of the process behind the control socket, without the datapath under test.
async fn served(host: &Host) -> Vec<(String, DiskState)> {
    let Ok(mut client) = RpcConnection::connect(&host.folder().join("control.sock")).await else {
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
    // The pool has connections to the processes that die.
    host.processes().into_iter().for_each(kill);
    let a = ("a".to_owned(), DiskState::Active);
    eventually("what can be had is back", async || served(&host).await.contains(&a)).await;
    assert_eq!(served(&host).await.len(), 1, "the image of the other is not there");
    std::fs::rename(&away, &image).unwrap();
    let b = ("b".to_owned(), DiskState::Active);
    eventually("the other is back", async || served(&host).await.contains(&b)).await;
    daemon.end(sr()).await.unwrap();
}

/// A disk that is detached during the reattachment must not be served later.
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
        // Detach half of them at once, and half when the first one is back.
        let (now, later) = ids.split_at(4);
        for id in now {
            io.detach(id).await.unwrap();
        }
        eventually("one is back", async || !served(&host).await.is_empty()).await;
        for id in later {
            io.detach(id).await.unwrap();
        }
        // By then each reattachment has had its lock.
        io.attach(&host.disk("last")).await.unwrap();
        io.detach("last").await.unwrap();
        let left = served(&host).await;
        assert_eq!(left, [("first".to_owned(), DiskState::Attached)], "round {round}");
    }
    daemon.end(sr()).await.unwrap();
}

/// A worker without a keeper dies after another keeper was started but before the adoption.
#[tokio::test]
async fn who_dies_before_it_is_taken_over_is_replaced() {
    let mut host = Host::new();
    let doomed = host.dir.path().join("doomed");
    let (real, list) = (host.program.display(), doomed.display());
    let script = format!(
        "mv {list} {list}.gone 2>/dev/null && kill -9 $(cat {list}.gone)\nexec {real} \"$@\""
    );
    let program = host.dir.path().join("ringway-io");
    write_script(&program, &script).unwrap();
    host.program = program;
    let daemon = host.daemon();
    let io = of(&daemon).await;
    io.attach(&host.disk("d")).await.unwrap();
    io.activate("d").await.unwrap();
    let before = stats_of(&io).await;
    std::fs::write(&doomed, before.pid.to_string()).unwrap();
    kill(before.keeper.unwrap().pid.cast_signed());
    // No calls are made.
    let old = before.pid.cast_signed();
    eventually("it has died", async || !host.processes().contains(&old)).await;
    let active = [("d".to_owned(), DiskState::Active)];
    eventually("the disk is back", async || served(&host).await == active).await;
    daemon.end(sr()).await.unwrap();
}
