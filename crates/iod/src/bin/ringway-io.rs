//! Many disks over vhost-user, under a control socket; see `iod`.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    iod::programs::io::main()
}
