//! Entries that do not belong to disks.

use serde_json::Value;

use super::KeeperClient;

impl KeeperClient {
    /// Returns whether an entry of this key is preserved.
    pub(crate) fn holds(&self, key: &str) -> bool {
        self.state().holdings.contains_key(key)
    }

    /// Returns the data of all entries whose keys begin with `prefix`, by the rest of the key.
    pub(crate) fn preserved_under(&self, prefix: &str) -> Vec<(String, Value)> {
        let state = self.state();
        let rest = state.holdings.iter().filter_map(|(key, preserved_entry)| {
            let rest = key.strip_prefix(prefix)?;
            Some((rest.to_owned(), preserved_entry.data.clone()))
        });
        rest.collect()
    }
}
