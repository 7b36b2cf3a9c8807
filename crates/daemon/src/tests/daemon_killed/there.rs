//! State of the simulated host.

use std::collections::BTreeMap;

use xenapi::table::{sr, vdi};

use super::*;

/// Resources of the simulated host, and the volumes of its SRs.
pub(super) struct HostState {
    lines: Vec<String>,
    /// Domain number and run state, by UUID of the VM.
    pub(super) domains: BTreeMap<String, (i64, String)>,
    /// Sizes of volumes in bytes, by UUID.
    volumes: BTreeMap<String, u64>,
}

impl HostState {
    pub(super) async fn of(sim_host: &SimulatedHost) -> Self {
        let lines = sim_host.sim.leftovers();
        let domain = |line: &String| {
            let (domid, rest) = line.strip_prefix("domain ")?.split_once(" of ")?;
            let (uuid, _) = rest.split_once(' ')?;
            let (_, run) = rest.rsplit_once(": ")?;
            Some((uuid.to_owned(), (domid.parse().ok()?, run.to_owned())))
        };
        let domains = lines.iter().filter_map(domain).collect();
        let (db, storage) = (&sim_host.test_app.app.db, &sim_host.test_app.app.storage);
        let places: Vec<_> = db.read(|view| {
            let all = view.all(&sr::CLASS).map(|place| place.reference().clone());
            all.filter_map(|place| storage.of(view, &place).ok()).collect()
        });
        let mut volumes = BTreeMap::new();
        for sr_handle in places {
            let found = sr_handle.scan().await.unwrap().volumes;
            volumes.extend(found.into_iter().map(|one| (one.vdi.to_string(), one.virtual_bytes)));
        }
        Self { lines, domains, volumes }
    }

    /// Returns whether a resource exists whose description starts with this text.
    pub(super) fn has(&self, beginning: &str) -> bool {
        self.lines.iter().any(|line| line.starts_with(beginning))
    }

    /// Asserts that each recorded VDI exists with its recorded size or is recorded as missing, and
    /// that no other volume exists.
    pub(super) fn assert_disks(&self, sim_host: &SimulatedHost) {
        let recorded = sim_host.test_app.app.db.read(|view| {
            let all = view.all(&vdi::CLASS);
            let here = all.filter(|disk| disk.get(vdi::Field::missing.into()) == Some(&no()));
            let size = |disk: &crate::db::Object| match disk.get(vdi::Field::virtual_size.into()) {
                Some(Value::Int(bytes)) => u64::try_from(*bytes).unwrap(),
                other => panic!("{other:?}"),
            };
            let id = |disk: &crate::db::Object| {
                text(disk.get(vdi::Field::uuid.into()).unwrap()).to_owned()
            };
            here.map(|disk| (id(disk), size(disk))).collect::<BTreeMap<_, _>>()
        });
        assert_eq!(self.volumes, recorded);
    }
}
