//! Results of `ringway image` as text. Names in an image are hostile, so they are escaped.

use std::fmt::Write as _;

use model::diagnosis;
use model::image::{
    ImageCheckReport, ImageExtentKind, ImageFormat, ImageInfo, ImageMapReply, Qcow2Info, VhdInfo,
};

use crate::table;

fn size(bytes: u64) -> String {
    let exact = format!("{bytes} bytes");
    let short = diagnosis::bytes(bytes);
    if short == exact { exact } else { format!("{short} ({exact})") }
}

fn escaped(text: &str) -> String {
    text.escape_debug().to_string()
}

pub(super) fn info(info: &ImageInfo) -> String {
    let mut lines = vec![
        ("image", escaped(&info.path.display().to_string())),
        ("format", info.format.name().into()),
        ("disk", size(info.size_bytes)),
        ("file", size(info.file_bytes)),
        ("stored", size(info.stored_bytes)),
    ];
    info.qcow2.iter().for_each(|qcow2| add_qcow2(&mut lines, qcow2));
    info.vhd.iter().for_each(|vhd| add_vhd(&mut lines, vhd));
    lines.iter().fold(String::new(), |mut text, (name, value)| {
        let _ = writeln!(text, "{name:<12} {value}");
        text
    })
}

fn add_qcow2(lines: &mut Vec<(&str, String)>, qcow2: &Qcow2Info) {
    lines.push(("version", qcow2.version.to_string()));
    lines.push(("clusters", size(qcow2.cluster_bytes)));
    lines.extend(qcow2.subcluster_bytes.map(|bytes| ("subclusters", size(bytes))));
    lines.push(("refcounts", format!("{} bits", qcow2.refcount_bits)));
    lines.push(("compression", escaped(&qcow2.compression)));
    if !qcow2.features.is_empty() {
        lines.push(("features", escaped(&qcow2.features.join(", "))));
    }
    if let Some(backing) = &qcow2.backing {
        let format = backing.format.as_deref().unwrap_or("format not stated");
        let file = backing.file.display().to_string();
        lines.push(("backing", format!("{} ({})", escaped(&file), escaped(format))));
    }
    for snapshot in &qcow2.snapshots {
        lines.push(("snapshot", format!("{} {}", escaped(&snapshot.id), escaped(&snapshot.name))));
    }
    for bitmap in &qcow2.bitmaps {
        let in_use = if bitmap.in_use { ", not stored completely" } else { "" };
        let granularity = size(bitmap.granularity_bytes);
        lines.push(("bitmap", format!("{}, {granularity}{in_use}", escaped(&bitmap.name))));
    }
}

fn add_vhd(lines: &mut Vec<(&str, String)>, vhd: &VhdInfo) {
    lines.push(("type", escaped(&vhd.disk_type)));
    lines.extend(vhd.block_bytes.map(|bytes| ("blocks", size(bytes))));
    lines.push(("creator", escaped(&vhd.creator)));
    lines.push(("identity", escaped(&vhd.unique_id)));
    if let Some(parent) = &vhd.parent {
        let path = parent.path.as_deref().unwrap_or("path not stated");
        lines.push(("parent", format!("{} ({})", escaped(path), escaped(&parent.unique_id))));
    }
}

pub(super) fn check(report: &ImageCheckReport, format: ImageFormat) -> String {
    let mut text = String::new();
    for fault in &report.faults {
        let kind = if fault.leak { "leak" } else { "error" };
        let _ = writeln!(text, "{kind} at {:#x}: {}", fault.offset, escaped(&fault.problem));
    }
    let listed = report.faults.len() as u64;
    if report.errors + report.leaks > listed {
        let _ = writeln!(text, "... and {} more", report.errors + report.leaks - listed);
    }
    if report.repaired_leaks + report.repaired_marks > 0 {
        let (leaks, marks) = (report.repaired_leaks, report.repaired_marks);
        let _ = writeln!(text, "repaired {leaks} leaked clusters, corrected {marks} marks");
    }
    let _ = writeln!(
        text,
        "{} errors, {} leaked clusters; {} of {} clusters allocated, {} compressed",
        report.errors,
        report.leaks,
        report.allocated_clusters,
        report.clusters,
        report.compressed_clusters
    );
    let next = match format {
        _ if report.errors + report.leaks == 0 => return text,
        ImageFormat::Vhd if report.errors > 0 => "save the data with `ringway image convert`",
        ImageFormat::Vhd => "nothing: the next writer uses the space; no data is in danger",
        _ if report.errors > 0 => {
            "save the data with `qemu-img convert`, or repair a copy with `qemu-img check -r all`"
        }
        _ => "--repair-leaks releases the space; no data is in danger",
    };
    let _ = writeln!(text, "next: {next}");
    text
}

pub(super) fn map(reply: &ImageMapReply) -> String {
    let mut table = table::new(&["start", "bytes", "kind", "in the file at"], 0);
    for extent in &reply.extents {
        let kind = match extent.kind {
            ImageExtentKind::Unallocated => "unallocated",
            ImageExtentKind::Zero => "zero",
            ImageExtentKind::Data => "data",
            ImageExtentKind::Compressed => "compressed",
        };
        let offset = extent.file_offset.map(|offset| offset.to_string()).unwrap_or_default();
        table.add_row([extent.start.to_string(), extent.bytes.to_string(), kind.into(), offset]);
    }
    format!("{table}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_a_unit_and_the_exact_number() {
        assert_eq!(size(0), "0 bytes");
        assert_eq!(size(512), "512 bytes");
        assert_eq!(size(1536), "1.5 KiB (1536 bytes)");
        assert_eq!(size(64 << 40), "64 TiB (70368744177664 bytes)");
    }

    #[test]
    fn names_of_an_image_cannot_command_a_terminal() {
        assert_eq!(escaped("a\x1b[2J\n"), "a\\u{1b}[2J\\n");
    }
}
