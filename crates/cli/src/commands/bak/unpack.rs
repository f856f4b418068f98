//! `pagehaul bak unpack`.

use std::fs::OpenOptions;
use std::io::{BufWriter, Write};
use std::path::Path;

use pagehaul_bak::bytes::BakFile;
use pagehaul_bak::unpack::{ImageReport, ImageRequest, unpack_images, unpack_stream};
use pagehaul_engine::error::{Error, ErrorKind, Result};

use super::{step, total_bytes, verdict};
use crate::args::BakUnpackArgs;
use crate::exit_code::ExitCode;
use crate::output;
use crate::output::figures::bytes;
use crate::progress::{ByteBar, Console};

const ACTION: &str = "unpack backup files";

/// Writes a stream or images.
pub(super) fn run(args: &BakUnpackArgs, console: &Console) -> Result<ExitCode> {
    let files = args.files.open()?;
    let bar = ByteBar::new(console, total_bytes(&files)?);
    match (&args.stream_to, &args.to_dir) {
        (Some(path), _) => stream(&files, path, args, &bar, console),
        (None, Some(directory)) => {
            let request = ImageRequest {
                directory: directory.clone(),
                full: args.set,
                with_differential: !args.no_differential,
                keep_damaged: args.keep_damaged,
                threads: args.threads.count(),
            };
            let report = unpack_images(&files, &request, &mut |bytes| step(&bar, console, ACTION, bytes))?;
            bar.finish();
            if args.json {
                output::json(&report)?;
            } else {
                output::data(&text(&report))?;
            }
            console.warn(&format!("note: {}", report.warning));
            Ok(verdict(&report.damage, report.damage.len() as u64, console))
        }
        (None, None) => Err(Error::new(ErrorKind::Usage, ACTION, "neither --to-dir nor --stream-to is given")),
    }
}

fn stream(
    files: &[BakFile],
    path: &Path,
    args: &BakUnpackArgs,
    bar: &ByteBar<'_>,
    console: &Console,
) -> Result<ExitCode> {
    let [file] = files else {
        let cause = format!("{} files are given, and each has a stream of its own", files.len());
        return Err(Error::new(ErrorKind::Usage, ACTION, cause).hint("unpack the files one after the other"));
    };
    let failed = |cause: std::io::Error| Error::new(ErrorKind::Target, format!("write {}", path.display()), cause);
    let created = OpenOptions::new().write(true).create_new(true).open(path).map_err(failed)?;
    let mut to = BufWriter::with_capacity(1 << 20, &created);
    let mut progress = |bytes| step(bar, console, ACTION, bytes);
    let written = unpack_stream(file, args.threads.count(), &mut progress, &mut to).and_then(|length| {
        to.flush().and_then(|()| created.sync_all()).map_err(failed)?;
        Ok(length)
    });
    bar.finish();
    let length = written.inspect_err(|_| drop(std::fs::remove_file(path)))?;
    if args.json {
        output::json(&serde_json::json!({"path": path.display().to_string(), "stream_bytes": length}))?;
    } else {
        console.tell(&format!("{} of MTF stream in {}", bytes(length), path.display()));
    }
    Ok(ExitCode::Done)
}

fn text(report: &ImageReport) -> String {
    let on_top = report.differential_set_guid.map_or_else(String::new, |guid| format!(" and differential {guid}"));
    let mut text = format!("database {}, full backup {}{on_top}\n", report.database, report.full_set_guid);
    for image in &report.images {
        let (size, written) = (bytes(image.size_bytes), bytes(image.written_bytes));
        text.push_str(&format!(
            "  {} -> {}, {size}, {written} of it from the backup\n",
            image.logical_name, image.path
        ));
    }
    text
}
