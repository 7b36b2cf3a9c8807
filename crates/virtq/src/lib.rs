//! Device side of the split virtqueue over guest memory
