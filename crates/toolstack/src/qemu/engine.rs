//! What runs a machine's CPUs.

use std::path::Path;

use model::machine::Accel;
use tokio::sync::OnceCell;

use super::{QemuError, Version, version};

/// The first QEMU that translates code while another CPU of the machine changes it, and does not keep
/// what was there before ("accel/tcg: Always lock pages before translation"). With earlier ones a
/// kernel that changes a jump of its own as it boots is now and then left with the breakpoint which
/// it had put there meanwhile, and its CPUs meet that for ever.
const TRANSLATES_TOGETHER: Version = Version { major: 8, minor: 1, micro: 0 };

/// An accelerator, and how it runs several CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// KVM: at once.
    Kvm,
    /// TCG: at once, each CPU in a thread of its own.
    TcgTogether,
    /// TCG: one after the other, in one thread.
    TcgInTurns,
}

impl Engine {
    /// That of `accel` by this QEMU, which is asked for its version where that counts.
    pub async fn of(accel: Accel, program: &Path) -> Self {
        Self::of_once(accel, program, &OnceCell::new()).await
    }

    /// The same, for whoever starts many machines: `tcg` keeps what was found without KVM. A QEMU that
    /// does not tell its version is taken for an old one, and asked again the next time.
    pub(crate) async fn of_once(accel: Accel, program: &Path, tcg: &OnceCell<Self>) -> Self {
        if accel == Accel::Kvm {
            return Self::Kvm;
        }
        let found = tcg.get_or_try_init(|| async {
            let (_, version) = version(program).await?;
            Ok::<_, QemuError>(Self::tcg(version))
        });
        found.await.copied().unwrap_or_else(|error| {
            tracing::warn!(%error, "the CPUs of a machine without KVM take turns");
            Self::TcgInTurns
        })
    }

    /// TCG of this version.
    pub fn tcg(version: Version) -> Self {
        if version >= TRANSLATES_TOGETHER { Self::TcgTogether } else { Self::TcgInTurns }
    }

    /// Its arguments.
    pub(super) fn arguments(self) -> [&'static str; 4] {
        // Five-level page tables would cost the translator a fifth walk for nothing.
        let tcg = |accel| ["-accel", accel, "-cpu", "max,la57=off"];
        match self {
            Self::Kvm => ["-accel", "kvm", "-cpu", "host"],
            Self::TcgTogether => tcg("tcg,thread=multi"),
            Self::TcgInTurns => tcg("tcg,thread=single"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
