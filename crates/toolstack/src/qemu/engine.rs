//! Accelerators and threading modes of a machine's CPUs.

use std::path::Path;

use model::machine::Accel;
use tokio::sync::OnceCell;

use super::{QemuError, Version, version};

/// First QEMU that correctly translates code while another CPU changes it ("accel/tcg: Always lock
/// pages before translation").
///
/// Earlier versions may keep the old translation. A kernel that patches its own jumps during boot
/// then keeps its temporary breakpoint now and then, and its CPUs hit that for ever.
const TRANSLATES_TOGETHER: Version = Version { major: 8, minor: 1, micro: 0 };

/// Accelerator with its threading mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// KVM, all CPUs in parallel.
    Kvm,
    /// TCG with one thread for each CPU.
    TcgTogether,
    /// TCG with one thread for all CPUs.
    TcgInTurns,
}

impl Engine {
    /// Returns the engine of `accel` with this QEMU. Queries QEMU's version if it matters.
    pub async fn of(accel: Accel, program: &Path) -> Self {
        Self::of_once(accel, program, &OnceCell::new()).await
    }

    /// Returns the engine for callers that start many machines: `tcg` caches the result. A QEMU
    /// that does not report its version counts as old, and is queried again next time.
    pub(crate) async fn of_once(accel: Accel, program: &Path, tcg: &OnceCell<Self>) -> Self {
        if accel == Accel::Kvm {
            return Self::Kvm;
        }
        let found = tcg.get_or_try_init(|| async {
            let (_, version) = version(program).await?;
            Ok::<_, QemuError>(Self::tcg(version))
        });
        found.await.copied().unwrap_or_else(|error| {
            tracing::warn!(%error, "the CPUs of a machine without KVM run one at a time");
            Self::TcgInTurns
        })
    }

    /// Returns the TCG engine of this version.
    pub fn tcg(version: Version) -> Self {
        if version >= TRANSLATES_TOGETHER { Self::TcgTogether } else { Self::TcgInTurns }
    }

    /// Returns its arguments for a machine with this much memory, in bytes.
    pub(super) fn arguments(self, memory_bytes: u64) -> [String; 4] {
        let arguments = |accel: String, cpu: &str| {
            ["-accel".to_owned(), accel, "-cpu".to_owned(), cpu.to_owned()]
        };
        // Five-level page tables would cost the translator an extra step without benefit.
        let tcg = |threads| {
            let mib = translation_bytes(memory_bytes) >> 20;
            arguments(format!("tcg,thread={threads},tb-size={mib}"), "max,la57=off")
        };
        match self {
            Self::Kvm => arguments("kvm".to_owned(), "host"),
            Self::TcgTogether => tcg("multi"),
            Self::TcgInTurns => tcg("single"),
        }
    }
}

/// Returns the size of the translated code that QEMU keeps for a machine with this much memory, in
/// bytes. By default QEMU fills up to 1 GiB of the host's memory for each machine.
fn translation_bytes(memory_bytes: u64) -> u64 {
    (memory_bytes / 4).clamp(32 << 20, 1 << 30)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn translated_code_takes_a_part_of_what_the_machine_has() {
        for (memory_mib, mib) in [(16, 32), (128, 32), (256, 64), (4096, 1024), (65_536, 1024)] {
            let [_, accel, ..] = Engine::TcgInTurns.arguments(memory_mib << 20);
            assert_eq!(accel, format!("tcg,thread=single,tb-size={mib}"));
        }
        assert_eq!(Engine::Kvm.arguments(1 << 30).join(" "), "-accel kvm -cpu host");
    }

    #[test]
    fn cpus_take_turns_where_translating_together_goes_wrong() {
        let of = |text| Engine::tcg(Version::find(text).unwrap());
        assert_eq!(of("7.2.22"), Engine::TcgInTurns);
        assert_eq!(of("8.0.5"), Engine::TcgInTurns);
        assert_eq!(of("8.1.0"), Engine::TcgTogether);
        assert_eq!(of("10.0.2"), Engine::TcgTogether);
    }

    #[tokio::test]
    async fn one_that_tells_no_version_is_taken_for_an_old_one() {
        let nowhere = Path::new("/nonexistent/qemu");
        let known = OnceCell::new();
        assert_eq!(Engine::of_once(Accel::Tcg, nowhere, &known).await, Engine::TcgInTurns);
        assert!(known.get().is_none(), "it is asked again");
        assert_eq!(Engine::of(Accel::Kvm, nowhere).await, Engine::Kvm);
    }

    #[tokio::test]
    async fn what_is_known_is_not_asked_again() {
        let known = OnceCell::new_with(Some(Engine::TcgTogether));
        let nowhere = Path::new("/nonexistent/qemu");
        assert_eq!(Engine::of_once(Accel::Tcg, nowhere, &known).await, Engine::TcgTogether);
    }
}
