//! The present or last boot of a virtual machine, as `ringwayd` records it.

use std::time::{SystemTime, UNIX_EPOCH};

use model::diagnosis::duration;
use serde_json::{Map, Value};
use xenapi::Date;

/// Time in seconds after which a guest whose agent has not answered is not said to boot.
const AGENT_EXPECTED_SECONDS: f64 = 600.0;

/// Part of a boot with its name for a reader, in the order of time.
type Part = (&'static str, Option<u64>);

/// A boot. Times are in milliseconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Boot {
    place: Option<u64>,
    devices: Option<u64>,
    guest: Option<u64>,
    firmware: Option<u64>,
    kernel: Option<u64>,
    services: Option<u64>,
    /// Part that has not ended.
    waits: Option<Waits>,
}

#[derive(Clone, Debug, PartialEq)]
struct Waits {
    stage: String,
    since: String,
    seconds: f64,
}

impl Boot {
    /// Reads a boot from keys of `VM_metrics.other_config`. `None` if none is known. Values that are
    /// no times are unknown: any client may write them.
    pub(super) fn read<'a>(get: impl Fn(&str) -> Option<&'a str>, now: SystemTime) -> Option<Self> {
        let ms = |part: &str| get(&format!("boot-{part}-ms"))?.parse().ok();
        let waits = get("boot-stage").zip(get("boot-stage-since")).and_then(|(stage, since)| {
            let Date(began) = Date::parse(since)?;
            let now = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
            // The clock may have been set.
            let seconds = (now - began as f64).max(0.0);
            Some(Waits { stage: stage.to_owned(), since: since.to_owned(), seconds })
        });
        let boot = Self {
            place: ms("place"),
            devices: ms("devices"),
            guest: ms("guest"),
            firmware: ms("firmware"),
            kernel: ms("kernel"),
            services: ms("services"),
            waits,
        };
        (boot != Self::default()).then_some(boot)
    }

    /// Returns whether the machine starts now.
    pub(super) fn is_under_way(&self) -> bool {
        self.waits.is_some()
    }

    /// Returns a line on the boot of the machine of this name.
    pub(super) fn text(&self, name: &str) -> String {
        let parts = sum(self.parts());
        let Some(Waits { stage, seconds, .. }) = &self.waits else {
            return match self.total() {
                Some(total) => format!("{name}: its last boot took {}: {parts}", time(total)),
                None => format!("{name}: of its last boot is known: {parts}"),
            };
        };
        let what = match stage.as_str() {
            "place" => "its place among the VMs that boot",
            "devices" => "its disks, its interfaces and QEMU",
            _ if *seconds < AGENT_EXPECTED_SECONDS => "the agent of its guest",
            _ => {
                let since = duration(*seconds);
                return format!(
                    "{name} has started, but its guest's agent has not answered for {since}: it is \
                     not installed, or the guest hangs; see its console"
                );
            }
        };
        let before = if parts.is_empty() { parts } else { format!("; before: {parts}") };
        format!("{name} starts: it waits for {what}, for {}{before}", time((*seconds * 1e3) as u64))
    }

    /// Returns the boot as JSON, without what is not known.
    pub(super) fn json(&self) -> Value {
        let times = [
            ("place_ms", self.place),
            ("devices_ms", self.devices),
            ("guest_ms", self.guest),
            ("firmware_ms", self.firmware),
            ("kernel_ms", self.kernel),
            ("services_ms", self.services),
        ];
        let known = times.into_iter().filter_map(|(key, ms)| Some((key.to_owned(), ms?.into())));
        let mut all: Map<String, Value> = known.collect();
        if let Some(Waits { stage, since, seconds }) = &self.waits {
            all.insert("stage".to_owned(), stage.as_str().into());
            all.insert("since".to_owned(), since.as_str().into());
            all.insert("seconds".to_owned(), (*seconds).into());
        }
        Value::Object(all)
    }

    /// Returns the time of the whole boot, if all of it is known.
    fn total(&self) -> Option<u64> {
        Some(self.place?.saturating_add(self.devices?).saturating_add(self.guest?))
    }

    /// Returns the parts, with those of the guest if they are known.
    fn parts(&self) -> Vec<Part> {
        let mut all = vec![("for its place", self.place), ("for devices and QEMU", self.devices)];
        if self.kernel.is_some() {
            let guest =
                [("firmware", self.firmware), ("kernel", self.kernel), ("services", self.services)];
            all.extend(guest);
        } else {
            all.push(("until its guest's agent answered", self.guest));
        }
        all
    }
}

