//! Backend of a disk: a tree of nodes over files.

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::golden::{GoldenImage, GoldenSource};
use super::{MAX_DISK_BYTES, ModelDisk, SpecError, overlay, refuse};
use crate::image::ImageFormat;

/// Most nodes on the way from the top of a tree to a leaf. Readers of JSON accept 127 levels. A
/// node takes two of them, and a keeper's message has five around the tree.
pub const MAX_TREE_DEPTH: usize = 60;
/// Most files of a tree, so that their descriptors fit in one message to a keeper.
pub const MAX_TREE_FILES: usize = 64;
/// Most files of a tree that are handed in. A keeper has their descriptors in one message with those
/// of the disk's sockets and exports.
pub const MAX_TREE_FDS: usize = 40;
/// Longest tree in bytes of JSON, so that a disk's record fits in one message to a keeper.
pub const MAX_TREE_BYTES: usize = 32 << 10;

// A node has at most one file and one node below it, so the depth limits the files, too.
const _: () = assert!(MAX_TREE_DEPTH <= MAX_TREE_FILES);

/// File of a tree. On the wire: `"/img/a.raw"`, or `{"fd":3}`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(untagged, deny_unknown_fields, expecting = "a file is a path or {\"fd\": NUMBER}")]
pub enum FileRef {
    /// Path of an image file or a block device.
    Path(PathBuf),
    /// Number of a descriptor that was handed in.
    Fd {
        /// The number: that of an inherited descriptor for `ringway-blk`, or the index among the
        /// descriptors of the request for `ringway-io`.
        fd: u32,
    },
}

/// Storage of a disk's bytes: a tree of nodes. Leaves store bytes; an inner node is a disk over
/// other nodes. On the wire: `{"file":"/img/a.raw"}`, `{"null":BYTES}`, `{"memory":BYTES}`,
/// `{"raw":{"child":BACKEND,"offset":BYTES,"size":BYTES}}`,
/// `{"qcow2":{"file":FILE,"backing":BACKEND}}`, `{"vhd":{"file":FILE,"backing":BACKEND}}`,
/// `{"golden":{"source":SOURCE,"cache":DIR}}` ([`GoldenImage`]),
/// `{"overlay":{"base":BACKEND,"ram":BYTES,"overflow":FILE}}`, and for tests and measurements
/// `{"model":{"name":NAME,"size":BYTES,"device":{"pipe":{}}}}` ([`ModelDisk`]).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", try_from = "Value")]
pub enum Backend {
    /// A raw image file or a block device.
    File(FileRef),
    /// A null disk of this size in bytes: reads leave the buffers unchanged, writes are discarded.
    Null(u64),
    /// Anonymous memory of this size in bytes.
    Memory(u64),
    /// Memory that is as slow as the model of a storage device. It is a whole disk, never below another
    /// node.
    Model(Box<ModelDisk>),
    /// An immutable image that is read from a source through a cache.
    Golden(Box<GoldenImage>),
    /// A window of another backend, for example one partition.
    Raw {
        /// Backend that contains the window.
        child: Box<Self>,
        /// First byte of the window in `child`.
        offset: u64,
        /// Size of the window in bytes.
        size: u64,
    },
    /// A qcow2 image.
    Qcow2 {
        /// File of the image.
        file: FileRef,
        /// Backend of all that the image does not store; zeroes when absent.
        #[serde(skip_serializing_if = "Option::is_none")]
        backing: Option<Box<Self>>,
    },
    /// A VHD: fixed, dynamic or differencing.
    Vhd {
        /// File of the image.
        file: FileRef,
        /// Parent of a differencing image. Others have none.
        #[serde(skip_serializing_if = "Option::is_none")]
        backing: Option<Box<Self>>,
    },
    /// A volatile write layer over a backend that does not change: the writes of the disk are in
    /// memory and in an overflow file until the disk is detached, reset, or the host stops. It is the
    /// top of its tree.
    Overlay {
        /// Backend of all that was not written. It is opened for reading only.
        base: Box<Self>,
        /// Memory for written blocks, in bytes: 0, or [`MIN_OVERLAY_RAM_BYTES`] and more. 0 needs an
        /// overflow file, and takes [`MIN_OVERLAY_RAM_BYTES`] as a buffer.
        ///
        /// [`MIN_OVERLAY_RAM_BYTES`]: super::MIN_OVERLAY_RAM_BYTES
        ram: u64,
        /// File or block device for what does not fit into the memory. A path without a file gets a
        /// new one.
        #[serde(skip_serializing_if = "Option::is_none")]
        overflow: Option<FileRef>,
        /// Most bytes of the overflow file, at least [`MIN_OVERFLOW_BYTES`]. By default as many as its
        /// storage has room for.
        ///
        /// [`MIN_OVERFLOW_BYTES`]: super::MIN_OVERFLOW_BYTES
        #[serde(skip_serializing_if = "Option::is_none")]
        overflow_size: Option<u64>,
    },
}

