//! Worker side: one thread for each call, so that a hung call blocks no other.

use std::io::{self, BufRead, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};

use model::id::VdiId;
use nix::sys::signal::{SigSet, Signal};

use super::proto::{Answer, Call, MAX_LINE_BYTES, SrRequest, SrResponse};
use crate::sr::dir::SrDirectory;
use crate::sr::{SrError, Volume, golden, iso};

/// Process name.
const PROGRAM: &std::ffi::CStr = c"ringway-storage";

/// Serves the daemon at the other end of standard input until that closes. Hung calls end with this
/// process.
pub fn serve() -> ExitCode {
    // The default name would be `exe`. Nothing depends on it.
    let _unnamed = rustix::thread::set_name(PROGRAM);
    // A write beyond the limit of a file's size fails then, and ends no other call. Threads inherit this.
    let _without_effect = SigSet::from(Signal::SIGXFSZ).thread_block();
    let stream = rustix::stdio::stdin().try_clone_to_owned().map(UnixStream::from);
    match stream.and_then(serve_on) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            logging::write_last_line(&format!("cannot read calls from the daemon: {error}"));
            ExitCode::FAILURE
        }
    }
}

fn serve_on(stream: UnixStream) -> io::Result<()> {
    let answers = Arc::new(Mutex::new(stream.try_clone()?));
    let mut reader = BufReader::new(stream);
    loop {
        let mut line = Vec::new();
        let limit = u64::try_from(MAX_LINE_BYTES).unwrap_or(u64::MAX);
        if (&mut reader).take(limit).read_until(b'\n', &mut line)? == 0 {
            return Ok(());
        }
        let call: Call = serde_json::from_slice(&line)?;
        let (id, answers) = (call.id, Arc::clone(&answers));
        let twin = Arc::clone(&answers);
        let work = move || answer(&twin, id, carry_out(&call));
        if let Err(error) = std::thread::Builder::new().spawn(work) {
            let why = format!("it cannot start a thread: {error}");
            answer(&answers, id, Err(SrError::Worker(why)));
        }
    }
}

fn answer(stream: &Mutex<UnixStream>, id: u64, outcome: Result<SrResponse, SrError>) {
    let answer = Answer { id, outcome: outcome.map_err(Into::into) };
    let Ok(mut line) = serde_json::to_vec(&answer) else { return };
    line.push(b'\n');
    let mut stream = stream.lock().unwrap_or_else(PoisonError::into_inner);
    // The reader notices a daemon that has gone.
    let _gone = stream.write_all(&line);
}

fn carry_out(call: &Call) -> Result<SrResponse, SrError> {
    let open = || SrDirectory::open(&call.place, call.sr());
    match &call.work {
        SrRequest::Create => {
            SrDirectory::create(&call.place, call.sr()).map(|()| SrResponse::Nothing)
        }
        SrRequest::Destroy => open()?.destroy().map(|()| SrResponse::Nothing),
        SrRequest::Probe => SrDirectory::probe(&call.place)
            .map(|found| SrResponse::Srs(found.into_iter().collect())),
        SrRequest::Attach => {
            let sr_directory = open()?;
            sr_directory.clean()?;
            // Without the list, all volumes keep the block size of their storage. A full or read-only
            // SR can be attached nevertheless.
            let _unlisted = sr_directory.list_storage_blocks();
            // What is incomplete is no volume, and is removed at a later attach.
            let _left = sr_directory.remove_incomplete();
            Ok(SrResponse::Space(sr_directory.space()?))
        }
        SrRequest::Scan => {
            let scan = open()?.scan()?;
            Ok(SrResponse::scan(scan))
        }
        SrRequest::Space => Ok(SrResponse::Space(open()?.space()?)),
        SrRequest::ScanIsos => {
            let scan = iso::scan(&call.place, call.sr())?;
            Ok(SrResponse::scan(scan.into()))
        }
        SrRequest::FindIso { vdi } => iso::find(&call.place, call.sr(), VdiId(*vdi))
            .map(|volume| SrResponse::Volume(volume.into())),
        SrRequest::OpenLayers => Ok(SrResponse::Space(golden::open_layers(&call.place)?)),
        SrRequest::Layers => golden::layers(&call.place).map(SrResponse::Images),
        SrRequest::RemoveLayers { slot, volatile_only } => {
            golden::remove_layers(&call.place, *slot, *volatile_only).map(|()| SrResponse::Nothing)
        }
        other => on_volume(&open()?, other),
    }
}

