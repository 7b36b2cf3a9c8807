//! Space of attached SRs: measured with the host's memory, with a warning when little is left.
//!
//! [`KEY`] in `sm_config` of the SR says what the warning is about, so a message comes once, also
//! across restarts of the daemon. Keys of `other_config` set the limits of an SR.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use model::id::SrId;
use tokio::task::JoinSet;
use tokio::time::Instant;
use toolstack::sr::Space;
use xenapi::table::{pbd, sr};
use xenapi::{ApiError, Value};

use super::{SrHandle, connection, measured};
use crate::app::AppState;
use crate::db::{Object, Ref, Tx, View};
use crate::ops::message::{MessageDraft, write};
use crate::records::fields::{bytes, flag, pairs, text, uuid};

/// Key in `sm_config` while a warning holds: `level` or `rate`.
pub(crate) const KEY: &str = "space-warning";
/// Key in `other_config`: percent of use from which on to warn, 90 by default; 0 for never.
const PERCENT_KEY: &str = "space-warning-percent";
/// Key in `other_config`: hours until the SR is full at which to warn, 24 by default; 0 for never.
const HOURS_KEY: &str = "space-warning-hours";
/// Name of the message.
const MESSAGE: &str = "SR_SPACE_LOW";
/// Key in `sm_config`: bytes that caches of images take.
pub(super) const CACHES_KEY: &str = "cache-bytes";
/// Percent by which the use must fall below the limit before the warning ends.
const HYSTERESIS_PERCENT: u64 = 2;
/// Least and longest time over which the rate is measured.
const RATE_SPAN: [Duration; 2] = [Duration::from_secs(600), Duration::from_secs(3600)];
/// Part of the total by which the recorded use may differ: each change is an event to all clients.
const RECORDED_PART: u64 = 1000;
/// Part of the bytes of caches by which the recorded ones may differ. A scan records them as they are.
const CACHES_PART: u64 = 16;

/// Measurements of the last hour.
#[derive(Debug, Default)]
pub(crate) struct SpaceWatch(HashMap<SrId, VecDeque<(Instant, u64)>>);

/// Limits of an SR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Limits {
    percent: u64,
    hours: u64,
}

impl Limits {
    fn parse(config: &BTreeMap<String, String>) -> Self {
        let of = |key: &str, usual| config.get(key).and_then(|it| it.parse().ok()).unwrap_or(usual);
        Self { percent: of(PERCENT_KEY, 90), hours: of(HOURS_KEY, 24) }
    }
}

/// Reason of a warning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Warning {
    /// So many percent are used.
    Level(u64),
    /// The SR is full in so many hours.
    Rate(u64),
}

impl Warning {
    /// Decides about an SR whose use grows by so many bytes a second. `held` says that a warning
    /// holds already.
    fn find(space: Space, bytes_per_second: u64, limits: Limits, held: bool) -> Option<Self> {
        let Space { total, used, .. } = space;
        let percent = used.saturating_mul(100).checked_div(total)?;
        let ends = if held { HYSTERESIS_PERCENT } else { 0 };
        if limits.percent > 0 && percent >= limits.percent.saturating_sub(ends) {
            return Some(Self::Level(percent));
        }
        let seconds = total.saturating_sub(used).checked_div(bytes_per_second)?;
        let hours = seconds / 3600;
        (hours < limits.hours).then_some(Self::Rate(hours))
    }

    fn name(self) -> &'static str {
        match self {
            Self::Level(_) => "level",
            Self::Rate(_) => "rate",
        }
    }
}

impl SpaceWatch {
    /// Measures all attached SRs. One that hangs ends its own measurement by its deadline.
    pub(crate) async fn measure(&mut self, app: &Arc<AppState>) {
        let storages = app.db.read(|view| attached(app, view));
        self.measure_these(app, storages, Instant::now()).await;
    }

