//! Operations of the model, in the steps of the daemon. A crash comes before any of their changes.

use model::image::ImageFormat;

use super::super::super::record::ImageName;
use super::images::BYTES;
use super::*;

/// Random numbers, the same in each run.
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(super) fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % bound as u64).unwrap()
    }

    pub(super) fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }
}

/// Crash of what is not done by the directory itself.
fn crashed() -> SrError {
    SrError::Worker("it has crashed".into())
}

impl Model {
    /// Runs an operation on volumes that it chooses.
    pub(super) async fn random_op(&mut self) -> Result<(), SrError> {
        let of = self.any_volume();
        let (Some(of), choice) = (of, self.random.below(25)) else {
            return self.create().map(drop);
        };
        let is_full = self.volumes.len() >= MAX_MODEL_VOLUMES;
        match choice {
            0 if !is_full => self.create().map(drop),
            1..=4 => {
                self.write(of);
                Ok(())
            }
            5..=7 if !is_full => self.snapshot(of).map(drop),
            8 | 9 if !is_full => self.clone_volume(of).map(drop),
            10 => {
                self.serve(of);
                Ok(())
            }
            11 | 12 => self.destroy(of),
            13 if !is_full => {
                self.clone_volume(of)?;
                self.destroy(of)
            }
            _ if is_full && choice < 11 => self.destroy(of),
            20 => self.set_reset_point(of),
            21..=23 => self.reset(of),
            24 => self.set_names(of),
            _ => self.merge_step().await,
        }
    }

    pub(super) fn any_volume(&mut self) -> Option<VdiId> {
        let count = self.volumes.len();
        let at = if count == 0 { return None } else { self.random.below(count) };
        self.volumes.keys().nth(at).copied()
    }

    pub(super) fn create(&mut self) -> Result<VdiId, SrError> {
        let vdi = self.id();
        let volume = Volume::new([0; UNITS], true);
        self.maybe.insert(vdi, volume);
        let formats = [ImageFormat::Raw, ImageFormat::Qcow2, ImageFormat::Vhd, ImageFormat::Vhd];
        match formats[self.random.below(formats.len())] {
            ImageFormat::Raw => drop(self.sr().create_volume(vdi, BYTES)?),
            format => {
                self.sr().prepare_image(vdi, BYTES, format)?;
                if crash::has_crashed() {
                    return Err(crashed());
                }
                self.images.create(&ImageName::new(vdi.0, format).to_string(), None);
                self.sr().settle_image(vdi)?;
            }
        }
        self.volumes.append(&mut self.maybe);
        Ok(vdi)
    }

    /// Writes as a guest does. Nothing crashes here.
    pub(super) fn write(&mut self, vdi: VdiId) {
        if !self.volumes[&vdi].is_written {
            return;
        }
        let start = self.random.below(UNITS);
        let units = start..UNITS.min(start + 1 + self.random.below(24));
        let value = if self.random.one_in(4) { 0 } else { self.random.below(256) as u8 };
        let top = self.sr().images(vdi).unwrap().remove(0);
        let volume = self.volumes.get_mut(&vdi).unwrap();
        volume.content[units.clone()].fill(value);
        let top = volume.served.clone().unwrap_or(top);
        self.images.write(&top, units, value);
    }

    /// A datapath begins or ends to serve the volume.
    fn serve(&mut self, vdi: VdiId) {
        let top = self.sr().images(vdi).unwrap().remove(0);
        let volume = self.volumes.get_mut(&vdi).unwrap();
        if volume.is_written {
            volume.served = if volume.served.is_none() { Some(top) } else { None };
        }
    }

    fn served(&self, vdi: VdiId) -> Option<String> {
        self.volumes.get(&vdi).and_then(|volume| volume.served.clone())
    }

    /// Puts a layer over a volume.
    fn push(&mut self, vdi: VdiId) -> Result<(), SrError> {
        let layer = self.id();
        let served = self.served(vdi);
        let present = self.sr().prepare_layer(vdi, layer.0, served.as_deref())?;
        if crash::has_crashed() {
            return Err(crashed());
        }
        let name = ImageName::parse(&present[0]).unwrap().layer(layer.0).to_string();
        self.images.create(&name, Some(&present[0]));
        if let Some(volume) = self.volumes.get_mut(&vdi)
            && volume.served.is_some()
        {
            volume.served = Some(name);
        }
        let served = self.served(vdi);
        self.sr().settle_layer(vdi, served.as_deref()).map(drop)
    }

