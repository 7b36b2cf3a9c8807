//! The Disk contract and its backends: file, block device, memory, null
