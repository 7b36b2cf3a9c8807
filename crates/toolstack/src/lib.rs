//! Executes plans: the QEMU driver, the client of `ringway-io`, storage, networks, control groups.
//!
//! # Words
//! - **Machine**: one VM of `ringwayd` ([`machines`]), or one guest of `ringway run` in one QEMU
//!   process ([`qemu::Machine`]).
//! - **Datapath**: a `ringway-io` process that serves disks or NICs, driven by calls over its
//!   control socket ([`ringway_io::RpcConnection`]).
//! - **Console**: the guest's serial line, a byte stream in both directions.
//! - **Store**: what outlives the daemon ([`store`]).
//! - **Slice**: a share of the CPUs for the control path, the datapath or guests ([`cgroup`]).
//! - **Domain**: one running incarnation of a machine that outlives the daemon ([`hv`]).
//! - **Driver**: carries out a step on a hypervisor, storage, datapath or network ([`hv`], [`sr`],
//!   [`ringway_io`], [`net`]); [`sim`] has one of each in memory.
//! - **Trial boot**: a short start under KVM that shows whether KVM works ([`accel`]).
//!
//! # Model
//! [`machines`] runs the VMs of the daemon: one operation loop each, whose plans [`exec`] carries
//! out with the drivers.
//!
//! [`run::run`] is `ringway run`. It makes a directory for the sockets, chooses the accelerator,
//! starts the datapath, attaches every disk, and starts QEMU. Then it waits for the first of: the
//! guest's end, the death of either process, the time limit, a request to stop. It takes everything
//! down, however far the start had come. [`doctor`] uses its parts. QEMU and datapath have a
//! process group each, so that Ctrl-C at the terminal reaches only this process. QEMU inherits its
//! control connection and the console as descriptors 0 and 1, so no socket file is waited for or
//! left behind.
//!
//! # Design: operations
//! **One operation at a time per machine** ([`machines`]). A shutdown by force goes first and ends
//! what runs. The loop keeps what was observed, learned from the drivers at start. A volume counts
//! as attached from the begin of the call: a call that failed or was cut off may have done its
//! work. Calls for one volume come one after the other, also those that remove or change it.
//!
//! **Steps run with real deadlines** ([`exec`]). A call to storage that passes its deadline is
//! abandoned: its operation has failed, and its slot of its SR stays taken. So a hung SR never has
//! more calls under way than slots, however often it is asked. Waits for a slot count against a
//! step only while its SR hangs; each step of a busy SR gets its turn, however many disks wait.
//!
//! **Leftovers are detached.** Volumes that a former daemon left attached, and no datapath serves,
//! are known to the SR only. It is asked when it is connected, and volumes that no machine uses are
//! detached.
//!
//! **Device settings change under a lock** ([`machines::Machines::lock_settings`]). The holder
//! reads the settings, then applies them. So of two changes the one recorded last is in force, no
//! change is lost in between. A call for a NIC is answered when its change is in force, a call for
//! a disk at once, because an SR may hang.
//!
//! # Design: QEMU
//! **QEMU starts beside the attaches** ([`hv::qemu`]): first, with its CPUs stopped and without
//! disks. Each disk is plugged as soon as it is attached.
//!
//! **A domain outlives the daemon.** Its process holds the lock of a file in the domain's directory
//! for as long as it lives. QEMU's state keeps how a guest ended. [`detached_process`] is what a
//! process does before it becomes QEMU.
//!
//! **One task owns the control connection.** QEMU serves one QMP client at a time. So a domain's
//! watcher makes the connection and repairs it, and calls wait for it. A silent QEMU is heard when
//! it answers again, whichever call asked. A domain that cannot be examined has no watcher, and no
//! event tells when it can. It is examined again, less and less often.
//!
//! **Hundreds of disks make a guest boot slowly:** minutes of CPU with 255 disks, without KVM. QEMU
//! lays out the guest's memory anew whenever a device's registers appear or disappear, and walks
//! all devices for it. Linux before 6.14 turns the registers of each disk off and on for each of
//! its seven possible windows (14 times in all; 26 with MSI-X), to find their size. Only the boot
//! is slow; disk I/O is not.
//!
//! **Without KVM the CPUs take turns,** unless QEMU is 8.1 or newer ([`qemu::Engine`]). Older ones,
//! with a thread for each CPU, may translate code that another CPU is changing, and keep the
//! result. A guest was seen in which both CPUs forever met a breakpoint that its memory no longer
//! held.
//!
//! **Without KVM a NIC has no message interrupts.** QEMU 7.2 exits when a guest masks one of a
//! vhost-user NIC.
//!
//! # Design: storage and datapath
//! **An SR worker, a process, touches the SR's paths** ([`sr`]). A thread that sleeps on a dead
//! network file system cannot be killed; in the daemon it would keep the daemon from ending. A
//! worker that does not answer in time is abandoned and replaced. Places that are not attached have
//! workers of their own, so attaching a dead one holds up no other.
//!
//! **A snapshot puts a new image over a volume's images** ([`sr::dir`], [`machines`]). The SR's record
//! names the image, the datapath that serves the volume creates it and goes on in it, and the record
//! says so. If no datapath serves the volume, its `ringway-io` creates the image only. After a crash
//! between two of these steps both states have the same content.
//!
//! **Each SR has a `ringway-io`** ([`ringway_io`]), so an SR is a fault domain of the datapath too.
//! It outlives the daemon, is found again by its control socket, and is replaced when it dies. A
//! file for each served device is beside its sockets. When keeper and worker have both died, a new
//! `ringway-io` gets those devices. What cannot be attached then is retried until it can.
//!
//! # Design: networks
//! **All NICs are in one `ringway-io`,** so that guests on one network share a switch, whichever
//! SRs their disks are on. It is started for the first VIF, and found again and replaced like that
//! of an SR. A VIF's plug has three steps, and each does nothing if it is already done. So a plan
//! continues after a crash:
//! 1. the bridge, and in it a multi-queue TAP device, the uplink, whose name follows from the
//!    bridge's;
//! 2. `nic.attach` (`id` is the VIF's UUID, `network` the bridge's name), and `network.uplink`,
//!    which every plug repeats, because a network loses its uplink with its last NIC;
//! 3. the guest's device, whose chardev reconnects.
//!
//! An unplug is the reverse, and the last one of a network removes the uplink. So VIFs of one
//! network come and go one after the other. At the daemon's start `stats` shows what exists; NICs
//! without a VIF and uplinks without a network are removed. A VIF has as many queue pairs as the
//! guest has CPUs, and no more than the host has, unless `other-config:queues` differs. The MTU is
//! the network's; while it has VIFs its first MTU stays.
//!
//! **A VIF's limits** go with `nic.attach`, and with `nic.limits` when they change. A network's
//! default locking mode changes only while no VIF is plugged into the network, as in XenServer.
//!
//! **Addresses are snooped at the bridge** ([`net`]). Three sockets per bridge get ARP, IPv6
//! neighbour discovery and DHCP client messages, by a filter in the kernel: what a guest says
//! before it uses an address. A socket at a TAP device would be asked for each frame of the guests.
//! A flood costs one look a second. A claim counts for the interface that has its sender's hardware
//! address. Addresses that an interface is locked to are its own: no claim of another interface is
//! believed for them, nor a claim of other addresses from a sender that pretends to be it.
//!
//! **Network cards** are in a bridge while their PIF is plugged, unless the host is reached by
//! their address.
//!
//! **Internal networks** ([`net::internal`]) have NAT, DHCP and DNS. The record comes before the
//! network, and each step makes what is missing. A call that failed undoes nothing; the same call
//! again continues. `nft` gets a table as a whole, so it is never there in part. dnsmasq outlives
//! the daemon, and the file that it was started with finds it again.
//!
//! # Design: control groups and store
//! **Three slices,** for control, datapath and guests, are siblings of the host's other groups
//! ([`cgroup`]). The daemon joins control before it reads its records. Processes that it starts
//! join by themselves before they become QEMU or `ringway-io`, and are checked then and after each
//! restart. A missing group never decides about a machine. `xe` joins by a link beside the socket.
//!
//! **The store writes batches,** whole or not at all, in one file ([`store`]). 1 MiB beside it is a
//! reserve for a full disk: for batches that free space or record what has already happened.
//!
//! **The simulator outlives the daemon too** ([`sim`]): `STATE/simulator` holds imagined guests and
//! disks, and `rules.toml` there says which calls are slow, fail or hang, also while it runs. It
//! records what a real host would have suffered from.
//!
//! # Errors
//! One enum per module, such as [`ringway_io::DatapathError`] and [`machines::OpError`]. The
//! message of an error does not repeat its source: print the chain. When a process died, its last
//! lines on standard error are part of the error.
//!
//! # Invariants
//! - Every wait for another process has a deadline, a constant with a name.
//! - Readiness, output and ends are events. Only what reports no event is tried again, after
//!   pauses: a QEMU that cannot be reached, a busy `ringway-io`, a failed attach.
//! - A future of this crate may be dropped at any await. Children are killed then, except those
//!   that outlive the daemon ([`detached_process`]).
//! - No guest memory is opened here, and images only in SR workers.
//!
//! # How to test
//! Command lines, outcomes and tables are pure functions with tests beside them. Protocols are
//! tested against a server in the test, over a socket pair. Tests that need real programs are in
//! `tests/`; they fail with the command that builds what is missing.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod accel;
pub mod binaries;
pub mod boxed_future;
pub mod cgroup;
pub mod detached_process;
pub mod doctor;
pub mod exec;
mod format;
pub mod hangup;
pub mod helper_command;
pub mod hv;
pub mod json_lines;
mod keyed_locks;
pub mod machines;
pub mod net;
pub mod open_files;
mod process_exit;
pub mod process_group;
pub mod qemu;
pub mod recipe_disks;
pub mod ringway_io;
pub mod run;
pub mod sim;
pub mod sr;
mod stderr_tail;
pub mod store;
