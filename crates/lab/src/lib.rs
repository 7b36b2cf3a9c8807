//! Experiments: each claim measured against peers in one run
