//! Overlay: a volatile write layer over a backend that does not change.

use super::{Backend, FileRef, SpecError, refuse};

/// Bytes of a block of an overlay. The memory is a multiple of it.
pub const OVERLAY_BLOCK_BYTES: u64 = 4096;
/// Least memory of an overlay in bytes, and its buffer if all else is in the overflow file.
pub const MIN_OVERLAY_RAM_BYTES: u64 = 4 << 20;
/// Most memory of an overlay in bytes.
pub const MAX_OVERLAY_RAM_BYTES: u64 = 1 << 40;

/// Least limit of an overflow file in bytes.
pub const MIN_OVERFLOW_BYTES: u64 = 1 << 20;

/// Checks an overlay with `above` nodes above it.
pub(super) fn validate(
    above: usize,
    base: &Backend,
    (ram, overflow, overflow_size): (u64, Option<&FileRef>, Option<u64>),
) -> Result<(), SpecError> {
    let problem = |text: String| refuse("backend", text);
    if above > 0 {
        return problem("an overlay is the top of its tree; put no node above it".into());
    }
    if base.nodes().any(|node| matches!(node, Backend::Null(_) | Backend::Memory(_))) {
        let text = "the base of an overlay is an image, and null and memory have no contents; give \
                    a file, or the backend memory without an overlay";
        return problem(text.into());
    }
    if ram == 0 && overflow.is_none() {
        return problem("ram of the overlay is 0; give memory or an overflow file".into());
    }
    if overflow_size.is_some_and(|size| overflow.is_none() || size < MIN_OVERFLOW_BYTES) {
        return problem(format!(
            "overflow_size of the overlay limits an overflow file to at least {MIN_OVERFLOW_BYTES} \
             bytes; give both, or none"
        ));
    }
    let (least, most) = (MIN_OVERLAY_RAM_BYTES, MAX_OVERLAY_RAM_BYTES);
    if ram != 0 && !(least..=most).contains(&ram) {
        return problem(format!("ram of the overlay, {ram}, is not in {least} to {most}"));
    }
    if !ram.is_multiple_of(OVERLAY_BLOCK_BYTES) {
        let text = format!("ram of the overlay, {ram}, is no multiple of {OVERLAY_BLOCK_BYTES}");
        return problem(text);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::DiskSpec;
    use super::*;

    fn parse(wire: Value) -> Result<Backend, String> {
        let backend: Backend = serde_json::from_value(wire.clone()).map_err(|e| e.to_string())?;
        assert_eq!(serde_json::to_value(&backend).unwrap(), wire);
        let spec = DiskSpec::new("d", "/s", backend.clone());
        spec.validate().map_err(|error| error.to_string())?;
        Ok(backend)
    }

    fn overlay(ram: u64, overflow: Option<&str>, base: Value) -> Value {
        let mut wire = json!({"overlay": {"base": base, "ram": ram}});
        if let Some(overflow) = overflow {
            wire["overlay"]["overflow"] = json!(overflow);
        }
        wire
    }

    #[test]
    fn an_overlay_lies_over_any_image() {
        let raw = || json!({"file": "/b.raw"});
        let golden = json!({"golden": {"source": {"file": "/g"}, "cache": "/c"}});
        for (wire, text, files) in [
            (overlay(8 << 20, None, raw()), "overlay over /b.raw", 1),
            (overlay(0, Some("/o"), raw()), "overlay with /o over /b.raw", 2),
            (
                overlay(4 << 20, Some("/o"), json!({"qcow2": {"file": "/q", "backing": raw()}})),
                "overlay with /o over /q over /b.raw",
                3,
            ),
            (overlay(4 << 20, Some("/o"), golden.clone()), "overlay with /o over golden /g", 1),
        ] {
            let mut backend = parse(wire).unwrap();
            assert_eq!((&*backend.to_string(), backend.files().count()), (text, files));
            assert!(backend.is_in_memory() && backend.is_overlay() && !backend.is_plain());
            assert!(backend.image().is_none(), "no other program can open it");
            backend.change_paths(|path| *path = "/x".into());
            assert_eq!(backend.files().next(), Some(&"/x".into()));
        }
        let mut backend = parse(overlay(4 << 20, None, golden)).unwrap();
        backend.set_golden_identity("one".into());
        assert_eq!(backend.golden().unwrap().identity.as_deref(), Some("one"));
    }

    #[test]
    fn an_overlay_that_cannot_be_is_refused_with_the_reason() {
        let raw = || json!({"file": "/b.raw"});
        let inner = || overlay(4 << 20, None, raw());
        for (wire, reason) in [
            (overlay(0, None, raw()), "give memory or an overflow file"),
            (overlay(1 << 20, None, raw()), "is not in 4194304 to"),
            (overlay(2 << 40, None, raw()), "is not in 4194304 to"),
            (overlay((4 << 20) + 512, None, raw()), "is no multiple of 4096"),
            (overlay(4 << 20, None, json!({"null": 4096})), "have no contents"),
            (overlay(4 << 20, None, json!({"memory": 4096})), "have no contents"),
            (
                json!({"overlay": {"base": raw(), "ram": 4 << 20, "overflow_size": 1 << 30}}),
                "give both",
            ),
            (
                json!({"overlay": {"base": raw(), "ram": 4 << 20, "overflow": "/o",
                                   "overflow_size": 4096}}),
                "at least 1048576",
            ),
            (overlay(4 << 20, Some("/b.raw"), raw()), "is in the tree twice"),
            (overlay(4 << 20, Some(""), raw()), "file path is empty"),
            (overlay(4 << 20, None, inner()), "put no node above it"),
            (json!({"qcow2": {"file": "/q", "backing": inner()}}), "put no node above it"),
            (json!({"raw": {"child": inner(), "offset": 0, "size": 512}}), "put no node above it"),
            (json!({"overlay": {"ram": 4096}}), "missing field `base`"),
        ] {
            let error = parse(wire).unwrap_err();
            assert!(error.contains(reason), "{error} lacks {reason}");
        }
        let backend = serde_json::from_value(inner()).unwrap();
        let spec = DiskSpec { read_only: true, ..DiskSpec::new("d", "/s", backend) };
        assert_eq!(spec.validate().unwrap_err().field, "read_only");
    }
}
