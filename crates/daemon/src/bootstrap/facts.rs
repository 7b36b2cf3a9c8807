//! Facts about the host, read from its kernel.

use std::fs;

/// Hardware and kernel of the host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostFacts {
    /// Host name.
    pub hostname: String,
    /// Kernel release.
    pub kernel: String,
    /// CPUs of the host.
    pub cpus: Vec<CpuFacts>,
    /// Number of CPU sockets.
    pub sockets: usize,
    /// Total memory in bytes.
    pub memory_total: u64,
    /// Available memory in bytes.
    pub memory_free: u64,
}

/// Description of a CPU. Fields that the kernel does not report are empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuFacts {
    /// Vendor.
    pub vendor: String,
    /// Model name.
    pub model_name: String,
    /// CPU family.
    pub family: i64,
    /// Model number.
    pub model: i64,
    /// Stepping.
    pub stepping: String,
    /// Clock frequency in MHz.
    pub mhz: i64,
    /// CPU feature flags, separated by spaces.
    pub flags: String,
}

impl HostFacts {
    /// Reads the facts of this host. Facts that cannot be read stay empty.
    pub fn read() -> Self {
        let system = rustix::system::uname();
        let (cpus, sockets) = cpus(&fs::read_to_string("/proc/cpuinfo").unwrap_or_default());
        let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        Self {
            hostname: system.nodename().to_string_lossy().into_owned(),
            kernel: system.release().to_string_lossy().into_owned(),
            cpus,
            sockets,
            memory_total: memory(&meminfo, "MemTotal:"),
            memory_free: memory(&meminfo, "MemAvailable:"),
        }
    }
}

/// Parses `/proc/cpuinfo`: returns one entry for each paragraph, and the number of sockets.
fn cpus(text: &str) -> (Vec<CpuFacts>, usize) {
    let mut cpus = Vec::new();
    let mut sockets = std::collections::BTreeSet::new();
    for paragraph in text.split("\n\n") {
        let fields = || paragraph.lines().filter_map(|line| line.split_once(':'));
        let of = |name: &str| {
            fields().find(|(key, _)| key.trim() == name).map_or("", |(_, value)| value.trim())
        };
        if of("processor").is_empty() {
            continue;
        }
        sockets.insert(of("physical id").to_owned());
        cpus.push(CpuFacts {
            vendor: of("vendor_id").to_owned(),
            model_name: of("model name").to_owned(),
            family: of("cpu family").parse().unwrap_or_default(),
            model: of("model").parse().unwrap_or_default(),
            stepping: of("stepping").to_owned(),
            mhz: of("cpu MHz").parse().map_or(0, |mhz: f64| mhz as i64),
            flags: of("flags").to_owned(),
        });
    }
    (cpus, sockets.len())
}

fn memory(meminfo: &str, name: &str) -> u64 {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(name));
    let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    kib.map_or(0, |kib| kib.saturating_mul(1024))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_is_read() {
        let one = "processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 85\n\
                   model name\t: A: b\nstepping\t: 4\ncpu MHz\t\t: 2499.998\nphysical id\t: 0\n\
                   flags\t\t: fpu vme\n";
        let two = one.replace("processor\t: 0", "processor\t: 1");
        let (cpus, sockets) = cpus(&format!("{one}\n{two}\n"));
        assert_eq!((cpus.len(), sockets), (2, 1));
        let expected = CpuFacts {
            vendor: "GenuineIntel".into(),
            model_name: "A: b".into(),
            family: 6,
            model: 85,
            stepping: "4".into(),
            mhz: 2499,
            flags: "fpu vme".into(),
        };
        assert_eq!(cpus.first(), Some(&expected));
        let meminfo = "MemTotal:       1024 kB\nMemFree: 3 kB\nMemAvailable:   512 kB\n";
        assert_eq!(memory(meminfo, "MemTotal:"), 1 << 20);
        assert_eq!(memory(meminfo, "MemAvailable:"), 512 << 10);
        assert_eq!(memory("", "MemTotal:"), 0);
    }

    #[test]
    fn this_host_has_something() {
        let facts = HostFacts::read();
        assert!(!facts.hostname.is_empty() && !facts.cpus.is_empty(), "{facts:?}");
        assert!(facts.memory_free > 0 && facts.memory_free <= facts.memory_total);
    }
}
