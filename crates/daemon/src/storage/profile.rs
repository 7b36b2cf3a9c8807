//! Profile of an SR's storage: measured when the SR is plugged, shown in `SR.sm_config`.

use std::sync::Arc;

use model::calibration::StorageProfile;
use xenapi::table::sr;
use xenapi::{ApiError, Value};

use super::SrHandle;
use crate::app::AppState;
use crate::db::{Ref, Tx};
use crate::options::CalibrateMode;
use crate::records::fields::pairs;

/// Key in `SR.other_config`: the value `false` forbids the measurement.
const KEY: &str = "calibrate";

impl SrHandle {
    /// Measures the storage in the background, unless it has a profile. The SR is attached.
    pub(crate) fn calibrate(&self, app: &Arc<AppState>) {
        let Some(folder) = self.driver.folder(self.id) else { return };
        let config = app.db.read(|view| pairs(view, &self.sr, sr::Field::other_config));
        let forbidden = config.is_ok_and(|config| config.get(KEY).is_some_and(|it| it == "false"));
        if forbidden || app.settings.calibrate == CalibrateMode::Off {
            return;
        }
        let profile = app.drivers.io.calibrate(self.id, &folder);
        let (app, place) = (Arc::clone(app), self.sr.clone());
        tokio::spawn(async move {
            // Without a profile, the log has the cause.
            let Ok(profile) = profile.await else { return };
            // The SR may have gone meanwhile.
            if let Err(error) = app.db.write_observed(|tx| show(tx, &place, &profile)) {
                tracing::warn!(sr = %place.as_str(), "its profile is not shown: {error}");
            }
        });
    }
}

/// Shows the limits of the storage in the record.
fn show(tx: &mut Tx<'_>, place: &Ref, profile: &StorageProfile) -> Result<(), ApiError> {
    for (key, value) in profile.summary() {
        tx.set_key(place, sr::Field::sm_config, key, Some(Value::text(value.to_string())))?;
    }
    Ok(())
}
