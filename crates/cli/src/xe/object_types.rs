//! Object types of commands: each is a class of the API, or a part of one.

/// An object type with a `-list` command and `-param-` commands.
#[derive(Debug)]
pub(crate) struct ObjectType {
    /// Prefix of its commands.
    pub(crate) name: &'static str,
    /// Its API class.
    pub(crate) class: &'static str,
    /// Plural for sentences.
    pub(crate) many: &'static str,
    /// Columns listed by default; all if empty.
    pub(crate) shown: &'static [&'static str],
    /// Columns and texts that restrict the class to this type.
    pub(crate) only: &'static [(&'static str, &'static str)],
}

const fn kind(
    name: &'static str,
    class: &'static str,
    many: &'static str,
    shown: &'static [&'static str],
) -> ObjectType {
    ObjectType { name, class, many, shown, only: &[] }
}

impl ObjectType {
    const fn only(mut self, only: &'static [(&'static str, &'static str)]) -> Self {
        self.only = only;
        self
    }
}

/// All object types.
pub(crate) const KINDS: &[ObjectType] = &[
    kind("bond", "Bond", "bonds of host network devices", &["uuid", "master", "slaves"]),
    kind(
        "console",
        "console",
        "consoles of machines",
        &["uuid", "vm-uuid", "vm-name-label", "protocol", "location"],
    ),
    kind("host", "host", "hosts", &["uuid", "name-label", "name-description"]),
    kind(
        "host-cpu",
        "host_cpu",
        "CPUs of hosts",
        &["uuid", "number", "vendor", "speed", "utilisation"],
    ),
    kind("message", "message", "messages", &[]),
    kind("network", "network", "networks", &["uuid", "name-label", "name-description", "bridge"]),
    kind(
        "pbd",
        "PBD",
        "hosts' connections to storage",
        &["uuid", "host-uuid", "sr-uuid", "device-config", "currently-attached"],
    ),
    kind(
        "pif",
        "PIF",
        "network devices of hosts",
        &["uuid", "device", "VLAN", "MAC", "network-uuid", "currently-attached", "host-uuid"],
    ),
    kind(
        "pool",
        "pool",
        "pools",
        &["uuid", "name-label", "name-description", "master", "default-SR"],
    ),
    kind("role", "role", "roles", &["uuid", "name", "description"])
        .only(&[("is-internal", "false")]),
    kind("secret", "secret", "secrets", &[]),
    kind(
        "sm",
        "SM",
        "kinds of storage",
        &["uuid", "type", "name-label", "name-description", "vendor", "copyright", "configuration"],
    ),
    kind("snapshot", "VM", "snapshots", &["uuid", "name-label", "name-description", "snapshot-of"])
        .only(&[("is-a-snapshot", "true")]),
    kind(
        "sr",
        "SR",
        "storage repositories",
        &["uuid", "name-label", "name-description", "host", "type", "content-type"],
    ),
    kind("subject", "subject", "users", &["uuid", "subject-identifier", "other-config", "roles"]),
    kind(
        "task",
        "task",
        "tasks",
        &["uuid", "name-label", "name-description", "status", "progress"],
    ),
    kind("template", "VM", "templates", &["uuid", "name-label", "name-description"])
        .only(&[("is-a-template", "true"), ("is-a-snapshot", "false")]),
    kind(
        "vbd",
        "VBD",
        "disk devices of machines",
        &["uuid", "vm-uuid", "vm-name-label", "vdi-uuid", "device", "empty"],
    ),
    kind(
        "vdi",
        "VDI",
        "disks",
        &[
            "uuid",
            "name-label",
            "name-description",
            "virtual-size",
            "read-only",
            "sharable",
            "sr-uuid",
        ],
    ),
    kind(
        "vif",
        "VIF",
        "network devices of machines",
        &["uuid", "device", "vm-uuid", "network-uuid"],
    ),
    kind("vlan", "VLAN", "virtual LANs of hosts", &["uuid", "tagged-PIF", "untagged-PIF", "tag"]),
    kind("vm", "VM", "machines", &["uuid", "name-label", "power-state"])
        .only(&[("is-a-template", "false")]),
];

/// Returns the object type of this name.
pub(crate) fn find(name: &str) -> Option<&'static ObjectType> {
    KINDS.iter().find(|kind| kind.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::columns;

    #[test]
    fn what_a_kind_names_is_there() {
        for kind in KINDS {
            let class = xenapi::table::class(kind.class).unwrap();
            assert!(class.listed, "{}", kind.name);
            let columns = columns::of(class);
            for name in kind.shown.iter().chain(kind.only.iter().map(|(name, _)| name)) {
                let there = columns.iter().any(|column| column.is(name));
                assert!(there, "{} has no {name}", kind.name);
            }
            assert_eq!(find(kind.name).unwrap().name, kind.name);
        }
    }

    #[test]
    fn every_listed_class_has_a_kind_or_is_left_out_on_purpose() {
        let left_out = [
            "VM_metrics",
            "VM_guest_metrics",
            "host_metrics",
            "VIF_metrics",
            "PIF_metrics",
            "VBD_metrics",
            "blob",
        ];
        for class in xenapi::table::classes().iter().filter(|class| class.listed) {
            let has = KINDS.iter().any(|kind| kind.class == class.name);
            assert_ne!(has, left_out.contains(&class.name), "{}", class.name);
        }
    }
}
