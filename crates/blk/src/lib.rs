//! virtio-blk semantics: parse, submit, complete
