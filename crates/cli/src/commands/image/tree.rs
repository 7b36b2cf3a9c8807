//! `ringway image tree`: shows the images of a storage repository, and the disks that have them.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use model::diagnosis;
use serde_json::json;
use toolstack::ringway_io::HostSockets;
use toolstack::sr::dir::{ImageTree, TreeImage, TreeVolume, image_tree};

use super::print;
use crate::commands::sr::{self, Sr};

/// Options of `ringway image tree`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  ringway image tree \"Local storage\"
  ringway image tree /srv/vm-disks --json

Each image stands below the one that it lies over, with the space that it uses and the disks whose
top it is. `orphan` is an image that no record names: `xe sr-scan` makes a disk of it, or says why
not. `missing` is a file that a record names. `merged` images become one in the background. Names
come from ringwayd, if a storage repository is given by its name or UUID; a folder is read without
it. Nothing is changed.")]
pub(super) struct Tree {
    /// Storage repository of ringwayd by its name or UUID, or its folder (sr=NAME if a file has the
    /// same name)
    #[arg(value_name = "SR|DIR")]
    place: PathBuf,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    /// Run directory of ringwayd, for one started with --state or --run [default: that of
    /// /etc/ringway/ringwayd.toml]
    #[arg(long, value_name = "DIR")]
    run: Option<PathBuf>,
}

impl Tree {
    pub(super) async fn run(self) -> anyhow::Result<ExitCode> {
        let host = self.run.as_deref().map_or_else(HostSockets::of_host, HostSockets::in_run);
        let (folder, names) = match sr::name_of(&self.place) {
            Some(name) => {
                let sr = Sr::look_up(host, name).await?;
                let names = sr.disk_names().await?;
                (sr.folder, names)
            }
            None => (std::path::absolute(&self.place)?, BTreeMap::new()),
        };
        let tree = image_tree(&folder)?;
        print(self.json.then(|| json!(tree)), || text(&tree, &names))?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Line of a tree: name of the image with its indent, format, space, notes.
type Line = [String; 4];

fn text(tree: &ImageTree, names: &BTreeMap<String, String>) -> String {
    let mut above: BTreeMap<Option<&str>, Vec<&TreeImage>> = BTreeMap::new();
    for image in &tree.images {
        above.entry(image.below.as_deref()).or_default().push(image);
    }
    let mut lines = Vec::new();
    let mut open: Vec<_> =
        above.get(&None).into_iter().flatten().rev().map(|one| (0, *one)).collect();
    // Each image lies over at most one, so the walk ends.
    while let Some((depth, image)) = open.pop() {
        lines.push(line(depth, image, tree, names));
        let over = above.remove(&Some(image.name.as_str())).unwrap_or_default();
        open.extend(over.into_iter().rev().map(|one| (depth + 1, one)));
    }
    let width = |column: usize| {
        lines.iter().filter_map(|line: &Line| line.get(column)).map(String::len).max().unwrap_or(0)
    };
    let widths = [width(0), width(1), width(2)];
    let mut text = lines.iter().fold(String::new(), |mut text, [name, format, stored, notes]| {
        let [first, second, third] = widths;
        let line = format!("{name:<first$}  {format:<second$}  {stored:>third$}  {notes}");
        let _ = writeln!(text, "{}", line.trim_end());
        text
    });
    if let Some(merge) = &tree.merge {
        let state = if merge.complete { "disks change to it" } else { "it is being copied" };
        let count = merge.images.len();
        let _ = writeln!(text, "merge: {count} images become {}; {state}", merge.into);
    }
    text
}

fn line(
    depth: usize,
    image: &TreeImage,
    tree: &ImageTree,
    names: &BTreeMap<String, String>,
) -> Line {
    let format = image.name.split_once('.').map_or("", |(_, extension)| extension);
    let mut notes = Vec::new();
    let tops = tree.volumes.iter().filter(|volume| volume.images.first() == Some(&image.name));
    notes.extend(tops.map(|volume| disk(volume, names)));
    if image.orphan {
        notes.push("orphan".to_owned());
    }
    if image.stored_bytes.is_none() {
        notes.push("missing".to_owned());
    }
    if tree.merge.as_ref().is_some_and(|merge| merge.images.contains(&image.name)) {
        notes.push("merged".to_owned());
    }
    let stored = image.stored_bytes.map_or("-".to_owned(), diagnosis::bytes);
    [format!("{}{}", "  ".repeat(depth), image.name), format.into(), stored, notes.join("; ")]
}

fn disk(volume: &TreeVolume, names: &BTreeMap<String, String>) -> String {
    let kind = match (&volume.snapshot_of, volume.read_only) {
        _ if volume.incomplete => "incomplete disk",
        (Some(_), _) => "snapshot",
        (None, true) => "read-only disk",
        (None, false) => "disk",
    };
    let name = names.get(&volume.vdi).map(|name| format!(" \"{}\"", name.escape_debug()));
    format!("{kind} {}{}", volume.vdi, name.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use toolstack::sr::dir::TreeMerge;

    use super::*;

    fn image(name: &str, below: Option<&str>, stored_bytes: Option<u64>) -> TreeImage {
        let orphan = name == "orphan.qcow2";
        TreeImage { name: name.into(), below: below.map(Into::into), stored_bytes, orphan }
    }

    fn volume(vdi: &str, top: &str, snapshot_of: Option<&str>) -> TreeVolume {
        TreeVolume {
            vdi: vdi.into(),
            bytes: 1 << 30,
            images: vec![top.into()],
            read_only: snapshot_of.is_some(),
            incomplete: false,
            snapshot_of: snapshot_of.map(Into::into),
        }
    }

    #[test]
    fn images_stand_below_those_that_they_lie_over() {
        let tree = ImageTree {
            images: vec![
                image("a.raw", None, Some(3 << 20)),
                image("b.qcow2", Some("a.raw"), None),
                image("c.qcow2", Some("b.qcow2"), Some(1 << 20)),
                image("d.qcow2", Some("a.raw"), Some(4096)),
                image("orphan.qcow2", None, Some(0)),
            ],
            volumes: vec![volume("1", "c.qcow2", None), volume("2", "b.qcow2", Some("1"))],
            merge: Some(TreeMerge {
                images: vec!["b.qcow2".into(), "a.raw".into()],
                into: "m.raw".into(),
                complete: false,
            }),
        };
        let names = [("1".to_owned(), "we\"b".to_owned())].into();
        let expected = "\
a.raw         raw      3 MiB  merged
  b.qcow2     qcow2        -  snapshot 2; missing; merged
    c.qcow2   qcow2    1 MiB  disk 1 \"we\\\"b\"
  d.qcow2     qcow2    4 KiB
orphan.qcow2  qcow2  0 bytes  orphan
merge: 2 images become m.raw; it is being copied
";
        assert_eq!(text(&tree, &names), expected);
    }
}
