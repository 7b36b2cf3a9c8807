//! `ringway image convert`: copies a disk to a new image file, and shows how far it is.

use std::io::{IsTerminal as _, Write as _, stderr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use model::image::{ImageConvert, ImageFormat};
use serde_json::json;
use toolstack::ringway_io::RpcConnection;

use super::{Below, Target, absolute, deadline, print, text};

/// Interval between two reports of the progress.
const INTERVAL: Duration = Duration::from_secs(1);

/// Options of `ringway image convert`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  ringway image convert /img/a.raw /img/a.qcow2 --format raw --to qcow2
  ringway image convert /img/b.qcow2 /img/b.raw --format qcow2 --to raw \\
      --backing /img/base.raw --backing-format raw

The new image has the whole disk and no backing. Zeroes take no space in it. It appears when it is
complete: an error or Ctrl-C leaves nothing. No program may write the source meanwhile. For a
longer chain, repeat --backing and --backing-format from the top down. With --layers, the new
image takes the place of the first images of the chain; it is qcow2 if it lies over another one.")]
pub(super) struct Convert {
    #[command(flatten)]
    source: Target,
    /// New image file
    new: PathBuf,
    /// Format of the new image
    #[arg(long, value_name = "qcow2|vhd|raw")]
    to: ImageFormat,
    #[command(flatten)]
    below: Below,
    /// Copy only this many images from the top down; the new image lies over the next one, if there is
    /// one
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    layers: Option<u32>,
    /// Longest time, for example 90s or 1h
    #[arg(long, value_name = "DURATION", default_value = "24h", value_parser = deadline)]
    timeout: u32,
}

impl Convert {
    pub(super) async fn run(
        self,
        connection: &mut RpcConnection,
        control: &Path,
    ) -> anyhow::Result<ExitCode> {
        let Self { source, new, to, below, layers, timeout: deadline_s } = self;
        let (tree, path) = (below.tree(&source)?, absolute(&new)?);
        let whole = ImageConvert::whole(tree, path.clone(), to);
        let params = ImageConvert { layers, deadline_s, ..whole };
        let converted = if stderr().is_terminal() {
            let mut reports = RpcConnection::connect(control).await?;
            tokio::select! {
                converted = connection.image_convert(&params) => converted,
                never = report(&mut reports, &path) => match never {},
            }
        } else {
            connection.image_convert(&params).await
        };
        let info = converted?;
        print(source.json.then(|| json!(info)), || text::info(&info))?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Shows on the terminal how far the conversion is.
async fn report(connection: &mut RpcConnection, path: &Path) -> std::convert::Infallible {
    loop {
        tokio::time::sleep(INTERVAL).await;
        // The result of the conversion tells what is wrong, if anything is.
        let Ok(reply) = connection.image_progress().await else { continue };
        let Some(one) = reply.converting.iter().find(|one| one.path == path) else { continue };
        let percent = one.done_bytes as f64 / one.total_bytes.max(1) as f64 * 100.0;
        let _ = write!(stderr(), "\r{percent:.0}% of {} bytes ", one.total_bytes);
        let _ = stderr().flush();
    }
}
