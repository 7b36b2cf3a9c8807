//! Tests of the choice: examples, and a model of a storage repository with random operations.

use proptest::prelude::*;

use super::*;

/// Bytes of an image without data, and of a block of data.
const EMPTY: u64 = 4;
/// Blocks of a disk.
const BLOCKS: u16 = 256;

fn chain(images: &[u32]) -> Chain<u32> {
    Chain { images: images.to_vec(), is_written: true, is_kept: false }
}

fn shown(images: &[u32]) -> Chain<u32> {
    Chain { is_written: false, ..chain(images) }
}

/// Plans for images that store these bytes, from 0 on.
fn planned(chains: &[Chain<u32>], stored: &[u64], free: u64) -> Option<Vec<u32>> {
    let stored = (0..).zip(stored.iter().copied()).collect();
    plan_over(chains, &stored, free, 0).map(|merge| merge.images)
}

#[test]
fn images_that_only_one_chain_uses_become_one() {
    let same = [10; 5];
    assert_eq!(planned(&[chain(&[0, 1, 2, 3])], &same, u64::MAX), Some(vec![1, 2, 3]));
    assert_eq!(planned(&[chain(&[0, 1])], &same, u64::MAX), None, "a top is written");
    // A snapshot shows 2, so nothing is merged into it, and it into what is below.
    let with_snapshot = [chain(&[0, 1, 2, 3, 4]), shown(&[2, 3, 4])];
    assert_eq!(planned(&with_snapshot, &same, u64::MAX), Some(vec![2, 3, 4]));
    // Two clones lie over 2.
    let clones = [chain(&[0, 2, 3]), chain(&[1, 2, 3])];
    assert_eq!(planned(&clones, &same, u64::MAX), Some(vec![2, 3]));
    // A volume whose images stay keeps them from being merged.
    let kept = [clones[0].clone(), Chain { is_kept: true, ..clones[1].clone() }];
    assert_eq!(planned(&kept, &same, u64::MAX), None);
    // An image that is not there.
    assert_eq!(planned(&[chain(&[0, 1, 2])], &same[..2], u64::MAX), None);
}

#[test]
fn amounts_and_free_space_limit_a_merge() {
    let images = [chain(&[0, 1, 2, 3])];
    assert_eq!(planned(&images, &[0, 10, 20, 60], u64::MAX), Some(vec![1, 2, 3]));
    assert_eq!(planned(&images, &[0, 10, 20, 61], u64::MAX), Some(vec![1, 2]));
    assert_eq!(planned(&images, &[0, 10, 21, 43], u64::MAX), None);
    assert_eq!(planned(&images, &[0, 10, 20, 60], 179), Some(vec![1, 2]), "half of the room");
    assert_eq!(planned(&images, &[0, 10, 20, 60], 59), None);
    let small = |stored: &[u64]| {
        let stored = (0..).zip(stored.iter().copied()).collect();
        plan(&images, &stored, u64::MAX).map(|merge| merge.images)
    };
    assert_eq!(small(&[0, 1, 3 << 20, 7 << 20]), Some(vec![1, 2]));
    assert_eq!(small(&[0, 1, SMALL_BYTES, 9 << 20]), None);
    // A long chain is shortened where it costs least.
    let long: Vec<u32> = (0..17).collect();
    let stored: Vec<u64> = (0..17).map(|number| 3_u64.pow(number)).collect();
    assert_eq!(planned(&[chain(&long)], &stored, u64::MAX), Some(vec![1, 2]));
    assert_eq!(planned(&[chain(&long[..16])], &stored, u64::MAX), None);
}

/// SR whose images are sets of blocks.
#[derive(Default)]
struct Model {
    images: BTreeMap<u32, BTreeSet<u16>>,
    chains: Vec<Chain<u32>>,
    next: u32,
    written: u64,
    copied: u64,
}

#[derive(Clone, Debug)]
enum Op {
    Write(usize, u16, u16),
    Snapshot(usize),
    Clone(usize),
    Destroy(usize),
}

fn op() -> impl Strategy<Value = Op> {
    let any = any::<usize>();
    prop_oneof![
        4 => (any, 0..BLOCKS, 1..40_u16).prop_map(|(of, at, len)| Op::Write(of, at, len)),
        4 => any.prop_map(Op::Snapshot),
        1 => any.prop_map(Op::Clone),
        4 => any.prop_map(Op::Destroy),
    ]
}

impl Model {
    fn image(&mut self) -> u32 {
        self.images.insert(self.next, BTreeSet::new());
        self.next += 1;
        self.next - 1
    }

    fn of(&self, image: u32) -> u64 {
        EMPTY + self.images[&image].len() as u64
    }

