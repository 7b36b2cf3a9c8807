//! Choice of the images that are merged, so that chains stay short and overwritten data takes little
//! space.
//!
//! An image below a top never changes, and no volume but those above it reads it. So an image and
//! the one below it can become one, if nothing else lies over the lower one and no volume shows it
//! as it is.
//!
//! **Amounts as in a log-structured merge tree.** An image is merged into the one below if that stores at most
//! [`RATIO`] times as much. So a byte is copied again only when what it is in has grown by a half, and what a
//! chain stores twice is bounded. Images that store at most [`SMALL_BYTES`] together are merged whatever the
//! ratio, because a copy costs little. A chain longer than [`LONG_CHAIN`] is shortened whatever the ratio,
//! where it costs least.

use std::collections::{BTreeMap, BTreeSet};

/// Most that a lower image stores, as a multiple of the upper one, to be merged with it.
pub const RATIO: u64 = 2;
/// Bytes up to which images are merged whatever the ratio.
pub const SMALL_BYTES: u64 = 4 << 20;
/// Number of images from which on a chain is shortened whatever the ratio.
pub const LONG_CHAIN: usize = 16;

/// Images of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain<I> {
    /// Images, top first.
    pub images: Vec<I>,
    /// Whether the top is written, or may be.
    pub is_written: bool,
    /// Whether the images stay as they are.
    pub is_kept: bool,
}

/// Images to merge into one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Merge<I> {
    /// Images, top first, at least two. Each lies over the next.
    pub images: Vec<I>,
    /// Bytes that they store, which the new image needs at most.
    pub stored_bytes: u64,
}

/// Returns the next merge of images of an SR. `stored` has the bytes that each image stores; an
/// image that is not there is merged with no other. A merge takes at most half of the free bytes.
pub fn plan<I: Copy + Ord>(
    chains: &[Chain<I>],
    stored: &BTreeMap<I, u64>,
    free_bytes: u64,
) -> Option<Merge<I>> {
    plan_over(chains, stored, free_bytes, SMALL_BYTES)
}

fn plan_over<I: Copy + Ord>(
    chains: &[Chain<I>],
    stored: &BTreeMap<I, u64>,
    free_bytes: u64,
    small_bytes: u64,
) -> Option<Merge<I>> {
    let pairs = Pairs { most_bytes: free_bytes / 2, small_bytes, ..Pairs::new(chains, stored) };
    let cost = |merge: &Merge<I>| merge.stored_bytes;
    let by_ratio = pairs.below.keys().filter_map(|top| pairs.run(*top)).min_by_key(cost);
    let forced = || {
        let long = chains.iter().filter(|chain| chain.images.len() > LONG_CHAIN);
        let uppers: BTreeSet<I> = long.flat_map(|chain| chain.images.iter().copied()).collect();
        uppers.into_iter().filter_map(|upper| pairs.pair(upper)).min_by_key(cost)
    };
    by_ratio.or_else(forced)
}

/// Images that can be merged, each with the one below it.
struct Pairs<'a, I> {
    below: BTreeMap<I, I>,
    above: BTreeMap<I, I>,
    stored: &'a BTreeMap<I, u64>,
    /// Most bytes of a new image.
    most_bytes: u64,
    /// Bytes of a new image up to which the ratio does not matter.
    small_bytes: u64,
}

impl<'a, I: Copy + Ord> Pairs<'a, I> {
    fn new(chains: &[Chain<I>], stored: &'a BTreeMap<I, u64>) -> Self {
        // What lies over an image; `None` for a volume that shows it.
        let mut above: BTreeMap<I, BTreeSet<Option<I>>> = BTreeMap::new();
        let mut fixed = BTreeSet::new();
        for chain in chains {
            let uppers = std::iter::once(None).chain(chain.images.iter().copied().map(Some));
            for (upper, image) in uppers.zip(&chain.images) {
                above.entry(*image).or_default().insert(upper);
            }
            let top = chain.images.first().filter(|_| chain.is_written);
            fixed.extend(top.copied());
            if chain.is_kept {
                fixed.extend(chain.images.iter().copied());
            }
        }
        let is_free = |image: &I| !fixed.contains(image) && stored.contains_key(image);
        let only =
            |of: &BTreeSet<Option<I>>| if of.len() == 1 { of.first().copied()? } else { None };
        let pairs = above.iter().filter_map(|(lower, above)| Some((only(above)?, *lower)));
        let below: BTreeMap<I, I> =
            pairs.filter(|(upper, lower)| is_free(upper) && is_free(lower)).collect();
        let above = below.iter().map(|(upper, lower)| (*lower, *upper)).collect();
        Self { below, above, stored, most_bytes: 0, small_bytes: 0 }
    }

    fn of(&self, image: I) -> u64 {
        self.stored.get(&image).copied().unwrap_or_default()
    }

    /// Returns the merge of an image with the one below it, if there is room.
    fn pair(&self, upper: I) -> Option<Merge<I>> {
        let lower = *self.below.get(&upper)?;
        let stored_bytes = self.of(upper).saturating_add(self.of(lower));
        let merge = Merge { images: vec![upper, lower], stored_bytes };
        (stored_bytes <= self.most_bytes).then_some(merge)
    }

    /// Returns whether the ratio lets an image be merged with those above it, which store `upper`
    /// bytes.
    fn is_small(&self, lower: I, upper: u64) -> bool {
        let of_lower = self.of(lower);
        let both = of_lower.saturating_add(upper);
        let is_worth_it = of_lower <= upper.saturating_mul(RATIO) || both <= self.small_bytes;
        is_worth_it && both <= self.most_bytes
    }

    /// Returns the images from `top` down that the ratio lets merge. One that lies over `top` and
    /// would be merged with it begins a longer run, so `top` begins none.
    fn run(&self, top: I) -> Option<Merge<I>> {
        if self.above.get(&top).is_some_and(|upper| self.is_small(top, self.of(*upper))) {
            return None;
        }
        let mut merge = Merge { images: vec![top], stored_bytes: self.of(top) };
        let mut last = top;
        while let Some(lower) = self.below.get(&last) {
            if !self.is_small(*lower, merge.stored_bytes) {
                break;
            }
            merge.images.push(*lower);
            merge.stored_bytes = merge.stored_bytes.saturating_add(self.of(*lower));
            last = *lower;
        }
        (merge.images.len() > 1).then_some(merge)
    }
}

#[cfg(test)]
mod tests;