    async fn measure_these(&mut self, app: &Arc<AppState>, storages: Vec<SrHandle>, now: Instant) {
        let mut measurements = JoinSet::new();
        for storage in storages {
            measurements.spawn(async move { (storage.space().await, storage) });
        }
        for (space, storage) in measurements.join_all().await {
            // The state of an SR that fails is shown elsewhere.
            let Ok(Some(space)) = space else { continue };
            let rate = self.add(storage.id, space.used, now);
            let noted = app.db.write_observed(|tx| note(tx, app, &storage, space, rate));
            if let Err(error) = noted {
                tracing::warn!(sr = %storage.id, "its space is not recorded: {error}");
            }
        }
    }

    /// Adds a measurement of the used bytes. Returns by how many bytes a second they grow, as far as
    /// that is known.
    fn add(&mut self, sr: SrId, used: u64, now: Instant) -> u64 {
        let [least, longest] = RATE_SPAN;
        let history = self.0.entry(sr).or_default();
        history.push_back((now, used));
        history.retain(|(at, _)| now.saturating_duration_since(*at) <= longest);
        let Some((at, before)) = history.front() else { return 0 };
        let span = now.saturating_duration_since(*at);
        let grown = used.saturating_sub(*before);
        if span < least { 0 } else { grown.checked_div(span.as_secs()).unwrap_or(0) }
    }
}

fn attached(app: &AppState, view: &View<'_>) -> Vec<SrHandle> {
    let places = view.all(&sr::CLASS).map(Object::reference);
    let is_attached = |place: &&Ref| {
        let found = connection(view, place);
        found
            .is_ok_and(|(pbd, _)| flag(view, &pbd, pbd::Field::currently_attached).unwrap_or(false))
    };
    places.filter(is_attached).filter_map(|place| app.storage.of(view, place).ok()).collect()
}

/// Returns whether the bytes of caches differ much from the recorded ones.
fn caches_differ(recorded: Option<&String>, now: Option<u64>) -> bool {
    let Some(now) = now else { return false };
    let recorded = recorded.and_then(|text| text.parse::<u64>().ok());
    recorded.is_none_or(|recorded| recorded.abs_diff(now) > now / CACHES_PART)
}

/// Records the space of an SR, and warns once.
fn note(
    tx: &mut Tx<'_>,
    app: &AppState,
    storage: &SrHandle,
    space: Space,
    bytes_per_second: u64,
) -> Result<(), ApiError> {
    let (view, place) = (tx.view(), &storage.sr);
    let recorded = bytes(&view, place, sr::Field::physical_utilisation)?;
    let is_other = bytes(&view, place, sr::Field::physical_size)? != space.total;
    let limits = Limits::parse(&pairs(&view, place, sr::Field::other_config)?);
    let mut sm_config = pairs(&view, place, sr::Field::sm_config)?;
    let held = sm_config.remove(KEY);
    let name = text(&view, place, sr::Field::name_label)?.to_owned();
    let is_other = is_other || caches_differ(sm_config.get(CACHES_KEY), space.caches);
    if is_other || recorded.abs_diff(space.used) > space.total / RECORDED_PART {
        measured(tx, place, space)?;
    }
    let warning = Warning::find(space, bytes_per_second, limits, held.is_some());
    if held.as_deref() == warning.map(Warning::name) {
        return Ok(());
    }
    let shown = warning.map(|warning| Value::text(warning.name()));
    tx.set_key(place, sr::Field::sm_config, KEY, shown)?;
    let why = match warning {
        None => return Ok(()),
        Some(Warning::Level(percent)) => format!("{percent} % are used"),
        Some(Warning::Rate(hours)) => format!("it is full in {hours} hours at the present rate"),
    };
    let free = space.total.saturating_sub(space.used) >> 20;
    let body = format!(
        "Storage repository `{name}` has {free} MiB left: {why}. Destroy disks or snapshots, or add \
         space."
    );
    tracing::warn!(sr = %storage.id, "{body}");
    let uuid = storage.id.to_string();
    let draft = MessageDraft { name: MESSAGE, priority: 3, cls: "SR", uuid: &uuid, body: &body };
    write(tx, &draft, app.clock.date()).map(drop)
}

