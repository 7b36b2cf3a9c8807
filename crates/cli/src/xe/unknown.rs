//! Answer to a command that does not exist.

use crate::commands;

/// Most edits between a mistyped command and the one that is meant.
const EDITS_MAX: usize = 3;

/// First parts of XenServer's commands for which this server has nothing.
const NOT_HERE: [&str; 33] = [
    "appliance",
    "audit-log",
    "blob",
    "bond",
    "cluster",
    "diagnostic",
    "drtask",
    "gpu-group",
    "host-backup",
    "host-license",
    "host-restore",
    "log",
    "lvhd",
    "observer",
    "patch",
    "pgpu",
    "pool-eject",
    "pool-ha",
    "pool-join",
    "pool-restore",
    "pool-retrieve",
    "pvs",
    "pusb",
    "sdn-controller",
    "subject-add",
    "tunnel",
    "update",
    "vgpu",
    "vlan",
    "vmpp",
    "vmss",
    "vtpm",
    "vusb",
];

/// Other commands of XenServer that do not exist here, with blanks between.
const NAMES_NOT_HERE: &str = include_str!("not_here.txt");

/// Commands of [`NAMES_NOT_HERE`], each with the way that does its work here.
const WAYS: [(&str, &str); 6] = [
    ("snapshot-export-to-template", TO_TEMPLATE),
    ("snapshot-reset-powerstate", "snapshots are always halted here"),
    ("template-export", EXPORT),
    ("vdi-unlock", "vbd-list vdi-uuid=UUID shows which VM has the disk; vbd-unplug frees it"),
    ("vm-export", EXPORT),
    ("vm-import", "make a VM with vm-install, and fill its disks with vdi-import"),
];
const EXPORT: &str = "vbd-list vm-uuid=UUID shows its disks, and vdi-export writes each to a file";
const TO_TEMPLATE: &str = "snapshot-clone makes a template, and vdi-export writes each disk of \
     snapshot-disk-list to a file";

/// Returns the text for an unknown command: what is meant, or that Ringway does not have it.
pub(crate) fn text(command: &str) -> String {
    let is_part = |part: &str| {
        command.strip_prefix(part).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
    };
    let not_here = format!("Unknown command: {command}; XenServer has it, Ringway does not");
    if let Some((_, way)) = WAYS.iter().find(|(name, _)| *name == command) {
        return format!("{not_here}: {way}");
    }
    let is_named = NAMES_NOT_HERE.split_whitespace().any(|name| name == command);
    if is_named || NOT_HERE.iter().any(|part| is_part(part)) {
        return not_here;
    }
    match nearest(command) {
        Some(nearest) => format!("Unknown command: {command}; did you mean {nearest}?"),
        None => format!("Unknown command: {command}"),
    }
}

/// Returns the command with the fewest edits, if they are few.
fn nearest(command: &str) -> Option<String> {
    // A longer word is no slip of the finger, and would take long.
    if command.len() > 64 {
        return None;
    }
    let most = EDITS_MAX.min(command.len() / 3);
    let all = commands::all().into_iter().map(|(name, _)| (edits(command, &name), name));
    all.filter(|(edits, _)| *edits <= most).min().map(|(_, name)| name)
}

/// Returns the number of insertions, deletions, replacements and swaps of neighbours between two
/// words.
fn edits(one: &str, other: &str) -> usize {
    let (one, other): (Vec<char>, Vec<char>) = (one.chars().collect(), other.chars().collect());
    let mut rows: Vec<Vec<usize>> = vec![(0..=other.len()).collect()];
    for (at, c) in one.iter().enumerate() {
        let mut row = vec![at + 1];
        for (to, d) in other.iter().enumerate() {
            let cell = |back: usize, place: usize| {
                let above = rows.len().checked_sub(back).and_then(|row| rows.get(row));
                above.and_then(|row| row.get(place)).copied().unwrap_or(usize::MAX - 1)
            };
            let left = row.last().copied().unwrap_or_default();
            let mut least = (cell(1, to) + usize::from(c != d)).min(cell(1, to + 1) + 1);
            least = least.min(left + 1);
            let swapped =
                at > 0 && to > 0 && one.get(at - 1) == Some(d) && other.get(to - 1) == Some(c);
            if swapped {
                least = least.min(cell(2, to - 1) + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows.last().and_then(|row| row.last()).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_meant_is_named() {
        for (typed, meant) in [
            ("vm-strat", "vm-start"),
            ("vmlist", "vm-list"),
            ("vm-liist", "vm-list"),
            ("vdi-creat", "vdi-create"),
            ("network-lst", "network-list"),
        ] {
            assert_eq!(text(typed), format!("Unknown command: {typed}; did you mean {meant}?"));
        }
        for typed in ["pool-ha-enable", "vgpu-list", "patch-upload", "host-dmesg"] {
            assert!(text(typed).ends_with("XenServer has it, Ringway does not"), "{typed}");
        }
        for (typed, way) in [
            ("template-export", "vdi-export"),
            ("vm-export", "vdi-export"),
            ("vm-import", "vdi-import"),
            ("snapshot-export-to-template", "snapshot-clone"),
            ("snapshot-reset-powerstate", "always halted"),
            ("vdi-unlock", "vbd-unplug"),
        ] {
            let told = text(typed);
            let (_, told) = told.split_once("XenServer has it, Ringway does not: ").unwrap();
            assert!(told.contains(way), "{told}");
        }
        for typed in ["x", "make-coffee", &"v".repeat(10_000)] {
            assert_eq!(text(typed), format!("Unknown command: {typed}"));
        }
    }

    #[test]
    fn what_is_not_here_is_no_command() {
        for (name, _) in commands::all() {
            assert!(!NOT_HERE.contains(&&*name), "{name}");
            assert!(!WAYS.iter().any(|(other, _)| *other == name), "{name}");
            assert!(!NAMES_NOT_HERE.split_whitespace().any(|other| other == name), "{name}");
        }
    }

    #[test]
    fn ways_name_commands_that_exist() {
        let all: Vec<String> = commands::all().into_iter().map(|(name, _)| name).collect();
        let starts = ["vbd-", "vdi-", "vm-", "snapshot-"];
        for word in WAYS.iter().flat_map(|(_, way)| way.split([' ', ',', ';'])) {
            let is_command = starts.iter().any(|start| word.starts_with(start));
            let is_command = is_command && !word.contains('=');
            assert!(!is_command || all.iter().any(|name| name == word), "{word}");
        }
    }

    #[test]
    fn edits_are_counted() {
        for (one, other, count) in
            [("", "", 0), ("a", "", 1), ("ab", "ba", 1), ("abc", "abd", 1), ("abc", "xyz", 3)]
        {
            assert_eq!((edits(one, other), edits(other, one)), (count, count), "{one} {other}");
        }
    }
}