/// Node whose child is not parsed yet.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum Node {
    File(FileRef),
    Null(u64),
    Memory(u64),
    Model(Box<ModelDisk>),
    Golden(Box<GoldenImage>),
    Raw { child: Value, offset: u64, size: u64 },
    Qcow2 { file: FileRef, backing: Option<Value> },
    Vhd { file: FileRef, backing: Option<Value> },
    Overlay { base: Value, ram: u64, overflow: Option<FileRef>, overflow_size: Option<u64> },
}

impl TryFrom<Value> for Backend {
    type Error = String;

    fn try_from(value: Value) -> Result<Self, String> {
        parse(value, 1)
    }
}

/// Parses a node at this depth. The limit bounds the recursion.
fn parse(value: Value, depth: usize) -> Result<Backend, String> {
    if depth > MAX_TREE_DEPTH {
        return Err(too_deep());
    }
    let child = |value| parse(value, depth + 1).map(Box::new);
    let node = serde_json::from_value(value).map_err(|error| error.to_string())?;
    Ok(match node {
        Node::File(file) => Backend::File(file),
        Node::Null(size) => Backend::Null(size),
        Node::Memory(size) => Backend::Memory(size),
        Node::Model(model) => Backend::Model(model),
        Node::Golden(golden) => Backend::Golden(golden),
        Node::Raw { child: below, offset, size } => {
            Backend::Raw { child: child(below)?, offset, size }
        }
        Node::Qcow2 { file, backing } => {
            Backend::Qcow2 { file, backing: backing.map(child).transpose()? }
        }
        Node::Vhd { file, backing } => {
            Backend::Vhd { file, backing: backing.map(child).transpose()? }
        }
        Node::Overlay { base, ram, overflow, overflow_size } => {
            Backend::Overlay { base: child(base)?, ram, overflow, overflow_size }
        }
    })
}

fn too_deep() -> String {
    format!("the tree has more than {MAX_TREE_DEPTH} nodes on one way; merge layers of the image")
}

impl Backend {
    /// Returns an image in a file over another backend. `None` for a raw image over one.
    pub fn image_over(format: ImageFormat, file: FileRef, below: Option<Self>) -> Option<Self> {
        let backing = below.map(Box::new);
        match format {
            ImageFormat::Raw => backing.is_none().then_some(Self::File(file)),
            ImageFormat::Qcow2 => Some(Self::Qcow2 { file, backing }),
            ImageFormat::Vhd => Some(Self::Vhd { file, backing }),
        }
    }

    /// Returns the nodes, top first.
    pub fn nodes(&self) -> impl Iterator<Item = &Self> {
        std::iter::successors(Some(self), |node| match node {
            Self::Raw { child: below, .. } | Self::Overlay { base: below, .. } => Some(below),
            Self::Qcow2 { backing, .. } | Self::Vhd { backing, .. } => backing.as_deref(),
            Self::File(_) | Self::Null(_) | Self::Memory(_) | Self::Model(_) | Self::Golden(_) => {
                None
            }
        })
    }

    /// Returns the files, top first.
    pub fn files(&self) -> impl Iterator<Item = &FileRef> {
        self.nodes().filter_map(Self::file)
    }

    /// Changes the paths of all files.
    pub fn change_paths(&mut self, change: impl Fn(&mut PathBuf)) {
        let mut node = Some(self);
        while let Some(present) = node {
            if let Self::File(FileRef::Path(path))
            | Self::Qcow2 { file: FileRef::Path(path), .. }
            | Self::Vhd { file: FileRef::Path(path), .. }
            | Self::Overlay { overflow: Some(FileRef::Path(path)), .. } = present
            {
                change(path);
            }
            if let Self::Golden(golden) = present {
                change(&mut golden.cache);
                if let GoldenSource::File(path) = &mut golden.source {
                    change(path);
                }
            }
            node = match present {
                Self::Raw { child: below, .. } | Self::Overlay { base: below, .. } => Some(below),
                Self::Qcow2 { backing, .. } | Self::Vhd { backing, .. } => backing.as_deref_mut(),
                Self::File(_)
                | Self::Null(_)
                | Self::Memory(_)
                | Self::Model(_)
                | Self::Golden(_) => None,
            };
        }
    }

