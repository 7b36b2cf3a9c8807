//! One disk over vhost-user; see `iod`.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    iod::programs::blk::main()
}
