//! Files that users put into the folder of an SR, which become volumes.
//!
//! Each file opens as the format that its name states. A file that others name as their parent becomes
//! an image below theirs; all others become volumes. Parents come from the folder only, and from the
//! files of the same scan. All other files stay as they are, with a reason.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use error_causes::error_chain;
use model::id::{SrId, Uuid, VdiId};
use model::image::{DEFAULT_IMAGE_DEADLINE_S, ImageFormat, ImageInfo, ImageQuery};
use model::spec::MAX_DISK_BYTES;
use model::sr::SrFeature;

use super::{Machines, StepError};
use crate::sr::Names;
use crate::sr::foreign::{ForeignFile, ForeignImage, ForeignVolume, MAX_FOREIGN_FILES};

/// Unit of the sizes of disks, in bytes.
const SECTOR_BYTES: u64 = 512;
/// Most images of a volume that is made of foreign files.
const MAX_DEPTH: usize = 30;
/// Identity of a raw parent in a VHD.
const RAW_PARENT: &str = "00000000-0000-0000-0000-000000000000";

/// File that becomes no volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PassedOver {
    /// File name.
    pub name: String,
    /// Reason, with the remedy.
    pub why: String,
}

/// File that opens as its format.
#[derive(Clone, Debug)]
struct Opened {
    info: ImageInfo,
    parent: Option<String>,
}

/// Files by name, or the reason why one is passed over.
type Files = BTreeMap<String, Result<Opened, String>>;

impl Machines {
    /// Makes volumes of the files that users put into an SR. Returns those that become none. `id`
    /// returns new random ids.
    ///
    /// # Errors
    /// The SR failed. Some files may have become volumes.
    pub async fn adopt_foreign(
        &self,
        (sr, kind): (SrId, &str),
        id: impl Fn() -> Uuid + Send,
    ) -> Result<Vec<PassedOver>, StepError> {
        let Some(driver) = self.drivers.sr(kind) else { return Ok(Vec::new()) };
        let found = driver.foreign_files(sr).await?;
        let Some(folder) = driver.folder(sr).filter(|_| !found.is_empty()) else {
            return Ok(Vec::new());
        };
        let is_full = found.len() == MAX_FOREIGN_FILES;
        let mut files = Files::new();
        for ForeignFile { name, format } in found {
            let opened = match format {
                Ok(format) => self.open_foreign((sr, kind), &folder, &name, format).await,
                Err(why) => Err(why),
            };
            files.insert(name, opened);
        }
        let (volumes, mut passed_over) = plan(&files, &id);
        if is_full {
            let why = format!("a scan takes {MAX_FOREIGN_FILES} files: scan again");
            passed_over.push(PassedOver { name: "others".into(), why });
        }
        if !volumes.is_empty() {
            driver.adopt(sr, volumes).await?;
        }
        Ok(passed_over)
    }

    async fn open_foreign(
        &self,
        sr: (SrId, &str),
        folder: &Path,
        name: &str,
        format: ImageFormat,
    ) -> Result<Opened, String> {
        let place = self.place(sr, SrFeature::VdiCreate).await;
        let place = place.map_err(|error| error_chain(&error))?;
        let (path, deadline_s) = (folder.join(name), DEFAULT_IMAGE_DEADLINE_S);
        let info = place.datapath.image_info(&ImageQuery { path, format, deadline_s }).await;
        let info = info.map_err(|error| error_chain(&error))?;
        check(&info)?;
        Ok(Opened { parent: parent(&info, folder)?, info })
    }
}

/// Checks that an image can be a disk.
fn check(info: &ImageInfo) -> Result<(), String> {
    let size = info.size_bytes;
    if info.is_written {
        return Err("another program writes it".into());
    }
    if info.qcow2.as_ref().is_some_and(|qcow2| qcow2.needs_repair) {
        return Err("it is marked dirty or corrupt: repair it (qemu-img check -r all)".into());
    }
    if !(1..=MAX_DISK_BYTES).contains(&size) || !size.is_multiple_of(SECTOR_BYTES) {
        return Err(format!(
            "its disk has {size} bytes, and must have a multiple of {SECTOR_BYTES} from 1 to \
             {MAX_DISK_BYTES}: resize it (qemu-img resize)"
        ));
    }
    Ok(())
}

/// Returns the name of the file that an image names as its parent.
fn parent(info: &ImageInfo, folder: &Path) -> Result<Option<String>, String> {
    let named = if let Some(backing) = info.qcow2.as_ref().and_then(|one| one.backing.as_ref()) {
        backing.file.clone()
    } else if let Some(parent) = info.vhd.as_ref().and_then(|one| one.parent.as_ref()) {
        let path = parent.path.as_deref().ok_or("it names no parent, and needs one")?;
        PathBuf::from(path.strip_prefix("file://").unwrap_or(path))
    } else {
        return Ok(None);
    };
    let inside = named.strip_prefix(folder).unwrap_or(&named);
    let inside = inside.strip_prefix(".").unwrap_or(inside).to_str();
    let inside = inside.filter(|name| !name.is_empty() && !name.contains('/'));
    let name =
        inside.ok_or_else(|| format!("its parent {} is not in this folder", named.display()));
    Ok(Some(name?.to_owned()))
}

