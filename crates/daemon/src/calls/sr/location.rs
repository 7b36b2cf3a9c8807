//! Locations of SRs without a marker, which belong to one SR of a host each.

use std::path::Path;

use toolstack::sr::dir::LOCATION;
use toolstack::sr::iso::ISO;
use toolstack::sr::{Config, SrError};
use xenapi::ApiError;
use xenapi::table::{pbd, sr};

use crate::db::{Ref, View};
use crate::errors::storage_failed;
use crate::records::fields::{pairs, reference, references, text};

/// Checks that no other SR of ISO files is at this location of the host: each of its CDs would be
/// there twice. Directories of other types have a marker, which their driver checks.
///
/// # Errors
/// `SR_BACKEND_FAILURE` with the name and the UUID of the other SR.
pub(in crate::calls) fn check_free(
    view: &View<'_>,
    place: &Ref,
    kind: &str,
    computer: &Ref,
    config: &Config,
) -> Result<(), ApiError> {
    let Some(location) = config.get(LOCATION).filter(|_| kind == ISO) else { return Ok(()) };
    for other in view.all(&sr::CLASS).map(|object| object.reference().clone()) {
        if other == *place || text(view, &other, sr::Field::r#type)? != ISO {
            continue;
        }
        for connection in references(view, &other, sr::Field::PBDs)? {
            let theirs: Config = pairs(view, &connection, pbd::Field::device_config)?;
            let is_same =
                theirs.get(LOCATION).is_some_and(|at| Path::new(at) == Path::new(location));
            if is_same && reference(view, &connection, pbd::Field::host)? == *computer {
                return Err(taken(view, place, &other, location)?);
            }
        }
    }
    Ok(())
}

fn taken(view: &View<'_>, place: &Ref, other: &Ref, at: &str) -> Result<ApiError, ApiError> {
    let name = text(view, other, sr::Field::name_label)?;
    let uuid = text(view, other, sr::Field::uuid)?;
    let why = format!(
        "{at} belongs to storage repository {uuid} ({name}): use that one, and scan it for new CDs"
    );
    Ok(storage_failed(&SrError::Config { key: LOCATION.to_owned(), why }, place, None))
}