/// Joins the parts that are known.
fn sum(parts: Vec<Part>) -> String {
    let known = parts.into_iter().filter_map(|(name, ms)| Some(format!("{} {name}", time(ms?))));
    known.collect::<Vec<_>>().join(", ")
}

fn time(ms: u64) -> String {
    if ms == 0 { "0 s".to_owned() } else { duration(ms as f64 / 1e3) }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;

    /// 1970-01-02T00:00:00Z and so many seconds.
    fn boot(seconds: u64, config: &[(&str, &str)]) -> Option<Boot> {
        let get = |key: &str| config.iter().find(|(name, _)| *name == key).map(|(_, value)| *value);
        Boot::read(get, UNIX_EPOCH + Duration::from_secs(86_400 + seconds))
    }

    fn waiting<'a>(stage: &'a str, more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
        [&[("boot-stage", stage), ("boot-stage-since", "19700102T00:00:00Z")], more].concat()
    }

    const STARTED: [(&str, &str); 2] = [("boot-place-ms", "0"), ("boot-devices-ms", "400")];

    #[test]
    fn a_start_says_what_it_waits_for() {
        let text = |seconds, config: &[_]| boot(seconds, config).unwrap().text("web");
        assert_eq!(
            text(12, &waiting("place", &[])),
            "web starts: it waits for its place among the VMs that boot, for 12 s"
        );
        assert_eq!(
            text(1, &waiting("devices", &[("boot-place-ms", "12000")])),
            "web starts: it waits for its disks, its interfaces and QEMU, for 1.0 s; before: 12 s \
             for its place"
        );
        let guest = waiting("guest", &STARTED);
        assert_eq!(
            text(5, &guest),
            "web starts: it waits for the agent of its guest, for 5.0 s; before: 0 s for its place, \
             400 ms for devices and QEMU"
        );
        let text = text(7200, &guest);
        assert!(text.contains("agent has not answered for 2.0 h: it is not installed"), "{text}");
    }

    #[test]
    fn a_boot_that_is_over_says_where_its_time_went() {
        let text = |more: &[(&str, &str)]| boot(0, &[&STARTED, more].concat()).unwrap().text("web");
        let guest = ("boot-guest-ms", "13700");
        let stages = [
            guest,
            ("boot-firmware-ms", "1200"),
            ("boot-kernel-ms", "5000"),
            ("boot-services-ms", "7500"),
        ];
        assert_eq!(
            text(&stages),
            "web: its last boot took 14 s: 0 s for its place, 400 ms for devices and QEMU, 1.2 s \
             firmware, 5.0 s kernel, 7.5 s services"
        );
        assert_eq!(
            text(&[guest]),
            "web: its last boot took 14 s: 0 s for its place, 400 ms for devices and QEMU, 14 s \
             until its guest's agent answered"
        );
        assert_eq!(
            text(&[]),
            "web: of its last boot is known: 0 s for its place, 400 ms for devices and QEMU"
        );
    }

    #[test]
    fn nothing_is_said_of_values_that_are_no_times() {
        assert_eq!(boot(0, &[]), None);
        assert_eq!(boot(0, &[("boot-place-ms", "-1"), ("boot-stage", "place")]), None);
        assert_eq!(boot(0, &[("boot-stage", "place"), ("boot-stage-since", "now")]), None);
        // The clock was set back.
        let early = Boot::read(
            |key| waiting("place", &[]).into_iter().find(|(name, _)| *name == key).map(|(_, v)| v),
            UNIX_EPOCH,
        );
        assert!(early.unwrap().text("web").ends_with("for 0 s"));
    }

    #[test]
    fn json_has_what_is_known() {
        let json = boot(3, &waiting("devices", &[("boot-place-ms", "7")])).unwrap().json();
        let since = "19700102T00:00:00Z";
        let all = json!({ "place_ms": 7, "stage": "devices", "since": since, "seconds": 3.0 });
        assert_eq!(json, all);
    }
}