/// Returns the volumes to make, and the files that become none.
fn plan(files: &Files, id: &impl Fn() -> Uuid) -> (Vec<ForeignVolume>, Vec<PassedOver>) {
    let opened = |name: &String| files.get(name).and_then(|one| one.as_ref().ok());
    let parents = files.values().filter_map(|one| one.as_ref().ok()?.parent.as_ref());
    let parents: BTreeSet<&String> = parents.collect();
    let (mut volumes, mut new_names) = (Vec::new(), BTreeMap::new());
    let (mut taken, mut reasons) = (BTreeSet::new(), BTreeMap::new());
    for (name, file) in files.iter().filter(|(name, _)| !parents.contains(name)) {
        let chain = match file {
            Ok(_) => chain(files, name),
            Err(why) => Err(why.clone()),
        };
        let made = chain.and_then(|chain| {
            let label = label(name)?;
            let mut images = Vec::new();
            for name in &chain {
                let to = new_names.entry((*name).clone()).or_insert_with(|| renamed(name, id));
                images.push(ForeignImage { from: (*name).clone(), to: to.clone() });
            }
            let vdi = images.first().and_then(|top| top.to.split_once('.')?.0.parse().ok());
            let bytes = opened(name).map_or(0, |one| one.info.size_bytes);
            let vdi = VdiId(vdi.unwrap_or_default());
            taken.extend(chain);
            Ok(ForeignVolume { vdi, names: label, bytes, images })
        });
        match made {
            Ok(volume) => volumes.push(volume),
            Err(why) => drop(reasons.insert(name, why)),
        }
    }
    for (name, file) in files.iter().filter(|(name, _)| !taken.contains(name)) {
        let below = || "files that are passed over name it as their parent".to_owned();
        let why = file.as_ref().err().cloned();
        reasons.entry(name).or_insert_with(|| why.unwrap_or_else(below));
    }
    let passed_over = reasons.into_iter().map(|(name, why)| PassedOver { name: name.clone(), why });
    (volumes, passed_over.collect())
}

/// Returns the files of a chain of images, top first.
fn chain<'a>(files: &'a Files, top: &'a String) -> Result<Vec<&'a String>, String> {
    let mut chain = Vec::new();
    let mut next = Some(top);
    while let Some(name) = next {
        if chain.len() == MAX_DEPTH || chain.contains(&name) {
            return Err(format!("it lies over more than {} images", MAX_DEPTH - 1));
        }
        let file = files.get(name);
        let file = file.ok_or_else(|| format!("its parent {name} is no file of this scan"))?;
        let file = file.as_ref().map_err(|_| format!("its parent {name} is passed over"))?;
        if let Some(above) = chain.last().and_then(|above| files.get(*above)?.as_ref().ok()) {
            fits(&above.info, &file.info).map_err(|why| format!("its parent {name} {why}"))?;
        }
        chain.push(name);
        next = file.parent.as_ref();
    }
    Ok(chain)
}

/// Checks that an image lies over another one.
fn fits(above: &ImageInfo, below: &ImageInfo) -> Result<(), String> {
    let stated = above.qcow2.as_ref().and_then(|one| one.backing.as_ref()?.format.as_deref());
    if let Some(stated) = stated.filter(|stated| *stated != below.format.qemu_name()) {
        return Err(format!("has the format {}, not {stated}", below.format.name()));
    }
    let identity = above.vhd.as_ref().and_then(|one| Some(one.parent.as_ref()?.unique_id.as_str()));
    let present = match below.format {
        ImageFormat::Raw => RAW_PARENT,
        ImageFormat::Vhd => below.vhd.as_ref().map_or("", |one| one.unique_id.as_str()),
        ImageFormat::Qcow2 if identity.is_some() => return Err("is no VHD and not raw".into()),
        ImageFormat::Qcow2 => "",
    };
    match identity {
        Some(identity) if identity != present => {
            Err(format!("has the identity {present}, not {identity}"))
        }
        _ => Ok(()),
    }
}

/// Returns the names of the volume of a file: a UUID is the name of the file alone.
fn label(name: &str) -> Result<Names, String> {
    let stem = name.rsplit_once('.').map_or(name, |(stem, _)| stem);
    let label = if stem.parse::<Uuid>().is_ok() { String::new() } else { stem.to_owned() };
    let names = Names { label, description: String::new() };
    let is_short = names.are_short();
    is_short.then_some(names).ok_or_else(|| "its name is too long: rename it".to_owned())
}

/// Returns the new name of a file. A UUID stays.
fn renamed(name: &str, id: &impl Fn() -> Uuid) -> String {
    let (stem, extension) = name.rsplit_once('.').unwrap_or((name, ""));
    let present = stem.parse::<Uuid>().ok().filter(|uuid| uuid.to_string() == stem);
    format!("{}.{extension}", present.unwrap_or_else(id))
}
