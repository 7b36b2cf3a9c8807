//! CD drives: the medium changes, the drive stays.

use std::path::Path;

use model::id::VbdId;
use serde_json::{Value, json};

use super::device_ids::Device;
use super::domain::Domain;
use crate::hv::{CdMedium, HvError};

/// Inserts or removes a medium. The guest is not asked: the caller has decided.
pub(super) async fn disc(
    domain: &Domain,
    vbd: VbdId,
    cd_medium: Option<&CdMedium>,
) -> Result<(), HvError> {
    let wanted = cd_medium.map(|cd_medium| cd_medium.file.as_path());
    let drives = drives(domain).await?;
    let Some(drive) = drives.into_iter().find(|drive| drive.vbd == vbd) else {
        let why = "the domain was created without this drive".into();
        return Err(HvError::Refused { what: "changing a medium".into(), why });
    };
    if drive.medium.as_deref().map(Path::new) == wanted {
        return Ok(());
    }
    let (id, node) = (Device::Drive(vbd).id(), Device::medium(vbd));
    let tray = json!({ "id": id });
    domain.execute("blockdev-open-tray", json!({ "id": id, "force": true })).await?;
    if drive.medium.is_some() {
        domain.execute("blockdev-remove-medium", tray.clone()).await?;
    }
    // A dropped call may have left the node.
    let removed = domain.execute("blockdev-del", json!({ "node-name": node })).await;
    if let Err(error @ HvError::Late { .. }) = removed {
        return Err(error);
    }
    let inserted = match wanted {
        Some(file) => insert(domain, &id, &node, file).await,
        None => Ok(()),
    };
    // Close the tray even without a medium: no caller requested an open tray.
    domain.execute("blockdev-close-tray", tray).await?;
    inserted
}

async fn insert(domain: &Domain, id: &str, node: &str, file: &Path) -> Result<(), HvError> {
    domain.execute("blockdev-add", medium(node, file)).await?;
    let insert = json!({ "id": id, "node-name": node });
    domain.execute("blockdev-insert-medium", insert).await.map(drop)
}

/// Drive of a domain, with the file of its medium.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Drive {
    pub(super) vbd: VbdId,
    pub(super) medium: Option<String>,
}

/// Returns all drives.
pub(super) async fn drives(domain: &Domain) -> Result<Vec<Drive>, HvError> {
    let blocks = domain.execute("query-block", Value::Null).await?;
    Ok(blocks.as_array().into_iter().flatten().filter_map(drive).collect())
}

fn drive(block: &Value) -> Option<Drive> {
    let Device::Drive(vbd) = Device::parse(block.get("qdev")?.as_str()?)? else { return None };
    let inserted = block.get("inserted").filter(|inserted| !inserted.is_null());
    let medium = inserted.map(|inserted| {
        let file = inserted.get("file").and_then(Value::as_str);
        file.unwrap_or_default().to_owned()
    });
    Some(Drive { vbd, medium })
}

fn medium(node: &str, file: &Path) -> Value {
    let source = json!({ "driver": "file", "filename": file.to_string_lossy() });
    json!({ "node-name": node, "driver": "raw", "read-only": true, "file": source })
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::id::Uuid;

    #[test]
    fn drives_are_told_from_other_blocks() {
        let vbd = VbdId(Uuid::default());
        let id = Device::Drive(vbd).id();
        let drive = |block| super::drive(&block);
        let full = json!({ "qdev": id, "inserted": { "file": "/a.iso" } });
        assert_eq!(drive(full), Some(Drive { vbd, medium: Some("/a.iso".into()) }));
        let path = format!("/machine/peripheral/{id}");
        assert_eq!(drive(json!({ "qdev": path })), Some(Drive { vbd, medium: None }));
        assert_eq!(drive(json!({ "qdev": "other", "inserted": {} })), None);
        assert_eq!(drive(json!({ "device": "ide0" })), None);
    }

    #[test]
    fn a_medium_is_raw_and_not_written() {
        let medium = medium("cd0", Path::new("/a,b.iso"));
        assert_eq!((&medium["driver"], &medium["read-only"]), (&"raw".into(), &true.into()));
        assert_eq!(medium["file"]["filename"], "/a,b.iso");
    }
}
