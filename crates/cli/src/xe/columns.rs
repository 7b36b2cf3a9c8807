//! Columns of a record: its fields, under the names that administrators know, and some fields of
//! the records to which it refers.

mod order;

use std::borrow::Cow;

use xenapi::client::Record;
use xenapi::table::resolve::resolve;
use xenapi::table::{Class, Type, class};

use crate::values::{self, NOT_THERE, NOTHING};
use crate::xe::Tables;

/// A column of a class.
#[derive(Clone, Debug)]
pub(crate) struct Column {
    /// Name of the column.
    pub(crate) name: Cow<'static, str>,
    /// Class of the record.
    pub(crate) of: &'static Class,
    /// Field of the record that the column shows.
    pub(crate) field: &'static str,
    source: Source,
    ty: Type,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    /// The field itself.
    Own,
    /// A field of the record of this class to which the field refers.
    Through(&'static str, &'static str),
    /// The values of a map without its keys.
    Members,
    /// The host that is connected to a storage repository.
    HostOfStorage,
    /// The result of a separate call, only for a single record.
    Asked(&'static str),
}

/// A class and a field of it, then the field's columns. Each column has a name and, for a
/// reference, the field of the referenced record.
type Renamed = (&'static str, &'static str, &'static [(&'static str, &'static str)]);

/// Fields whose columns do not have the field's name.
const RENAMED: &[Renamed] = &[
    ("PBD", "SR", &[("sr-uuid", ""), ("sr-name-label", "name_label")]),
    ("PBD", "host", &[("host-uuid", ""), ("host-name-label", "name_label")]),
    ("PIF", "host", &[("host-uuid", ""), ("host-name-label", "name_label")]),
    ("PIF", "network", &[("network-uuid", ""), ("network-name-label", "name_label")]),
    ("PIF", "ip_configuration_mode", &[("IP-configuration-mode", "")]),
    ("PIF", "ipv6_configuration_mode", &[("IPv6-configuration-mode", "")]),
    ("PIF", "ipv6_gateway", &[("IPv6-gateway", "")]),
    ("PIF", "VLAN_master_of", &[("vlan-master-of", "")]),
    ("PIF", "VLAN_slave_of", &[("vlan-slave-of", "")]),
    ("VBD", "VDI", &[("vdi-uuid", ""), ("vdi-name-label", "name_label")]),
    ("VBD", "VM", &[("vm-uuid", ""), ("vm-name-label", "name_label")]),
    ("VDI", "SR", &[("sr-uuid", ""), ("sr-name-label", "name_label")]),
    ("VDI", "VBDs", &[("vbd-uuids", "")]),
    ("VDI", "crash_dumps", &[("crashdump-uuids", "")]),
    ("VIF", "VM", &[("vm-uuid", ""), ("vm-name-label", "name_label")]),
    ("VIF", "network", &[("network-uuid", ""), ("network-name-label", "name_label")]),
    ("VM", "consoles", &[("console-uuids", "")]),
    ("VM", "domid", &[("dom-id", "")]),
    (
        "VM",
        "guest_metrics",
        &[
            ("os-version", "os_version"),
            ("PV-drivers-version", "PV_drivers_version"),
            ("PV-drivers-up-to-date", "PV_drivers_up_to_date"),
            ("PV-drivers-detected", "PV_drivers_detected"),
            ("memory", "memory"),
            ("disks", "disks"),
            ("networks", "networks"),
            ("other", "other"),
            ("live", "live"),
            ("guest-metrics-last-updated", "last_updated"),
            ("can-use-hotplug-vbd", "can_use_hotplug_vbd"),
            ("can-use-hotplug-vif", "can_use_hotplug_vif"),
        ],
    ),
    ("VM", "last_booted_record", &[("last-boot-record", "")]),
    (
        "VM",
        "metrics",
        &[
            ("memory-actual", "memory_actual"),
            ("VCPUs-number", "VCPUs_number"),
            ("VCPUs-utilisation", "VCPUs_utilisation"),
            ("start-time", "start_time"),
            ("install-time", "install_time"),
            ("hvm", "hvm"),
            ("nested-virt", "nested_virt"),
            ("nomigrate", "nomigrate"),
            ("current-domain-type", "current_domain_type"),
        ],
    ),
    ("VM", "VTPMs", &[("vtpms", "")]),
    ("VM", "suspend_SR", &[("suspend-SR-uuid", "")]),
    ("VM", "suspend_VDI", &[("suspend-VDI-uuid", "")]),
    ("console", "VM", &[("vm-uuid", ""), ("vm-name-label", "name_label")]),
    ("host", "control_domain", &[("control-domain-uuid", "")]),
    ("host", "crash_dump_sr", &[("crash-dump-sr-uuid", "")]),
    (
        "host",
        "metrics",
        &[
            ("memory-total", "memory_total"),
            ("memory-free", "memory_free"),
            ("host-metrics-live", "live"),
        ],
    ),
    ("host", "resident_VMs", &[("resident-vms", "")]),
    ("host", "suspend_image_sr", &[("suspend-image-sr-uuid", "")]),
    ("host_cpu", "host", &[("host-uuid", "")]),
    ("message", "cls", &[("class", "")]),
    ("network", "PIFs", &[("PIF-uuids", "")]),
    ("network", "VIFs", &[("VIF-uuids", "")]),
    ("role", "name_description", &[("description", "")]),
    ("role", "name_label", &[("name", "")]),
    ("task", "allowed_operations", &[("allowed_operations", "")]),
];

/// Columns whose names have the underscores of their fields.
const UNDERSCORED: &[&str] = &[
    "cpu_info",
    "error_info",
    "guest_VCPUs_params",
    "iscsi_iqn",
    "qos_algorithm_params",
    "qos_algorithm_type",
    "qos_supported_algorithms",
    "subtask_of",
];

/// Columns without a field.
const ASKED: &[(&str, &str, &str)] = &[
    ("VM", "allowed-VBD-devices", "VM.get_allowed_VBD_devices"),
    ("VM", "allowed-VIF-devices", "VM.get_allowed_VIF_devices"),
    ("VM", "possible-hosts", "VM.get_possible_hosts"),
];

/// Returns the columns of a class in their order, the UUID first.
pub(crate) fn of(of: &'static Class) -> Vec<Column> {
    let mut columns: Vec<Column> = of.fields.iter().flat_map(|field| of_field(of, field)).collect();
    if of.name == "SR" {
        let name = Cow::Borrowed("host");
        let source = Source::HostOfStorage;
        columns.push(Column { name, of, field: "PBDs", source, ty: Type::Str });
    }
    for (_, name, method) in ASKED.iter().filter(|(class, ..)| *class == of.name) {
        let Some((means, _)) = resolve(method) else { continue };
        let (name, source, ty) = (Cow::Borrowed(*name), Source::Asked(method), means.result());
        columns.push(Column { name, of, field: "", source, ty });
    }
    order::sort(of.name, &mut columns);
    columns
}

fn of_field(of: &'static Class, field: &'static xenapi::table::Field) -> Vec<Column> {
    let own =
        |name: Cow<'static, str>, source, ty| Column { name, of, field: field.name, source, ty };
    if field.name == "current_operations" {
        let Type::Map(_, word) = field.ty else { return Vec::new() };
        let name = if of.name == "task" { Cow::Borrowed(field.name) } else { dashed(field.name) };
        return vec![own(name, Source::Members, Type::Set(word))];
    }
    let renamed = RENAMED.iter().find(|(class, name, _)| *class == of.name && *name == field.name);
    let Some((_, _, columns)) = renamed else {
        return vec![own(dashed(field.name), Source::Own, field.ty)];
    };
    let column = |(name, target): &(&'static str, &'static str)| {
        let name = Cow::Borrowed(*name);
        let referred = match field.ty {
            Type::Ref(class_name) if !target.is_empty() => class(class_name),
            _ => return Some(own(name, Source::Own, field.ty)),
        };
        let (_, target) = referred?.field(target)?;
        Some(own(name, Source::Through(referred?.name, target.name), target.ty))
    };
    columns.iter().filter_map(column).collect()
}

fn dashed(field: &'static str) -> Cow<'static, str> {
    if UNDERSCORED.contains(&field) || !field.contains('_') {
        return Cow::Borrowed(field);
    }
    Cow::Owned(field.replace('_', "-"))
}

impl Column {
    /// Returns whether the column has this name; a dash equals an underscore.
    pub(crate) fn is(&self, name: &str) -> bool {
        let plain = |c: char| if c == '_' { '-' } else { c };
        self.name.chars().map(plain).eq(name.chars().map(plain))
    }

    /// Returns whether the text is case-insensitive.
    pub(crate) fn any_case(&self) -> bool {
        matches!(self.field, "uuid" | "MAC") || self.name.ends_with("-uuid")
    }

    /// Returns the type of the column's value.
    pub(crate) fn ty(&self) -> &Type {
        &self.ty
    }

    /// Returns the call that reads the value, if it is not part of the record.
    pub(crate) fn asked(&self) -> Option<&'static str> {
        match self.source {
            Source::Asked(method) => Some(method),
            _ => None,
        }
    }

    /// Returns the writing call with this prefix (`set_`, `add_to_` and so on), if it exists.
    pub(crate) fn method(&self, verb: &str) -> Option<String> {
        let own = self.source == Source::Own;
        let method = format!("{}.{verb}{}", self.of.name, self.field);
        (own && resolve(&method).is_some()).then_some(method)
    }

    /// Returns the heading in lists: name, type, and whether it is writable.
    pub(crate) fn heading(&self) -> String {
        let set = self.method("set_").is_some();
        let (kind, written) = match self.ty {
            Type::Map(..) => ("M", set || self.method("add_to_").is_some()),
            Type::Set(_) => ("S", set || self.method("add_").is_some()),
            _ => (" ", set),
        };
        format!("{} ({kind}{})", self.name, if written { "RW" } else { "RO" })
    }

    /// Returns the classes whose records the text needs.
    pub(crate) fn needs(&self) -> Vec<&'static str> {
        match self.source {
            Source::HostOfStorage => vec!["PBD", "host"],
            Source::Through(class, _) => {
                values::classes_in(&self.ty).into_iter().chain([class]).collect()
            }
            _ => values::classes_in(&self.ty),
        }
    }

    /// Returns the text for a record. The classes that it [needs](Self::needs) must have been read.
    pub(crate) fn text(&self, record: &Record, tables: &Tables) -> String {
        match self.source {
            Source::Own => values::text(record.get(self.field), &self.ty, tables),
            Source::Members => {
                let members = record.pairs(self.field).into_values();
                members.collect::<Vec<_>>().join(values::BETWEEN)
            }
            Source::Through(class, target) => match record.reference(self.field) {
                None => NOTHING.to_owned(),
                Some(reference) => match tables.record(class, reference) {
                    None => NOT_THERE.to_owned(),
                    Some(referred) => values::text(referred.get(target), &self.ty, tables),
                },
            },
            Source::HostOfStorage => host_of_storage(record, tables),
            Source::Asked(_) => "<expensive field>".to_owned(),
        }
    }

    /// Returns the members of a map as text, or those of a set with empty values; empty for other
    /// types.
    pub(crate) fn members(&self, record: &Record, tables: &Tables) -> Vec<(String, String)> {
        match self.source {
            Source::Own => values::members(record.get(self.field), &self.ty, tables),
            Source::Members => {
                let members = record.pairs(self.field).into_values();
                members.map(|word| (word.to_owned(), String::new())).collect()
            }
            Source::Through(class, target) => {
                let reference = record.reference(self.field);
                let referred = reference.and_then(|reference| tables.record(class, reference));
                let value = referred.and_then(|referred| referred.get(target));
                values::members(value, &self.ty, tables)
            }
            Source::HostOfStorage | Source::Asked(_) => Vec::new(),
        }
    }
}

fn host_of_storage(record: &Record, tables: &Tables) -> String {
    let connections = record.texts("PBDs");
    let host = match connections.as_slice() {
        [] => None,
        [one] => {
            let connection = tables.record("PBD", one);
            let host = connection.and_then(|one| one.reference("host"));
            host.and_then(|host| tables.record("host", host))
        }
        _ => return "<shared>".to_owned(),
    };
    host.map_or(NOTHING.to_owned(), |host| host.text("name_label").to_owned())
}

#[cfg(test)]
mod tests;