    pub(super) fn snapshot(&mut self, of: VdiId) -> Result<VdiId, SrError> {
        if !self.volumes[&of].is_written {
            return Ok(of);
        }
        self.push(of)?;
        let vdi = self.id();
        let volume = Volume::new(self.volumes[&of].content, false);
        self.maybe.insert(vdi, volume);
        self.sr().share_images(vdi, of, Some(1))?;
        self.volumes.append(&mut self.maybe);
        Ok(vdi)
    }

    pub(super) fn clone_volume(&mut self, of: VdiId) -> Result<VdiId, SrError> {
        if self.served(of).is_some() || !self.sr().can_share(of)? {
            self.push(of)?;
        }
        let vdi = self.id();
        let volume = Volume::new(self.volumes[&of].content, true);
        self.maybe.insert(vdi, volume);
        self.sr().share_images(vdi, of, None)?;
        if let Err(error) = self.push(vdi) {
            if self.sr().destroy_volume(vdi).is_ok() {
                self.maybe.remove(&vdi);
            }
            return Err(error);
        }
        self.volumes.append(&mut self.maybe);
        Ok(vdi)
    }

    pub(super) fn destroy(&mut self, vdi: VdiId) -> Result<(), SrError> {
        let volume = self.volumes[&vdi].clone();
        self.maybe.insert(vdi, volume);
        self.sr().destroy_volume(vdi)?;
        self.volumes.remove(&vdi);
        self.maybe.remove(&vdi);
        Ok(())
    }

    /// Makes the present content the one to which a volume goes back, or keeps none.
    fn set_reset_point(&mut self, vdi: VdiId) -> Result<(), SrError> {
        if !self.volumes[&vdi].is_written || self.served(vdi).is_some() {
            return Ok(());
        }
        if self.sr().volume(vdi)?.resets {
            return self.sr().set_reset_point(vdi, None);
        }
        let volume = self.volumes.get_mut(&vdi).unwrap();
        volume.reset = volume.content;
        if !self.sr().can_share(vdi)? {
            self.push(vdi)?;
        }
        let point = self.id();
        self.sr().set_reset_point(vdi, Some(point))
    }

    /// A machine with the volume boots.
    fn reset(&mut self, vdi: VdiId) -> Result<(), SrError> {
        if self.served(vdi).is_some() || !self.sr().volume(vdi)?.resets {
            return Ok(());
        }
        self.resetting = Some(vdi);
        if let [layer, below, ..] = &self.sr().prepare_reset(vdi)?[..] {
            if crash::has_crashed() {
                return Err(crashed());
            }
            self.images.create(layer, Some(below));
            self.sr().settle_layer(vdi, None)?;
        }
        self.resetting = None;
        let volume = self.volumes.get_mut(&vdi).unwrap();
        volume.content = volume.reset;
        Ok(())
    }

    fn set_names(&mut self, vdi: VdiId) -> Result<(), SrError> {
        let label = self.random.below(3).to_string();
        self.sr().set_names(vdi, crate::sr::Names { label, ..Default::default() })
    }

    /// Does the next step of a merge: begins it, creates its image, switches a volume, or ends it.
    pub(super) async fn merge_step(&mut self) -> Result<(), SrError> {
        let into = self.id().0;
        let Some(merge) = self.sr().begin_merge(into, &BTreeSet::new())? else { return Ok(()) };
        if !merge.is_complete {
            if crash::has_crashed() {
                return Err(crashed());
            }
            if self.random.one_in(8) {
                return self.sr().end_merge().map(drop);
            }
            self.images.merge(&merge.chain, merge.count, &merge.into).await;
            return Ok(());
        }
        match self.sr().merge_users()?.first() {
            Some(user) => self.sr().switch_merge(*user),
            None => self.sr().end_merge().map(drop),
        }
    }
}
