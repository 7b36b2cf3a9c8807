//! One thread: io_uring, eventfds, timers, clock