    /// Returns the file and the format of an image that other programs can open as the top of this
    /// tree. `None` for a window and for disks without files.
    pub fn image(&self) -> Option<(&FileRef, ImageFormat)> {
        match self {
            Self::File(file) => Some((file, ImageFormat::Raw)),
            Self::Qcow2 { file, .. } => Some((file, ImageFormat::Qcow2)),
            Self::Vhd { file, .. } => Some((file, ImageFormat::Vhd)),
            Self::Null(_)
            | Self::Memory(_)
            | Self::Model(_)
            | Self::Golden(_)
            | Self::Raw { .. }
            | Self::Overlay { .. } => None,
        }
    }

    /// Returns the node's own file.
    fn file(&self) -> Option<&FileRef> {
        match self {
            Self::Overlay { overflow, .. } => overflow.as_ref(),
            _ => self.image().map(|(file, _)| file),
        }
    }

    /// Returns whether the backend is a leaf with at most one file, which is opened by its path.
    /// Programs of version 0.1 know no other backends.
    pub fn is_plain(&self) -> bool {
        match self {
            Self::File(FileRef::Path(_)) | Self::Null(_) | Self::Memory(_) => true,
            Self::File(FileRef::Fd { .. })
            | Self::Model(_)
            | Self::Golden(_)
            | Self::Raw { .. }
            | Self::Qcow2 { .. }
            | Self::Vhd { .. }
            | Self::Overlay { .. } => false,
        }
    }

    /// Returns whether bytes are in anonymous memory, which ends with its last process.
    pub fn is_in_memory(&self) -> bool {
        let is_volatile =
            |node: &Self| matches!(node, Self::Memory(_) | Self::Model(_) | Self::Overlay { .. });
        self.nodes().any(is_volatile)
    }

    /// Returns whether the writes of the disk are in a volatile layer.
    pub fn is_overlay(&self) -> bool {
        matches!(self, Self::Overlay { .. })
    }

    /// Returns the tree with another limit of its overlay's overflow file. `None` if it has no such file,
    /// or has this limit.
    pub fn with_overflow_size(&self, size: Option<u64>) -> Option<Self> {
        let mut changed = self.clone();
        match &mut changed {
            Self::Overlay { overflow: Some(_), overflow_size, .. } if *overflow_size != size => {
                *overflow_size = size;
                Some(changed)
            }
            _ => None,
        }
    }

    /// Returns the golden image of the tree, if there is one.
    pub fn golden(&self) -> Option<&GoldenImage> {
        self.nodes().find_map(|node| match node {
            Self::Golden(golden) => Some(&**golden),
            _ => None,
        })
    }

    /// Sets the identity of the golden image of the tree, if there is one.
    pub fn set_golden_identity(&mut self, identity: String) {
        match self {
            Self::Golden(golden) => golden.identity = Some(identity),
            Self::Raw { child: below, .. }
            | Self::Overlay { base: below, .. }
            | Self::Qcow2 { backing: Some(below), .. }
            | Self::Vhd { backing: Some(below), .. } => below.set_golden_identity(identity),
            _ => {}
        }
    }

    /// Returns whether the tree stores no bytes itself that could be written.
    pub(super) fn is_golden_alone(&self) -> bool {
        match self {
            Self::Golden(_) => true,
            Self::Raw { child, .. } => child.is_golden_alone(),
            _ => false,
        }
    }

    /// Describes in messages where the bytes are.
    pub fn place(&self) -> String {
        if self.files().next().is_some() || self.golden().is_some() {
            self.to_string()
        } else {
            "the disk".into()
        }
    }

    /// Returns the size in bytes, if the spec alone tells it.
    fn known_size(&self) -> Option<u64> {
        match self {
            Self::Null(size) | Self::Memory(size) | Self::Raw { size, .. } => Some(*size),
            Self::Model(model) => Some(model.size),
            Self::Golden(golden) => golden.size,
            Self::Overlay { base, .. } => base.known_size(),
            Self::File(_) | Self::Qcow2 { .. } | Self::Vhd { .. } => None,
        }
    }