fn on_volume(
    sr_directory: &SrDirectory<'_>,
    sr_request: &SrRequest,
) -> Result<SrResponse, SrError> {
    match sr_request {
        SrRequest::CreateVolume { vdi, bytes } => sr_directory
            .create_volume(VdiId(*vdi), *bytes)
            .map(|volume| SrResponse::Volume(volume.into())),
        SrRequest::PrepareImage { vdi, bytes, format } => {
            sr_directory.prepare_image(VdiId(*vdi), *bytes, *format).map(|()| SrResponse::Nothing)
        }
        SrRequest::SettleImage { vdi } => {
            sr_directory.settle_image(VdiId(*vdi)).map(|volume| SrResponse::Volume(volume.into()))
        }
        SrRequest::DestroyVolume { vdi } => {
            sr_directory.destroy_volume(VdiId(*vdi)).map(|()| SrResponse::Nothing)
        }
        SrRequest::PrepareResize { vdi, bytes } => {
            sr_directory.prepare_resize(VdiId(*vdi), *bytes).map(SrResponse::Images)
        }
        SrRequest::ResizeVolume { vdi, bytes } => sr_directory
            .resize_volume(VdiId(*vdi), *bytes)
            .map(|volume| SrResponse::Volume(volume.into())),
        SrRequest::FindVolume { vdi } => {
            let vdi = VdiId(*vdi);
            let volume = sr_directory.volume(vdi)?.into();
            let images = sr_directory.images(vdi)?;
            let storage_blocks = sr_directory.has_storage_blocks(vdi)?;
            Ok(SrResponse::Found { volume, images, storage_blocks })
        }
        SrRequest::PrepareCopy { vdi, bytes, storage_blocks } => sr_directory
            .prepare_copy(VdiId(*vdi), *bytes, *storage_blocks)
            .map(|()| SrResponse::Nothing),
        other => on_images(sr_directory, other),
    }
}

fn on_images(
    sr_directory: &SrDirectory<'_>,
    sr_request: &SrRequest,
) -> Result<SrResponse, SrError> {
    match sr_request {
        SrRequest::PrepareLayer { vdi, layer, served } => {
            let images = sr_directory.prepare_layer(VdiId(*vdi), *layer, served.as_deref());
            images.map(SrResponse::Images)
        }
        SrRequest::SettleLayer { vdi, served } => {
            let volume = sr_directory.settle_layer(VdiId(*vdi), served.as_deref());
            volume.map(|volume| SrResponse::Volume(volume.into()))
        }
        SrRequest::SetResetPoint { vdi, point } => {
            sr_directory.set_reset_point(VdiId(*vdi), *point).map(|()| SrResponse::Nothing)
        }
        SrRequest::PrepareReset { vdi } => {
            sr_directory.prepare_reset(VdiId(*vdi)).map(SrResponse::Images)
        }
        SrRequest::SetNames { vdi, names } => {
            sr_directory.set_names(VdiId(*vdi), names.clone()).map(|()| SrResponse::Nothing)
        }
        SrRequest::CanShare { vdi } => sr_directory.can_share(VdiId(*vdi)).map(SrResponse::Is),
        SrRequest::ShareImages { vdi, of, snapshot } => {
            let added = sr_directory.share_images(VdiId(*vdi), VdiId(*of), *snapshot)?;
            let volume = |volume: Volume| SrResponse::Volume(volume.into());
            Ok(added.map_or(SrResponse::Nothing, volume))
        }
        SrRequest::CloneFile { vdi, of } => {
            let made = sr_directory.clone_file(VdiId(*vdi), VdiId(*of))?;
            Ok(made.map_or(SrResponse::Nothing, |volume| SrResponse::Volume(volume.into())))
        }
        SrRequest::PrepareImport { vdi } => {
            sr_directory.prepare_import(VdiId(*vdi)).map(SrResponse::Images)
        }
        SrRequest::SettleImport { vdi, layer } => {
            let volume = sr_directory.settle_import(VdiId(*vdi), *layer)?;
            Ok(SrResponse::Volume(volume.into()))
        }
        SrRequest::AbandonImport { vdi } => {
            sr_directory.abandon_import(VdiId(*vdi)).map(|()| SrResponse::Nothing)
        }
        SrRequest::BeginMerge { into, kept } => {
            let kept = kept.iter().filter_map(|vdi| vdi.parse().ok().map(VdiId)).collect();
            let merge = sr_directory.begin_merge(*into, &kept)?;
            Ok(merge.map_or(SrResponse::Nothing, SrResponse::Merge))
        }
        SrRequest::MergeUsers => {
            let users = sr_directory.merge_users()?;
            Ok(SrResponse::Vdis(users.iter().map(ToString::to_string).collect()))
        }
        SrRequest::SwitchMerge { vdi } => {
            sr_directory.switch_merge(VdiId(*vdi)).map(|()| SrResponse::Nothing)
        }
        SrRequest::EndMerge => sr_directory.end_merge().map(SrResponse::Is),
        SrRequest::ForeignFiles => sr_directory.foreign_files().map(SrResponse::Foreign),
        SrRequest::Adopt { volumes } => {
            sr_directory.adopt(volumes.clone()).map(|()| SrResponse::Nothing)
        }
        other => Err(SrError::Worker(format!("it does not know the call {other:?}"))),
    }
}
