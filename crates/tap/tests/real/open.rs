//! Devices that can be opened, and errors for those that cannot.

use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::Uid;
use rustix::thread::set_thread_res_uid;
use tap::{Tap, TapError, TapOrigin};
use testkit::in_namespace::in_own_network;

use crate::ip;

/// Id of a user without rights.
const NOBODY: u32 = 65_534;

fn refused(name: &str, origin: TapOrigin) -> TapError {
    Tap::open(name, 2, origin).unwrap_err()
}

fn there(name: &str) -> bool {
    std::path::Path::new("/sys/class/net").join(name).exists()
}

fn shell(script: &str) {
    let output = Command::new("sh").args(["-ec", script]).output().unwrap();
    assert!(output.status.success(), "{script}: {output:?}");
}

/// Runs `work` as a user without rights.
fn as_nobody<R: Send + 'static>(work: impl FnOnce() -> R + Send + 'static) -> R {
    let nobody = Uid::from_raw(NOBODY);
    let thread = std::thread::spawn(move || {
        set_thread_res_uid(nobody, nobody, nobody).unwrap();
        work()
    });
    thread.join().unwrap()
}

#[test]
fn devices_of_every_kind() {
    in_own_network(concat!(module_path!(), "::devices_of_every_kind"), || {
        let new = Tap::open("rwa", 4, TapOrigin::New).unwrap();
        assert_eq!((new.name(), new.queues(), there("rwa")), ("rwa", 4, true));
        assert!(new.queue(3).is_some() && new.queue(4).is_none());
        assert_eq!(refused("rwa", TapOrigin::New), TapError::Exists("rwa".into()));
        assert_eq!(refused("rwa", TapOrigin::Existing), TapError::InUse("rwa".into()));
        assert_eq!(refused("rwa", TapOrigin::Either), TapError::InUse("rwa".into()));
        drop(new);
        assert!(!there("rwa"), "it goes with its queues");
        assert_eq!(refused("rwa", TapOrigin::Existing), TapError::NotThere("rwa".into()));

        ip("tuntap add dev rwp mode tap multi_queue vnet_hdr");
        for origin in [TapOrigin::Existing, TapOrigin::Either, TapOrigin::Existing] {
            drop(Tap::open("rwp", 3, origin).unwrap());
            assert!(there("rwp"), "it stays");
        }
        ip("tuntap add dev rwo mode tap");
        ip("tuntap add dev rwt mode tun");
        ip("link add rwb type bridge");
        assert_eq!(refused("rwo", TapOrigin::Existing), TapError::OneQueue("rwo".into()));
        assert_eq!(refused("rwt", TapOrigin::Either), TapError::NotTap("rwt".into()));
        assert_eq!(refused("rwb", TapOrigin::Either), TapError::NotTap("rwb".into()));
    })
    .unwrap();
}

#[test]
fn whoever_may_not_is_told_what_would_help() {
    in_own_network(concat!(module_path!(), "::whoever_may_not_is_told_what_would_help"), || {
        ip(&format!("tuntap add dev rwp mode tap multi_queue vnet_hdr user {NOBODY}"));
        // A device without an owner would be open to every user.
        ip("tuntap add dev rwq mode tap multi_queue vnet_hdr user 0");
        // Only this process and its children see this mount.
        shell("mount -t tmpfs none /dev/net");
        assert_eq!(refused("rwp", TapOrigin::Existing), TapError::NoDriver);
        shell("mknod -m 600 /dev/net/tun c 10 200");
        let error = as_nobody(|| refused("rwp", TapOrigin::Existing)).to_string();
        assert!(error.contains("open the TUN driver") && error.contains("user USER"), "{error}");
        shell("chmod 666 /dev/net/tun");
        let (own, other, new) = as_nobody(|| {
            let own = Tap::open("rwp", 2, TapOrigin::Existing).map(|tap| tap.queues());
            (own, refused("rwq", TapOrigin::Existing), refused("rwn", TapOrigin::New))
        });
        assert_eq!(own, Ok(2));
        for (error, name) in [(other, "rwq"), (new, "rwn")] {
            let denied = matches!(&error, TapError::Denied { name: of, .. } if of == name);
            assert!(denied, "{error}");
        }
        assert!(!there("rwn"));
    })
    .unwrap();
}

#[test]
fn a_device_in_use_is_waited_for() {
    in_own_network(concat!(module_path!(), "::a_device_in_use_is_waited_for"), || {
        let (name, short) = ("rwtheld", Duration::from_millis(100));
        for kept in [false, true] {
            if kept {
                shell("ip tuntap add dev rwtheld mode tap multi_queue vnet_hdr");
            }
            let held = Tap::open(name, 2, TapOrigin::Either).unwrap();
            let began = Instant::now();
            let refused = Tap::open_within(name, 1, TapOrigin::Either, short).unwrap_err();
            assert_eq!(refused, TapError::InUse(name.into()));
            assert!(began.elapsed() >= short);
            let long = Duration::from_secs(60);
            let (started_tx, started_rx) = std::sync::mpsc::channel();
            let waits = std::thread::spawn(move || {
                started_tx.send(()).unwrap();
                Tap::open_within(name, 1, TapOrigin::Either, long).map(|tap| tap.queues())
            });
            started_rx.recv().unwrap();
            std::thread::sleep(short);
            drop(held);
            assert_eq!(waits.join().unwrap(), Ok(1), "kept: {kept}");
            assert!(began.elapsed() < long, "it was told");
        }
    })
    .unwrap();
}
