//! Systems in pictures: a fixed colour for each program, and its name in full.

use std::collections::BTreeMap;

use crate::other_binary;
use crate::results::Results;

/// Colours of a program: its own, then those of its settings.
type Shades = [&'static str; 4];

// Blue, vermillion, green and purple are those of Okabe and Ito, which colour-blind readers can
// distinguish too.
const RINGWAY: Shades = ["#0072b2", "#56b4e9", "#003a5c", "#8c8cd9"];
const STORAGE_DAEMON: Shades = ["#d55e00", "#f5a56b", "#7a3600", "#c98f7a"];
const TESTPMD: Shades = ["#009e73", "#7fd1b5", "#00543d", "#5a8f7d"];
const OPEN_VSWITCH: Shades = ["#cc79a7", "#8f3b6c", "#e8bcd4", "#5e1f45"];
const KERNEL: Shades = ["#000000", "#6e6e6e", "#3d3d3d", "#a0a0a0"];
const FIO: Shades = ["#e69f00", "#f2cf80", "#8a6000", "#b58b3a"];
const NBDKIT: Shades = ["#6b4c9a", "#ab99c8", "#3f2a5f", "#8a7aa0"];
/// Calculated systems, and programs of the lab that do no work of a server.
const REFERENCE: &str = "#7f7f7f";
/// Colours of all other systems, such as backends that the user has started.
const OTHERS: Shades = ["#882255", "#44aa99", "#999933", "#332288"];

/// Program that is measured: its name in tables, its name in full with `*` for the version, and its
/// colours.
struct Program(&'static str, &'static str, Shades);

const PROGRAMS: [Program; 11] = [
    Program("ringwayd", "ringwayd *", RINGWAY),
    Program("ringway-net", "ringway-net *", RINGWAY),
    Program("ringway-io", "ringway-io *", RINGWAY),
    Program("ringway-blk", "ringway-blk *", RINGWAY),
    Program("qsd", "qemu-storage-daemon *", STORAGE_DAEMON),
    Program("qemu-storage-daemon", "qemu-storage-daemon *", STORAGE_DAEMON),
    Program("testpmd", "DPDK testpmd *", TESTPMD),
    Program("ovs-dpdk", "Open vSwitch * with DPDK", OPEN_VSWITCH),
    Program("kernel", "Linux *", KERNEL),
    Program("fio", "fio *", FIO),
    Program("nbdkit", "nbdkit *", NBDKIT),
];

/// Words of systems that are Ringway's but do not name a program, because their experiment compares
/// Ringway with itself.
const OURS: [&str; 26] = [
    "record=",
    "share=",
    "beside ",
    "alone",
    "with the slices",
    "without",
    "in turn",
    " cache",
    "cache in ",
    "disk of ",
    "apart",
    "cold",
    "boot-set",
    "warm",
    "XML",
    "JSON",
    "event.from",
    "xe vm-list",
    " disk",
    " machine",
    " at once",
    " of NICs",
    " to host, ",
    " to guest, ",
    "attach and detach take ",
    other_binary::NAME,
];

/// Ends of names, and the shade of that setting. All other settings have the program's own colour.
const SETTINGS: [(&str, usize); 37] = [
    ("poll off", 1),
    ("poll always", 2),
    ("poll-max-ns=0", 1),
    ("poll-max-ns=128000", 2),
    ("read-zeroes=off", 1),
    ("aio=threads", 1),
    ("aio=io_uring", 2),
    ("pmd-maxsleep", 1),
    ("record=false", 1),
    ("share=false", 1),
    ("without", 1),
    ("all at once", 1),
    ("quarter of the ram", 1),
    ("persistent cache", 2),
    ("writeback cache", 3),
    ("apart", 1),
    ("boot-set", 2),
    ("warm", 3),
    ("without a profile", 1),
    ("throttle-group", 1),
    ("disk 2", 1),
    ("disk 3", 2),
    ("disk 4", 3),
    ("-blk --reactors 2", 1),
    ("-blk --reactors 4", 2),
    ("-blk --reactors 8", 3),
    (" 1 pair", 1),
    (" 2 pairs", 2),
    (" 4 pairs", 3),
    ("qsd qcow2 64k extended", 1),
    ("128k extended", 2),
    (", 10 layers", 1),
    (" raw", 3),
    ("take 50 ms", 1),
    ("take 500 ms", 2),
    ("tenth 500 ms", 3),
    (other_binary::NAME, 3),
];

/// Words that do not change a system's colour.
const SAME: [&str; 4] = [" --cache writeback", " --cache none", " direct", " buffered"];

/// Returns whether a system has a fixed colour, the same in every picture of the lab. Other systems
/// get colours in the order in which a run has them.
#[must_use]
pub fn has_fixed_colour(system: &str) -> bool {
    system.starts_with('(') || shades(system).is_some()
}

fn shades(system: &str) -> Option<Shades> {
    let ours = || system == "one" || OURS.iter().any(|words| system.contains(words));
    program(system).map(|(_, program)| program.2).or_else(|| ours().then_some(RINGWAY))
}

/// Returns the first program in a name, with its position.
fn program(system: &str) -> Option<(usize, &'static Program)> {
    let mut at = 0;
    for word in system.split([' ', ',']) {
        if let Some(program) = PROGRAMS.iter().find(|program| program.0 == word) {
            return Some((at, program));
        }
        at += word.len() + 1;
    }
    None
}

/// Systems of one run, as its pictures show them.
pub(super) struct Systems<'a> {
    versions: &'a BTreeMap<String, String>,
    kernel: &'a str,
    /// Systems without a fixed colour.
    others: Vec<&'a str>,
}

