//! The models, exactly.

use super::*;

const US: u64 = 1_000;
const MIB: u64 = 1 << 20;

fn read(id: u64, offset: u64, bytes: u64) -> Command {
    Command { id, kind: OpKind::Read, offset, bytes }
}

/// Returns the end of each command, all submitted at 0, in microseconds.
fn ends(config: impl Into<DeviceConfig>, commands: &[Command]) -> Vec<u64> {
    let mut device = Device::new(config.into());
    commands.iter().for_each(|command| device.submit(0, *command));
    let mut ends = vec![0; commands.len()];
    let mut done = Vec::new();
    while let Some(now) = device.next_event() {
        device.reap(now, &mut done);
        done.drain(..).for_each(|id| ends[id as usize] = now / US);
    }
    ends
}

#[test]
fn a_pipe_is_shared_and_a_connection_is_not() {
    let commands = [read(0, 0, 820_000), read(1, 0, 820_000)];
    let connection = |count| Connections { count, bytes_per_second: 410_000_000 };
    let pipe = |count| Model::Pipe(Pipe { connections: connection(count), ..Pipe::ARRAY });
    // 1 ms and 2 us in the pipe, 2 ms in the connection, 300 us of latency.
    assert_eq!(ends(pipe(2), &commands), [3_302, 4_304]);
    assert_eq!(ends(pipe(1), &commands), [3_302, 5_302]);
}

#[test]
fn a_full_queue_makes_commands_wait_for_the_latency() {
    let pipe = Model::Pipe(Pipe { queue: 1, ..Pipe::ARRAY });
    let commands = [read(0, 0, 0), read(1, 0, 0)];
    assert_eq!(ends(pipe, &commands), [302, 604]);
    assert_eq!(ends(Model::Pipe(Pipe::ARRAY), &commands), [302, 304]);
}

#[test]
fn flash_serves_pieces_side_by_side() {
    let flash = Model::Flash(Flash::STRIPED);
    assert_eq!(ends(flash, &[read(0, 0, 512 << 10)]), [604]);
    let pieces: Vec<_> = (0..32).map(|at| read(at, at * 16_384, 16_384)).collect();
    assert_eq!(ends(flash, &pieces), vec![342; 32]);
    // The same channel: one after the other.
    assert_eq!(ends(flash, &[read(0, 0, 4096), read(1, 4096, 4096)]), [145, 211]);
    let write = Command { kind: OpKind::Write, ..read(0, 0, 4096) };
    assert_eq!(ends(flash, &[write]), [243]);
    let unstriped = Model::Flash(Flash::UNSTRIPED);
    assert_eq!(ends(unstriped, &[read(0, 0, 4096), read(1, MIB, 4096)]), [88, 96]);
}

#[test]
fn flash_stalls_for_its_own_work() {
    let stall = (1_000 * US, 100 * US);
    let flash = Model::Flash(Flash { stall, channels: 2, ..Flash::STRIPED });
    // The first channel stalls from the start, the second one half a period later.
    assert_eq!(ends(flash, &[read(0, 0, 0), read(1, 16_384, 0)]), [180, 80]);
}

#[test]
fn a_spindle_seeks_unless_the_next_byte_is_at_its_head() {
    let spindle = Model::Spindle(Spindle::DISK);
    let sequential = [read(0, 0, 150_000), read(1, 150_000, 150_000)];
    assert_eq!(ends(spindle, &sequential), [1_000, 2_000]);
    let far = [read(0, 1_000_000_000_000, 150_000)];
    assert_eq!(ends(spindle, &far), [14_000]);
    // The head takes the nearest command first.
    let both = [read(0, 0, 150_000), read(1, 500_000_000_000, 150_000), read(2, 150_000, 0)];
    let ends = ends(spindle, &both);
    assert!(ends[2] < ends[1], "{ends:?}");
}

#[test]
fn a_slower_device_takes_longer() {
    let half = DeviceConfig { model: Model::Spindle(Spindle::DISK), speeds: vec![(0, 50)] };
    assert_eq!(ends(half, &[read(0, 0, 150_000)]), [2_000]);
    let model = Model::Flash(Flash::STRIPED);
    let later = DeviceConfig { model, speeds: vec![(1, 50)] };
    assert_eq!(ends(later, &[read(0, 0, 512 << 10)]), [604]);
}
