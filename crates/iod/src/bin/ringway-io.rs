//! Many disks over vhost-user, under a control socket; see `iod`.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    iod::io_main::main()
}
