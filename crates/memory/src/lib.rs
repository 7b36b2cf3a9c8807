//! Guest memory: mapped regions, counted tables, buffers that pin what the kernel sees
