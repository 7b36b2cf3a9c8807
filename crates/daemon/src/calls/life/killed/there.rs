//! What is on the simulated host.

use std::collections::BTreeMap;

use xenapi::table::{sr, vdi};

use super::*;

/// A host, from its words and from what its storage says.
pub(super) struct There {
    lines: Vec<String>,
    /// Number and state, by the machine's UUID.
    pub(super) domains: BTreeMap<String, (i64, String)>,
    /// Sizes in bytes, by UUID.
    volumes: BTreeMap<String, u64>,
}

impl There {
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
            let (_, found) = sr_handle.scan().await.unwrap();
            volumes.extend(found.into_iter().map(|one| (one.vdi.to_string(), one.virtual_bytes)));
        }
        Self { lines, domains, volumes }
    }

    /// Whether something is there whose words begin like this.
    pub(super) fn has(&self, beginning: &str) -> bool {
        self.lines.iter().any(|line| line.starts_with(beginning))
    }

    /// Every disk that is recorded is in its storage, as large as it is said to be, or is recorded
    /// as missing; and no other is in any storage.
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
