//! Disks that a template requests in `other_config:disks`, as XML.
//!
//! ```xml
//! <provision><disk device="0" size="8589934592" sr="" bootable="true" type="system"/></provision>
//! ```
//! Sizes are in bytes. `sr` is a UUID, or empty for the pool's default SR.

use model::id::Uuid;
use model::vbd::{DeviceNumber, MAX_DEVICE};
use quick_xml::Reader;
use quick_xml::events::{BytesStart, Event};

/// Longest text in bytes, more than 255 disks need.
const BYTES_MAX: usize = 65_536;
/// Valid types of a disk.
const TYPES: [&str; 2] = ["system", "user"];

/// Disk to create.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Disk {
    pub(super) device: DeviceNumber,
    /// Size in bytes.
    pub(super) size: u64,
    /// SR. `None` for the pool's default.
    pub(super) place: Option<Uuid>,
    pub(super) bootable: bool,
    pub(super) kind: &'static str,
}

/// Parses the disks.
///
/// # Errors
/// A sentence that describes the problem.
pub(super) fn parse(text: &str) -> Result<Vec<Disk>, String> {
    if text.len() > BYTES_MAX {
        return Err(format!("{} bytes; at most {BYTES_MAX} are read", text.len()));
    }
    let mut reader = Reader::from_str(text);
    let mut disks: Vec<Disk> = Vec::new();
    loop {
        match reader.read_event().map_err(|error| error.to_string())? {
            Event::Start(tag) | Event::Empty(tag) => match tag.name().as_ref() {
                "provision" => {}
                "disk" => {
                    let disk = disk(&tag)?;
                    if disks.iter().any(|other| other.device == disk.device) {
                        return Err(format!("device {} is given twice", disk.device));
                    }
                    disks.push(disk);
                }
                other => return Err(format!("<{other}> is neither <provision> nor <disk>")),
            },
            Event::Text(text) if text.trim_ascii().is_empty() => {}
            Event::End(_) | Event::Decl(_) | Event::Comment(_) => {}
            Event::Eof => return Ok(disks),
            _ => return Err("only elements <disk> are allowed".to_owned()),
        }
    }
}

fn disk(tag: &BytesStart<'_>) -> Result<Disk, String> {
    let get = |name: &str| -> Result<String, String> {
        let found = tag.try_get_attribute(name).map_err(|error| error.to_string())?;
        Ok(found.map(|found| found.value.into_owned()).unwrap_or_default())
    };
    let device = get("device")?;
    let device = DeviceNumber::parse(&device)
        .ok_or_else(|| format!("device={device:?} is none of 0 to {MAX_DEVICE}"))?;
    let size = get("size")?;
    let size = size.parse().ok().filter(|size| *size > 0);
    let size = size.ok_or_else(|| format!("the size of device {device} is no number of bytes"))?;
    let place = match get("sr")?.as_str() {
        "" => None,
        uuid => Some(uuid.parse::<Uuid>().map_err(|error| error.to_string())?),
    };
    let kind = get("type")?;
    let kind = TYPES.into_iter().find(|one| *one == kind).unwrap_or("user");
    Ok(Disk { device, size, place, bootable: get("bootable")? == "true", kind })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn disks_are_read() {
        let text = r#"<?xml version="1.0"?>
            <provision>
              <disk device="0" size="8589934592" sr="" bootable="true" type="system"/>
              <disk device="1" size="1" sr="01234567-89ab-4def-8123-456789abcdef" type="user"></disk>
            </provision>"#;
        let disks = parse(text).unwrap();
        let shown = disks.iter().map(|disk| {
            let place = disk.place.map(|uuid| uuid.to_string());
            (disk.device.get(), disk.size, place, disk.bootable, disk.kind)
        });
        let second = Some("01234567-89ab-4def-8123-456789abcdef".to_owned());
        let expected = [(0, 8 << 30, None, true, "system"), (1, 1, second, false, "user")];
        assert_eq!(shown.collect::<Vec<_>>(), expected);
        assert_eq!(parse("<provision/>"), Ok(Vec::new()));
        assert_eq!(parse(""), Ok(Vec::new()));
    }

    #[test]
    fn what_cannot_be_made_is_refused() {
        let disk = |attributes: &str| format!("<provision><disk {attributes}/></provision>");
        for (text, says) in [
            (disk(r#"device="255" size="1""#), "0 to 254"),
            (disk(r#"size="1""#), "0 to 254"),
            (disk(r#"device="0" size="-1""#), "size of device 0"),
            (disk(r#"device="0" size="0""#), "size of device 0"),
            (disk(r#"device="0" size="1" sr="x""#), "no UUID"),
            (disk(r#"device="0" size="1"/><disk device="xvda" size="1""#), "twice"),
            ("<disks/>".to_owned(), "<disks>"),
            ("<provision>x</provision>".to_owned(), "only elements"),
            ("<provision><disk</provision>".to_owned(), ""),
            (" ".repeat(BYTES_MAX + 1), "at most"),
        ] {
            let why = parse(&text).unwrap_err();
            assert!(why.contains(says), "{text:.80}: {why}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "[<>/a-z=\"0-9 &;!\\[-]{0,80}") {
            let _ = parse(&text);
        }
    }
}
