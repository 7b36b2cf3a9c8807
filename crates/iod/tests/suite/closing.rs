//! Shutdown while callers do not stop calling.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::sync::Arc;

use iod::disk_registry::DiskRegistry;
use iod::pool::{Pool, PoolSize};
use model::rpc::code;
use model::spec::DiskSpec;
use serde_json::json;

const DISKS: usize = 16;

#[test]
fn no_disk_survives_whatever_callers_do_meanwhile() {
    for _ in 0..testkit::rounds(20, 300) {
        let folder = tempfile::tempdir().unwrap();
        let disk_registry =
            DiskRegistry::new(Arc::new(Pool::start(PoolSize::asked(1)).unwrap()), 1 << 20);
        let ids: Vec<_> = (0..DISKS).map(|number| format!("d{number}")).collect();
        for id in &ids {
            let spec = json!({"id": id, "socket": folder.path().join(id),
                "backend": {"memory": 4096}});
            disk_registry
                .attach(serde_json::from_value::<DiskSpec>(spec).unwrap(), Default::default())
                .unwrap();
        }
        let (started, begun) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            for id in &ids {
                let (disk_registry, started) = (&disk_registry, started.clone());
                scope.spawn(move || {
                    for turn in 0u64.. {
                        let outcome = match turn % 3 {
                            0 => disk_registry.deactivate(id),
                            1 => disk_registry.activate(id),
                            _ => disk_registry.resize(id, None),
                        };
                        // After the first refusal, every further call is refused.
                        if let Err(error) = outcome {
                            assert_eq!(error.code, code::WRONG_STATE, "{error}");
                            assert!(error.message.contains("shutting down"), "{error}");
                            break;
                        }
                        if turn == 3 {
                            started.send(()).unwrap();
                        }
                    }
                });
            }
            ids.iter().for_each(|_| begun.recv().unwrap());
            disk_registry.shut_down();
        });
        assert_eq!(disk_registry.stats(None).unwrap().disks, []);
        let left: Vec<_> = folder.path().read_dir().unwrap().collect();
        assert!(left.is_empty(), "{left:?}");
    }
}
