//! Cells of the matrix.

/// Smallest and largest number of outstanding bytes.
const TOTALS: std::ops::RangeInclusive<u32> = 9..=22;
/// Cells of a short measurement have sizes and depths of these powers of two.
const SHORT_SIZES: [u32; 5] = [12, 14, 16, 18, 20];

/// Requests of one size, a number of them at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cell {
    /// True for writes, false for reads.
    pub write: bool,
    /// Bytes of a request.
    pub bytes: u32,
    /// Number of requests at a time.
    pub depth: u32,
}

impl Cell {
    /// Returns the number of outstanding bytes.
    pub fn total(self) -> u32 {
        self.bytes * self.depth
    }
}

/// Returns the cells of a storage with blocks of `block` bytes: 512 bytes to 4 MiB outstanding, as 1,
/// 2, 4 and more requests. A short measurement has those that a profile needs.
pub fn cells(block: u32, write: bool, short: bool) -> Vec<Cell> {
    let all = TOTALS.flat_map(|total| (0..=total).map(move |depth| (total - depth, depth)));
    let wanted = move |&(bytes, depth): &(u32, u32)| {
        let in_short = SHORT_SIZES.contains(&bytes) && depth % 2 == 0;
        bytes >= *TOTALS.start() && 1 << bytes >= block && (!short || in_short)
    };
    all.filter(wanted)
        .map(|(bytes, depth)| Cell { write, bytes: 1 << bytes, depth: 1 << depth })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_matrix_has_the_cells_of_the_study() {
        let all = cells(512, false, false);
        assert_eq!(all.len(), 105);
        assert!(all.iter().all(|cell| (512..=4 << 20).contains(&cell.total())));
        let has = |bytes, depth| all.contains(&Cell { write: false, bytes, depth });
        assert!(has(512, 1) && has(512, 8192) && has(4 << 20, 1) && has(8192, 64));
        assert!(cells(4096, true, false).iter().all(|cell| cell.write && cell.bytes >= 4096));
        let short = cells(512, false, true);
        assert!((10..30).contains(&short.len()), "{}", short.len());
        assert!(short.iter().all(|cell| all.contains(cell)));
    }
}
