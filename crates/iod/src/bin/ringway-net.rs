//! One switch over vhost-user; see `iod`.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    iod::programs::net::main()
}
