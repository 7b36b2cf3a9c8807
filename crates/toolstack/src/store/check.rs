//! Checks of batches, and the digest of rows.

use super::{
    BATCH_BYTES_MAX, Batch, Key, NAME_BYTES_MAX, StoreError, TABLE_BYTES_MAX, VALUE_BYTES_MAX,
};

/// Longest part of a key in an error, in characters.
const SHOWN_CHARS: usize = 80;

/// Checks that a store with these counters may accept the batch.
pub(super) fn batch(batch: &Batch, generation: u64, ceiling: u64) -> Result<(), StoreError> {
    let forward = batch.generation >= generation && batch.ceiling >= ceiling;
    if !forward || batch.generation > batch.ceiling {
        return Err(StoreError::Backwards {
            generation: batch.generation,
            ceiling: batch.ceiling,
            stored_generation: generation,
            stored_ceiling: ceiling,
        });
    }
    let mut bytes = 0usize;
    for (key, value) in &batch.changes {
        let value = value.as_deref().unwrap_or_default();
        row(key, value)?;
        bytes = bytes.saturating_add(row_bytes(key, value));
    }
    if bytes > BATCH_BYTES_MAX {
        return Err(StoreError::Batch { bytes, most: BATCH_BYTES_MAX });
    }
    Ok(())
}

/// Checks that key and value are within their limits.
pub(super) fn row(key: &Key, value: &[u8]) -> Result<(), StoreError> {
    let bad = |what, bytes, most| {
        let row = key.to_string().escape_debug().take(SHOWN_CHARS).collect();
        Err(StoreError::Row { what, row, bytes, most })
    };
    let fits =
        |text: &str, most| (1..=most).contains(&text.len()) && !text.chars().any(char::is_control);
    if !fits(&key.table, TABLE_BYTES_MAX) {
        return bad("the table", key.table.len(), TABLE_BYTES_MAX);
    }
    if !fits(&key.name, NAME_BYTES_MAX) {
        return bad("the name", key.name.len(), NAME_BYTES_MAX);
    }
    if value.len() > VALUE_BYTES_MAX {
        return bad("the value", value.len(), VALUE_BYTES_MAX);
    }
    Ok(())
}

/// Returns the size of a row, in bytes.
pub(super) fn row_bytes(key: &Key, value: &[u8]) -> usize {
    key.table.len().saturating_add(key.name.len()).saturating_add(value.len())
}

/// Returns the FNV-1a hash of a row's stored key and value. The sum over all rows reveals a
/// missing, restored or changed row, but not a deliberate forgery.
pub(super) fn digest(key: &[u8], value: &[u8]) -> u64 {
    const BASIS: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0100_0000_01b3;
    // A key contains no byte 0xff, so no part of it can be mistaken for the value.
    let bytes = key.iter().chain(&[0xff]).chain(value);
    bytes.fold(BASIS, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(PRIME))
}
