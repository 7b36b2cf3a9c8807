//! Restore of a disk in a new worker.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use blk::TokenBalance;
use model::share::DiskShare;
use model::spec::{BlockSize, DiskSpec};
use vhost_user::Listener;

use super::{ServedDisk, ServedDiskError, lock};
use crate::keeper_client::{Identity, KeeperClient, PreservedDisk, PreservedFds};
use crate::open_disk::{Opened, Sources, TreeFile, label};
use crate::pool::Pool;

impl ServedDisk {
    /// Returns the record that a new worker needs.
    pub fn to_preserved(&self) -> PreservedDisk {
        let tree = self.tree();
        let mut identities: Vec<_> =
            tree.files.iter().map(|file| Identity::from(file.identity)).collect();
        let is_plain = tree.backend.is_plain();
        let identity = if is_plain { identities.pop() } else { None };
        let backend = tree.backend.clone();
        let share = Some(tree.storage_disks.share()).filter(|share| *share != DiskShare::default());
        let spec = DiskSpec { caps: self.caps(), share, backend, ..self.spec.clone() }
            .with_polling(self.poll_spec());
        PreservedDisk {
            format: PreservedDisk::format_of(&spec),
            spec,
            active: self.is_active(),
            paused: self.is_paused(),
            leaving: false,
            size: Some(self.geometry().size),
            block_size: Some(self.geometry().block_size),
            identity,
            identities,
            exports: self.export_specs(),
        }
    }

    /// Duplicates the descriptors that belong to the record.
    ///
    /// # Errors
    /// The process cannot open more descriptors.
    pub fn preserved_fds(&self) -> io::Result<PreservedFds> {
        let listener = lock(&self.listener).as_ref().map(|l| l.parts()).transpose()?;
        let sources = self.tree().sources()?;
        Ok(PreservedFds { listener, sources, exports: self.export_sockets()? })
    }

    /// Watches the files of the disk's preserved sockets from now on.
    pub(crate) fn watch_sockets(&self, keeper_client: &KeeperClient) {
        if let Some(listener) = &*lock(&self.listener) {
            keeper_client.watch_socket(listener, self.access());
        }
        self.watch_export_sockets(keeper_client);
    }

    /// Opens a disk of a former worker. It is not served yet and not locked.
    ///
    /// # Errors
    /// The image is gone, another one, or smaller than guests were told.
    pub fn restore(
        preserved_disk: &PreservedDisk,
        preserved_fds: PreservedFds,
        pool: Arc<Pool>,
    ) -> Result<Arc<Self>, ServedDiskError> {
        let PreservedFds { listener, sources, .. } = preserved_fds;
        let opened = open(preserved_disk, sources)?;
        check(preserved_disk, &opened)?;
        let served_disk = Self::with(preserved_disk.spec.clone(), opened, None, pool)?;
        // The former balance is unknown. Assume none, so that a crash of a worker grants no burst.
        served_disk.device.set_token_balance(TokenBalance::default());
        // Adopt the listener last, because dropping it would remove its files.
        *lock(&served_disk.listener) = listener.map(Listener::adopt).transpose()?.map(Arc::new);
        served_disk.disk_status.paused.store(preserved_disk.paused, Ordering::Release);
        Ok(served_disk)
    }

    /// Releases the lock and closes the socket of an unserved disk. Leaves the socket's files,
    /// because the socket stays preserved.
    pub fn release_keep_files(self: &Arc<Self>) {
        if self.is_active() {
            // Nothing was written, so no flush is needed.
            let _ = self.deactivate();
        }
        self.release_exports_keep_files();
        if let Some(listener) = lock(&self.listener).take().and_then(Arc::into_inner) {
            listener.close_keep_files();
        }
    }
}

/// Opens the image of a preserved disk with the blocks that guests know, whatever the storage is now.
fn open(preserved_disk: &PreservedDisk, sources: Sources) -> Result<Opened, ServedDiskError> {
    let PreservedDisk { spec, size, block_size: told, .. } = preserved_disk;
    // Workers that did not record the size told guests that of the storage.
    let told = told.map(BlockSize::Bytes).or(spec.block_size).unwrap_or(BlockSize::Storage);
    let spec = DiskSpec { block_size: Some(told), ..spec.clone() };
    ServedDisk::open_disk(&spec, sources, *size)
}

/// Checks that the files are those that guests know.
fn check(preserved_disk: &PreservedDisk, opened: &Opened) -> Result<(), ServedDiskError> {
    let told = preserved_disk.file_identities();
    let is_same = |(at, file): &(usize, &TreeFile)| told.get(*at) == Some(&file.identity.into());
    let replaced = opened.tree.files.iter().enumerate().find(|file| !is_same(file));
    // Old records tell no identity.
    if let (false, Some((_, file))) = (told.is_empty(), replaced) {
        return Err(ServedDiskError::Replaced { path: label(&file.name) });
    }
    let found = opened.disk.geometry().size;
    match preserved_disk.size {
        Some(size) if found < size => Err(ServedDiskError::Shrunk { found, size }),
        _ => Ok(()),
    }
}