    /// Checks all nodes of a disk whose blocks have `block_size` bytes.
    pub(super) fn validate(&self, block_size: u64) -> Result<(), SpecError> {
        let mut files = BTreeSet::new();
        for (above, node) in self.nodes().enumerate() {
            if above >= MAX_TREE_DEPTH {
                return refuse("backend", too_deep());
            }
            if let Some(file) = node.file() {
                file.validate()?;
                if !files.insert(file) {
                    return refuse("backend", format!("{file} is in the tree twice"));
                }
            }
            if let Self::Model(model) = node {
                model.validate()?;
                if above > 0 {
                    return refuse("backend", "a model is a whole disk; put no node above it");
                }
            }
            if let Self::Golden(golden) = node {
                golden.validate(block_size)?;
            }
            if let Self::Overlay { base, ram, overflow, overflow_size } = node {
                overlay::validate(above, base, (*ram, overflow.as_ref(), *overflow_size))?;
            }
            node.validate_size(block_size)?;
        }
        let handed_in = files.iter().filter(|file| file.path().is_none()).count();
        if handed_in > MAX_TREE_FDS {
            let problem = format!("{handed_in} files are handed in, at most {MAX_TREE_FDS} can be");
            return refuse("backend", problem + "; give paths");
        }
        // A path that is not UTF-8 has no JSON form.
        match serde_json::to_vec(self) {
            Ok(text) if text.len() <= MAX_TREE_BYTES => Ok(()),
            Ok(text) => refuse(
                "backend",
                format!(
                    "{} bytes of JSON are more than {MAX_TREE_BYTES}; use shorter paths",
                    text.len()
                ),
            ),
            Err(error) => refuse("backend", error.to_string()),
        }
    }

    fn validate_size(&self, block_size: u64) -> Result<(), SpecError> {
        let Some(size) = self.known_size() else { return Ok(()) };
        if size == 0 || size > MAX_DISK_BYTES {
            return refuse("backend", format!("{size} bytes is not in 1 to {MAX_DISK_BYTES}"));
        }
        if size % block_size != 0 {
            return refuse("backend", format!("{size} bytes is not a multiple of {block_size}"));
        }
        let Self::Raw { child, offset, .. } = self else { return Ok(()) };
        if offset % block_size != 0 {
            return refuse("backend", format!("offset {offset} is not a multiple of {block_size}"));
        }
        let limit = child.known_size().unwrap_or(MAX_DISK_BYTES);
        match offset.checked_add(size) {
            Some(end) if end <= limit => Ok(()),
            _ => refuse("backend", format!("{size} bytes at {offset} end behind byte {limit}")),
        }
    }
}

/// Describes the tree in one line, top first.
impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(file)
            | Self::Qcow2 { file, backing: None }
            | Self::Vhd { file, backing: None } => file.fmt(f),
            Self::Null(size) => write!(f, "null, {size} bytes"),
            Self::Memory(size) => write!(f, "memory, {size} bytes"),
            Self::Model(model) => write!(f, "model {}, {} bytes", model.name, model.size),
            Self::Golden(golden) => write!(f, "golden {}", golden.source),
            Self::Overlay { base, overflow: None, .. } => write!(f, "overlay over {base}"),
            Self::Overlay { base, overflow: Some(file), .. } => {
                write!(f, "overlay with {file} over {base}")
            }
            Self::Raw { child, offset, size } => write!(f, "{size} bytes at {offset} of {child}"),
            Self::Qcow2 { file, backing: Some(backing) }
            | Self::Vhd { file, backing: Some(backing) } => write!(f, "{file} over {backing}"),
        }
    }
}

impl FileRef {
    /// Returns the path, if there is one.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::Path(path) => Some(path),
            Self::Fd { .. } => None,
        }
    }

    fn validate(&self) -> Result<(), SpecError> {
        match self {
            Self::Path(path) if path.as_os_str().is_empty() => {
                refuse("backend", "file path is empty")
            }
            Self::Fd { fd } if i32::try_from(*fd).is_err() => {
                refuse("backend", format!("fd {fd} is not in 0 to {}", i32::MAX))
            }
            Self::Path(_) | Self::Fd { .. } => Ok(()),
        }
    }
}

/// Names the file in messages: by its path, or as `fd:3`.
impl fmt::Display for FileRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(path) => path.display().fmt(f),
            Self::Fd { fd } => write!(f, "fd:{fd}"),
        }
    }
}

impl<P: Into<PathBuf>> From<P> for FileRef {
    fn from(path: P) -> Self {
        Self::Path(path.into())
    }
}
