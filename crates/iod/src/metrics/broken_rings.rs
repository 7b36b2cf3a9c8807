//! Metrics of broken rings, for disks and NICs.

use model::report::{BrokenRing, DiskStats, PortStats};

use super::text::{MetricType, Page};

/// Names of a kind of device and of its metrics.
struct DeviceNames {
    label: &'static str,
    count: &'static str,
    total: &'static str,
    seconds: &'static str,
}

const DISK: DeviceNames = DeviceNames {
    label: "disk",
    count: "ringway_disk_broken_rings",
    total: "ringway_disk_ring_breaks",
    seconds: "ringway_disk_broken_ring_seconds",
};
const NIC: DeviceNames = DeviceNames {
    label: "nic",
    count: "ringway_nic_broken_rings",
    total: "ringway_nic_ring_breaks",
    seconds: "ringway_nic_broken_ring_seconds",
};

/// A disk or NIC with its broken rings.
struct Device<'a> {
    id: &'a str,
    broken: &'a [BrokenRing],
    total: u64,
    since: Option<f64>,
}

/// Writes the metrics of disks.
pub(super) fn disks(page: &mut Page, all: &[DiskStats]) {
    let all = all.iter().map(|disk| {
        let (total, since) = (disk.broken_rings_total, disk.counting_since_unix_seconds);
        Device { id: &disk.id, broken: &disk.broken_rings, total, since }
    });
    write(page, &DISK, &all.collect::<Vec<_>>());
}

/// Writes the metrics of NICs.
pub(super) fn nics(page: &mut Page, all: &[PortStats]) {
    let all = all.iter().map(|port| {
        let (total, since) = (port.broken_rings_total, port.counting_since_unix_seconds);
        Device { id: &port.id, broken: &port.broken_rings, total, since }
    });
    write(page, &NIC, &all.collect::<Vec<_>>());
}

fn write(page: &mut Page, names: &DeviceNames, devices: &[Device<'_>]) {
    let help =
        "Rings that their driver has broken. They are not served until it resets the device.";
    let mut family = page.family(names.count, MetricType::Gauge, None, help);
    for Device { id, broken, .. } in devices {
        family.add(&[(names.label, id)], broken.len());
    }
    let help = "Times that a driver broke a ring.";
    let mut family = page.family(names.total, MetricType::Counter, None, help);
    for Device { id, total, since, .. } in devices {
        family.count(&[(names.label, id)], total, *since);
    }
    let help = "Time since a ring broke, with the rule that its driver broke first.";
    let mut family = page.family(names.seconds, MetricType::Gauge, Some("seconds"), help);
    for Device { id, broken, .. } in devices {
        for one in *broken {
            let (queue, cause) = (one.queue.to_string(), rule(&one.cause));
            let labels = [(names.label, *id), ("queue", &queue), ("cause", &cause)];
            family.add(&labels, one.since_seconds);
        }
    }
}

/// Returns a cause with `N` in place of each number. The guest chooses the numbers, and a label
/// must have few values.
fn rule(cause: &str) -> String {
    let mut rule = String::with_capacity(cause.len());
    let mut before = None;
    let mut in_number = false;
    for letter in cause.chars() {
        let is_word = letter.is_alphanumeric();
        in_number &= is_word;
        if letter.is_ascii_digit() && !before.is_some_and(char::is_alphanumeric) {
            in_number = true;
            rule.push('N');
        }
        if !in_number {
            rule.push(letter);
        }
        before = Some(letter);
    }
    rule
}

#[cfg(test)]
mod tests {
    use super::rule;

    #[test]
    fn a_label_has_no_number_of_the_guest() {
        for (cause, label) in [
            (
                "available index jumped from 1 to 1001 in a ring of 256",
                "available index jumped from N to N in a ring of N",
            ),
            ("buffer is not usable: 0x7f3a+16 bytes, v2", "buffer is not usable: N+N bytes, v2"),
            ("", ""),
        ] {
            assert_eq!(rule(cause), label);
        }
    }
}