impl<'a> Systems<'a> {
    pub(super) fn of(results: &'a Results) -> Self {
        let rows = results.cells.iter().flat_map(|cell| &cell.systems).map(|s| &s.name);
        let panels = results.run.plots.iter().flat_map(|plot| &plot.panels);
        let all = rows.chain(panels.flat_map(|panel| &panel.series).map(|s| &s.name));
        let mut others: Vec<&str> = Vec::new();
        for name in all.map(String::as_str).filter(|name| !has_fixed_colour(name)) {
            if !others.contains(&name) {
                others.push(name);
            }
        }
        Self { versions: &results.run.versions, kernel: &results.run.host.kernel, others }
    }

    pub(super) fn colour(&self, system: &str) -> &'static str {
        if system.starts_with('(') {
            return REFERENCE;
        }
        if let Some(shades) = shades(system) {
            let setting =
                SAME.iter().fold(system.to_owned(), |name, words| name.replace(words, ""));
            let shade = SETTINGS.iter().find(|(end, _)| setting.ends_with(end));
            return shades[shade.map_or(0, |(_, shade)| *shade)];
        }
        let place = self.others.iter().position(|other| *other == system).unwrap_or_default();
        OTHERS[place % OTHERS.len()]
    }

    /// Returns whether a line is dashed, because another line of its picture has the same colour.
    pub(super) fn is_dashed(system: &str) -> bool {
        system.starts_with("host to ")
            || system.ends_with(" direct")
            || system.contains(" in the place of ")
    }

    /// Returns the name with the program's name in full and its version.
    pub(super) fn full_name(&self, system: &str) -> String {
        if let Some((at, Program(short, full, _))) = program(system) {
            let (before, after) = (&system[..at], &system[at + short.len()..]);
            return format!("{before}{}{after}", self.with_version(short, full));
        }
        if let Some(version) = self.versions.get(system) {
            return format!("{system}, {version}");
        }
        let measured = PROGRAMS.iter().find(|program| self.versions.contains_key(program.0));
        match measured {
            Some(Program(key, full, RINGWAY))
                if !system.starts_with('(') && has_fixed_colour(system) =>
            {
                format!("{}, {system}", self.with_version(key, full))
            }
            _ => system.to_owned(),
        }
    }

    fn with_version(&self, key: &str, full: &str) -> String {
        let key = if key == "qemu-storage-daemon" { "qsd" } else { key };
        let version = if key == "kernel" {
            Some(self.kernel)
        } else {
            self.versions.get(key).and_then(|text| number(text))
        };
        let version = version.map(|version| format!(" {version}")).unwrap_or_default();
        full.replace(" *", &version)
    }
}

/// Returns the first number with a dot in the text of a version.
fn number(version: &str) -> Option<&str> {
    let words = version.split(|c: char| !c.is_ascii_digit() && c != '.');
    let mut words = words.map(|word| word.trim_matches('.'));
    words.find(|word| word.contains('.'))
}

#[cfg(test)]
mod tests;
