//! Files that users put into the folder of an SR.

use error_causes::error_chain;
use model::id::Uuid;
use toolstack::machines::PassedOver;
use toolstack::sr::NoRawVolume;
use xenapi::{ApiError, Date};

use super::SrHandle;
use super::scan::{NAMED_MAX, report_passed_over};
use crate::app::AppState;
use crate::db::Tx;
use crate::random;

/// Longest reason in a message, in characters.
const REASON_MAX: usize = 500;

/// Makes volumes of the files that users put into an SR. Returns those that become none. A failure
/// leaves the files as they are, and the scan goes on.
pub(super) async fn adopt(app: &AppState, storage: &SrHandle) -> Vec<PassedOver> {
    let place = (storage.id, storage.driver.kind());
    let adopted = app.machines.adopt_foreign(place, || Uuid::from_random(random::bytes()));
    match tokio::time::timeout(storage.deadline, adopted).await {
        Ok(Ok(passed_over)) => passed_over,
        Ok(Err(error)) => {
            tracing::warn!(sr = %storage.id, "its new files are not taken: {}", error_chain(&error));
            Vec::new()
        }
        Err(_) => {
            tracing::warn!(sr = %storage.id, "its new files are not all taken yet: scan again");
            Vec::new()
        }
    }
}

/// Returns why a file with the name of a volume becomes no disk of this SR, and how it becomes one.
pub(super) fn no_raw(volume: &NoRawVolume, sr: &str) -> PassedOver {
    let NoRawVolume { name, vdi, why } = volume;
    let why = format!(
        "{why}. If it is a raw disk whose guest has written that, add it: xe vdi-introduce \
         uuid={vdi} sr-uuid={sr} type=user location={vdi}"
    );
    PassedOver { name: name.clone(), why }
}

/// Reports the files that become no disk in a message, once.
pub(super) fn report(
    tx: &mut Tx<'_>,
    storage: &SrHandle,
    passed_over: &[PassedOver],
    now: Date,
) -> Result<(), ApiError> {
    if passed_over.is_empty() {
        return Ok(());
    }
    let named = passed_over.iter().take(NAMED_MAX).map(|PassedOver { name, why }| {
        let why: String = why.chars().take(REASON_MAX).collect();
        format!("{name}: {why}")
    });
    let body = format!(
        "{} files of this storage repository become no disk. {}. Mend, import or remove them, then \
         scan again.",
        passed_over.len(),
        named.collect::<Vec<_>>().join(". ")
    );
    report_passed_over(tx, storage, &body, now)
}
