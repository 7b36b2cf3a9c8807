//! ringway-io and ringway-blk: spec in, sockets out, live inspection
