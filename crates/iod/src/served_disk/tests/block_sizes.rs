//! Block sizes of restored disks.

use std::sync::Arc;

use model::spec::{Backend, BlockSize, DiskSpec};
use testkit::storage::LoopDevice;

use crate::keeper_client::{PreservedDisk, PreservedFds};
use crate::open_disk::Sources;
use crate::pool::{Pool, PoolSize};
use crate::served_disk::ServedDisk;

#[test]
fn a_restored_disk_has_the_blocks_that_its_guest_knows() {
    let folder = tempfile::tempdir().unwrap();
    let pool = Arc::new(Pool::start(PoolSize::asked(1)).unwrap());
    let (large, small) =
        (LoopDevice::new(1 << 20, 4096).unwrap(), LoopDevice::new(1 << 20, 512).unwrap());
    let storage = Some(BlockSize::Storage);
    for (device, requested, told, expected) in [
        (&large, None, Some(4096), 4096),
        (&large, None, Some(512), 512),
        (&small, None, Some(4096), 4096),
        (&large, storage, Some(512), 512),
        // Workers that did not record the size told guests that of the storage.
        (&large, None, None, 4096),
        (&small, None, None, 512),
        (&large, Some(BlockSize::Bytes(512)), None, 512),
    ] {
        let backend = Backend::File(device.path().into());
        let spec = DiskSpec::new("d", folder.path().join("s"), backend);
        let spec = DiskSpec { block_size: requested, ..spec };
        let opened = ServedDisk::open(spec, Sources::default(), Arc::clone(&pool)).unwrap();
        let preserved = PreservedDisk { block_size: told, ..opened.to_preserved() };
        drop(opened);
        let restored = ServedDisk::restore(&preserved, PreservedFds::default(), Arc::clone(&pool));
        let restored = restored.unwrap();
        assert_eq!(restored.geometry().block_size, expected, "{requested:?}, told {told:?}");
        assert_eq!(restored.to_preserved().block_size, Some(expected));
    }
}
