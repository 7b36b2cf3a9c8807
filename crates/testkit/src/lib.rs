//! Guest-side front-ends, faults and bootable guests for tests
