//! Executes plans: the QEMU driver and the client of ringway-io
