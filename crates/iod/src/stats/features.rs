//! Names of virtio features.

/// Feature bits of a block device or its rings, with the names of the specification.
const NAMES: [(u32, &str); 19] = [
    (1, "size_max"),
    (2, "seg_max"),
    (4, "geometry"),
    (5, "ro"),
    (6, "blk_size"),
    (9, "flush"),
    (10, "topology"),
    (11, "config_wce"),
    (12, "mq"),
    (13, "discard"),
    (14, "write_zeroes"),
    (16, "secure_erase"),
    (28, "indirect_desc"),
    (29, "event_idx"),
    (32, "version_1"),
    (33, "access_platform"),
    (34, "ring_packed"),
    (35, "in_order"),
    (36, "order_platform"),
];

/// Returns the names of the bits in `features`. A bit without a name is named by its number.
pub(super) fn names(features: u64) -> Vec<String> {
    let set = (0..u64::BITS).filter(|bit| features & 1 << bit != 0);
    let name = |bit| {
        let known = NAMES.iter().find(|(one, _)| *one == bit);
        known.map_or_else(|| format!("bit_{bit}"), |(_, name)| (*name).into())
    };
    set.map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_offered_feature_has_a_name() {
        let disk = std::sync::Arc::new(disk::NullDisk::new(1 << 20, 512, false));
        let options = blk::DeviceOptions {
            id: "d".into(),
            queues: 2,
            serial: String::new(),
            poll: reactor::PollPolicy::default(),
            record: true,
        };
        let offered = names(blk::BlkDevice::new(disk, &options).features());
        assert!(offered.len() > 7 && offered.iter().all(|name| !name.starts_with("bit_")));
        assert_eq!(names(1 << 63 | 1 << 9), ["flush", "bit_63"]);
    }
}
