//! Resources that Ringway uses on this host by default. The datapath itself reports its reactors.

use std::num::NonZeroUsize;

use model::sizing::{Bytes, Host, SizedValue, Sizing};

use super::Finding;

/// Returns the default sizes for this host.
pub fn sizes() -> Sizing {
    let memory = rustix::system::sysinfo();
    let cpus = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    model::sizing::sizing(Host {
        cpus: cpus.try_into().unwrap_or(u16::MAX),
        memory_bytes: memory.totalram.saturating_mul(memory.mem_unit.into()),
    })
}

/// Reports each size with its reason.
pub(super) fn sizing() -> Vec<Finding> {
    report_sizes(sizes())
}

fn report_sizes(sizes: Sizing) -> Vec<Finding> {
    let Sizing { share_bytes, cache_bytes, buffer_bytes, steps, .. } = sizes;
    let bytes = |check, part: SizedValue<u64>| {
        Finding::ok(check, format!("{}: {}", Bytes(part.value), part.why))
    };
    // This version does not reserve these resources.
    let kept = |check, part: SizedValue<u64>| {
        Finding::ok(check, format!("{}, not taken yet: {}", Bytes(part.value), part.why))
    };
    vec![
        bytes("memory share", share_bytes),
        kept("image cache", cache_bytes),
        kept("request buffers", buffer_bytes),
        Finding::ok("device steps", format!("{} at once: {}", steps.value, steps.why)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_size_is_told_with_its_reason() {
        let findings = report_sizes(model::sizing::sizing(Host { cpus: 2, memory_bytes: 8 << 30 }));
        let findings: Vec<_> = findings.iter().map(|one| (one.check, one.found.as_str())).collect();
        let share = "1.4 GiB: 1 GiB and one of 20 parts of the host's 8 GiB";
        assert_eq!(findings[0], ("memory share", share));
        assert_eq!(
            findings[1],
            ("image cache", "716 MiB, not taken yet: one half of Ringway's 1.4 GiB")
        );
        assert_eq!(
            findings[2],
            ("request buffers", "179 MiB, not taken yet: one eighth of Ringway's 1.4 GiB")
        );
        let steps = "16 at once: storage gains nothing from more; 23 would fit into memory";
        assert_eq!(findings[3], ("device steps", steps));
        assert_eq!(sizing().len(), findings.len());
    }
}
