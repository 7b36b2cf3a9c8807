//! `ringway top`: shows the activity of every disk and NIC, live.

mod order;
mod ports;
mod render;
mod rows;
mod screen;
mod source;

use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use tokio::time::{MissedTickBehavior, interval};

use super::sockets::SocketOptions;
use super::why::seconds;
use crate::terminal::{Keyboard, interrupts};
use order::{Column, Order};
use screen::Screen;
use source::Source;

/// Options of `ringway top`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  ringway top                                    (every ringway-io of this host)
  ringway top --control /run/ringway/a.sock --control /run/ringway/b.sock --sort latency
  ringway top --once --sort mb/s | head

Without --control, the control sockets are /run/ringway/io.sock, and those of ringwayd: one for each
storage repository and one for all networks. Processes that start later appear by themselves.

Rates and latencies are those of the time between two samples; p99 is since attach. `where` is the
stage in which requests spent most of that time: ring, cap, device or back. `cpu` is the part of a
reactor's thread that the disk took; `oldest` is the age of the oldest request under way.
`polled` says what its queues do when they have nothing to do: they look for requests (pays,
probing, always), or sleep, for the reason that is shown; `-` of a disk that waits for nothing.
The head says what reactors spent on looking.

`ring broken` in the state: the guest's driver broke a virtqueue, which waits until the guest resets
the device. `ringway why ID` has the cause.

NICs have a table of their own: `ring to ring` is the mean time of frames from their sender's ring
to the NIC's, and its p99 that of its slowest queue since it was plugged in.

Keys: the letter in brackets in the head of a column sorts by it, again turns the order round;
q or Ctrl-C ends.")]
pub(crate) struct Top {
    #[command(flatten)]
    sockets: SocketOptions,
    /// Seconds between two samples
    #[arg(long, value_name = "N", default_value_t = 1.0, value_parser = seconds)]
    seconds: f64,
    /// Column to sort by
    #[arg(long, value_enum, default_value_t = Column::Iops)]
    sort: Column,
    /// Print one table and exit
    #[arg(long)]
    once: bool,
}

impl Top {
    pub(super) async fn execute(self) -> anyhow::Result<ExitCode> {
        let interrupt = interrupts()?.first();
        let mut interrupt = std::pin::pin!(interrupt);
        let mut sources = Vec::new();
        let mut order = Order::new(self.sort);
        source::sample(&mut sources, &self.sockets).await;
        let every = Duration::from_secs_f64(self.seconds);
        if self.once {
            tokio::time::sleep(every).await;
            source::sample(&mut sources, &self.sockets).await;
            anyhow::ensure!(!sources.is_empty(), self.sockets.none_found());
            write!(std::io::stdout().lock(), "{}", self.page(&sources, order))?;
            let failed = sources.iter().all(|source| source.error().is_some());
            return Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS });
        }
        let screen = Screen::open()?;
        let keyboard = Keyboard::open();
        let mut keys = keyboard.read().context("cannot start a thread")?;
        let mut typed = true;
        let mut ticks = interval(every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ticks.tick().await;
        loop {
            tokio::select! {
                end = &mut interrupt => return Ok(ExitCode::from(end.exit_code())),
                _ = ticks.tick() => source::sample(&mut sources, &self.sockets).await,
                key = keys.recv(), if typed && keyboard.is_taken() => match key {
                    None => typed = false,
                    Some(bytes) if bytes.contains(&b'q') => return Ok(ExitCode::SUCCESS),
                    Some(bytes) => bytes.iter().for_each(|key| order.press(*key)),
                },
            }
            screen.show(&self.page(&sources, order))?;
        }
    }

    /// Returns everything to show.
    fn page(&self, sources: &[Source], order: Order) -> String {
        if sources.is_empty() {
            return self.sockets.none_found() + "\n";
        }
        // A socket that was found may be that of a killed process.
        let answers = |source: &&Source| source.has_answered();
        let any = sources.iter().any(|source| answers(&source));
        let shown =
            sources.iter().filter(|source| self.sockets.are_given() || !any || answers(source));
        page(&shown.collect::<Vec<_>>(), order)
    }
}

/// Returns what these sources show.
fn page(sources: &[&Source], order: Order) -> String {
    let several = sources.len() > 1;
    let mut rows: Vec<_> = sources.iter().flat_map(|source| source.rows(several)).collect();
    order.sort(&mut rows);
    let mut text = String::new();
    for source in sources {
        text += &source.headline();
        text.push('\n');
    }
    let ports: Vec<_> = sources.iter().flat_map(|source| source.ports(several)).collect();
    // Hide the empty table of disks if only a switch is watched.
    if !rows.is_empty() || ports.is_empty() {
        text += &render::table(&rows, order, several).to_string();
        text.push('\n');
    }
    if !ports.is_empty() {
        text += &ports::table(&ports, several).to_string();
        text.push('\n');
    }
    text
}