    fn run(&mut self, op: &Op) {
        let (Op::Write(of, ..) | Op::Snapshot(of) | Op::Clone(of) | Op::Destroy(of)) = *op;
        let count = self.chains.len();
        if count == 0 {
            let image = self.image();
            self.chains.push(chain(&[image]));
            return;
        }
        let of = of % count;
        let known = self.chains[of].clone();
        let top = known.images[0];
        match *op {
            Op::Write(_, at, len) if known.is_written => {
                let blocks = self.images.get_mut(&top).unwrap();
                blocks.extend((at..at + len).map(|block| block % BLOCKS));
                self.written += u64::from(len);
            }
            Op::Snapshot(_) if known.is_written && known.images.len() < 30 => {
                let image = self.image();
                self.chains[of].images.insert(0, image);
                self.written += EMPTY;
                self.chains.push(shown(&known.images));
            }
            Op::Clone(_) if !known.is_written && known.images.len() < 30 => {
                let image = self.image();
                self.written += EMPTY;
                self.chains.push(chain(&[&[image], &known.images[..]].concat()));
            }
            Op::Destroy(_) if count > 1 => drop(self.chains.remove(of)),
            _ => {}
        }
    }

    fn stored(&self) -> BTreeMap<u32, u64> {
        let used: BTreeSet<u32> = self.chains.iter().flat_map(|one| one.images.clone()).collect();
        used.into_iter().map(|image| (image, self.of(image))).collect()
    }

    /// Merges until there is nothing to merge.
    fn settle(&mut self) {
        while let Some(merge) = plan_over(&self.chains, &self.stored(), u64::MAX, 0) {
            let content = |chain: &Chain<u32>| -> BTreeSet<u16> {
                chain.images.iter().flat_map(|image| self.images[image].clone()).collect()
            };
            let before: Vec<_> = self.chains.iter().map(content).collect();
            let merged = merge.images.iter().flat_map(|image| self.images[image].clone());
            let merged: BTreeSet<u16> = merged.collect();
            self.copied += EMPTY + merged.len() as u64;
            let into = self.image();
            self.images.insert(into, merged);
            for chain in &mut self.chains {
                let Some(at) = chain.images.iter().position(|one| *one == merge.images[0]) else {
                    let is_free = |image: &u32| !merge.images.contains(image);
                    assert!(chain.images.iter().all(is_free), "{merge:?} is shown by {chain:?}");
                    continue;
                };
                assert!(at > 0 || !chain.is_written, "{merge:?} is written by {chain:?}");
                let end = at + merge.images.len();
                assert_eq!(chain.images[at..end], merge.images);
                chain.images.splice(at..end, [into]);
            }
            let content = |chain: &Chain<u32>| -> BTreeSet<u16> {
                chain.images.iter().flat_map(|image| self.images[image].clone()).collect()
            };
            assert_eq!(self.chains.iter().map(content).collect::<Vec<_>>(), before);
        }
    }

    /// Checks the bounds of a chain that shares nothing.
    fn check_alone(&self) {
        let [alone] = &self.chains[..] else { return };
        let below = &alone.images[usize::from(alone.is_written)..];
        let blocks: BTreeSet<_> = below.iter().flat_map(|image| &self.images[image]).collect();
        let stored: u64 = below.iter().map(|image| self.of(*image)).sum();
        assert!(stored <= 2 * (EMPTY + blocks.len() as u64), "{stored} bytes for {}", blocks.len());
        assert!(below.len() <= 6, "{} images below the top", below.len());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// A merge changes no content, a chain is short, and a byte is copied a few times.
    #[test]
    fn chains_stay_short_and_bytes_are_copied_a_few_times(ops in prop::collection::vec(op(), 300)) {
        let mut model = Model::default();
        for op in &ops {
            model.run(op);
            model.settle();
            model.check_alone();
        }
        let (copied, written) = (model.copied, model.written);
        prop_assert!(copied <= 6 * written, "{copied} of {written}");
        model.chains.truncate(1);
        model.settle();
        model.check_alone();
    }
}

/// The worst for a tree of amounts: small layers without end.
#[test]
fn small_layers_without_end_are_copied_a_few_times() {
    let mut model = Model::default();
    model.run(&Op::Snapshot(0));
    for step in 0..2_000_usize {
        model.run(&Op::Write(0, (step as u16).wrapping_mul(37) % BLOCKS, 2));
        model.run(&Op::Snapshot(0));
        model.run(&Op::Destroy(1));
        model.settle();
        model.check_alone();
    }
    let (copied, written) = (model.copied, model.written);
    assert!(copied <= 6 * written, "{copied} of {written}");
}