/// Returns the UUID of each SR with its total and used bytes, and whether a warning holds.
pub(crate) fn shown(view: &View<'_>) -> Vec<(String, [u64; 2], bool)> {
    let places = view.all(&sr::CLASS).map(Object::reference);
    let of = |place: &Ref| {
        let sizes = [sr::Field::physical_size, sr::Field::physical_utilisation];
        let [Ok(total), Ok(used)] = sizes.map(|field| bytes(view, place, field)) else {
            return None;
        };
        let config = pairs(view, place, sr::Field::sm_config).ok()?;
        let id = uuid(view, place, sr::Field::uuid).ok()?;
        Some((id.to_string(), [total, used], config.contains_key(KEY)))
    };
    places.filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use model::id::Uuid;
    use testkit::in_namespace::in_little_room;
    use testkit::process::find_binary;
    use toolstack::helper_command::HelperCommand;
    use toolstack::sr::dir::{DirDriver, LOCATION};
    use toolstack::sr::{SrDriver as _, worker};

    use super::*;
    use crate::tests::simulated_host::SimulatedHost;

    const GIB: u64 = 1 << 30;
    const MIB: usize = 1 << 20;
    const SMALL: &str = concat!(module_path!(), "::a_small_file_system_is_warned_of");
    const USUAL: Limits = Limits { percent: 90, hours: 24 };

    #[test]
    fn little_space_is_a_level_or_a_rate() {
        let space = |used| Space { total: 100 * GIB, used: used * GIB, caches: None };
        let find = |used, rate, held| Warning::find(space(used), rate, USUAL, held);
        assert_eq!(find(89, 0, false), None);
        assert_eq!(find(90, 0, false), Some(Warning::Level(90)));
        assert_eq!([find(88, 0, true), find(87, 0, true)], [Some(Warning::Level(88)), None]);
        // 50 GiB in 25 hours, and in 12.
        assert_eq!(find(50, 50 * GIB / 90_000, false), None);
        assert_eq!(find(50, 50 * GIB / 43_200, false), Some(Warning::Rate(12)));
        let never = Limits { percent: 0, hours: 0 };
        assert_eq!(Warning::find(space(99), GIB, never, false), None);
        assert_eq!(Warning::find(Space::default(), 1, USUAL, false), None);
    }

    #[test]
    fn a_rate_is_known_after_a_while() {
        let (mut watch, sr, start) = (SpaceWatch::default(), SrId(Uuid::default()), Instant::now());
        let at = |minutes: u64| start + Duration::from_secs(60 * minutes);
        assert_eq!([watch.add(sr, 0, at(0)), watch.add(sr, 6000, at(9))], [0, 0]);
        assert_eq!(watch.add(sr, 6000, at(10)), 10);
        // Only the last hour counts.
        assert_eq!(watch.add(sr, 6000, at(70)), 0);
    }

    /// Measures a directory in a file system of 64 MiB through a storage worker.
    #[test]
    fn a_small_file_system_is_warned_of() {
        let inside = |dir: &Path| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(fill_a_small_file_system(dir));
        };
        in_little_room(SMALL, 64, inside).unwrap();
    }

    async fn fill_a_small_file_system(dir: &Path) {
        let program = find_binary("ringwayd").unwrap();
        let helper = HelperCommand { program, words: vec![worker::MODE.into()] };
        let host = worker::Host::new(helper, Duration::from_secs(60));
        let driver = Arc::new(DirDriver::new("dir", host, "/nonexistent".into()));
        let sim_host = SimulatedHost::new().await;
        let app = &sim_host.test_app.app;
        let recorded = app.db.read(|view| app.storage.of(view, &sim_host.place())).unwrap();
        let storage = SrHandle { driver: driver.clone(), ..recorded };
        let config = BTreeMap::from([(LOCATION.into(), dir.join("sr").to_str().unwrap().into())]);
        driver.create(storage.id, &config).await.unwrap();
        driver.attach(storage.id, &config).await.unwrap();

        let (mut watch, start) = (SpaceWatch::default(), Instant::now());
        // The minute, the MiB that are in use from then on, and the warning with its words.
        for (minute, used, name, said) in [
            (0, 10, None, ""),
            (11, 10, None, ""),
            (12, 40, Some("rate"), "it is full in 0 hours at the present rate"),
            (13, 40, Some("rate"), ""),
            (14, 60, Some("level"), "93 % are used"),
            (15, 60, Some("level"), ""),
            (90, 10, None, ""),
        ] {
            let before = sim_host.bodies().len();
            std::fs::write(dir.join("filler"), vec![1; used * MIB]).unwrap();
            let now = start + Duration::from_secs(60 * minute);
            watch.measure_these(app, vec![storage.clone()], now).await;
            let (config, shown) = app.db.read(|view| {
                (pairs(view, &storage.sr, sr::Field::sm_config).unwrap(), shown(view))
            });
            assert_eq!(config.get(KEY).map(String::as_str), name, "{minute}");
            let (_, [total, now_used], is_held) = shown.last().unwrap();
            assert_eq!((*total, *is_held), (64 << 20, name.is_some()), "{minute}");
            let filled = (used * MIB) as u64;
            assert!((filled..filled + (1 << 20)).contains(now_used), "{minute}: {now_used}");
            let bodies = sim_host.bodies().split_off(before);
            assert_eq!(bodies.len(), usize::from(!said.is_empty()), "{minute}: {bodies:?}");
            assert!(bodies.concat().contains(said), "{minute}: {bodies:?}");
        }
    }

    #[tokio::test]
    async fn caches_are_recorded_when_they_have_changed_much() {
        let sim_host = SimulatedHost::new().await;
        let app = &sim_host.test_app.app;
        let storage = app.db.read(|view| app.storage.of(view, &sim_host.place())).unwrap();
        let shown = |caches: Option<u64>| {
            let space = Space { total: 100 * GIB, used: GIB, caches };
            app.db.write_observed(|tx| note(tx, app, &storage, space, 0)).unwrap();
            let config = app.db.read(|view| pairs(view, &storage.sr, sr::Field::sm_config));
            config.unwrap().remove(CACHES_KEY)
        };
        assert_eq!(shown(None), None);
        for (bytes, expected) in [(0, "0"), (4096, "4096"), (GIB, "1073741824"), (0, "0")] {
            assert_eq!(shown(Some(bytes)).as_deref(), Some(expected));
        }
        assert_eq!([1600, 1650, 1704].map(|bytes| shown(Some(bytes)).unwrap()), ["1600"; 3]);
        assert_eq!(shown(Some(1800)).as_deref(), Some("1800"));
    }

    #[tokio::test]
    async fn a_warning_is_told_once_while_it_holds() {
        let sim_host = SimulatedHost::new().await;
        let app = &sim_host.test_app.app;
        let storage = app.db.read(|view| app.storage.of(view, &sim_host.place())).unwrap();
        let told = |used: u64| {
            let space = Space { total: 100 * GIB, used: used * GIB, caches: None };
            app.db.write_observed(|tx| note(tx, app, &storage, space, 0)).unwrap();
            app.db.read(|view| {
                let all = view.all(&xenapi::table::message::CLASS);
                let name = |one: &&Object| {
                    let field = xenapi::table::message::Field::name.into();
                    one.get(field) == Some(&Value::text(MESSAGE))
                };
                let is_held = shown(view).iter().any(|(.., is_held)| *is_held);
                (all.filter(name).count(), is_held)
            })
        };
        let steps = [50, 95, 96, 89, 80, 92].map(told);
        let expected = [(0, false), (1, true), (1, true), (1, true), (1, false), (2, true)];
        assert_eq!(steps, expected);
    }
}
