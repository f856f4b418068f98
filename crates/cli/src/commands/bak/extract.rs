//! `pagehaul bak extract`.

use std::fs::OpenOptions;
use std::io::{BufWriter, Write};
use std::path::Path;

use pagehaul_engine::catalog::Repository;
use pagehaul_engine::error::{Error, ErrorKind, Result};
use pagehaul_engine::format::kept_file::KeptFile;
use pagehaul_engine::kept::{kept_file, kept_files, read_content};

use super::recompress::comes_back_as;
use super::step;
use crate::args::BakExtractArgs;
use crate::exit_code::ExitCode;
use crate::output;
use crate::output::figures::bytes;
use crate::output::table::{Align, table};
use crate::progress::{ByteBar, Console};

const ACTION: &str = "extract a backup file";

/// Gives a file back, or lists what there is.
pub(super) fn run(args: &BakExtractArgs, console: &Console) -> Result<ExitCode> {
    let repository = Repository::open(&args.place.repo)?;
    let source = args.place.source()?;
    let Some(name) = &args.name else {
        let kept = kept_files(&repository, &source)?;
        if args.json {
            output::json(&kept)?;
        } else {
            output::data(&list(&kept))?;
        }
        return Ok(ExitCode::Done);
    };
    let Some(path) = &args.to else {
        let error = Error::new(ErrorKind::Usage, ACTION, "it is not said where to");
        return Err(error.hint("name the new file with --to"));
    };
    let kept = kept_file(&repository, &source, name)?;
    extract(&repository, &kept, path, args, console)?;
    if args.json {
        output::json(&kept)?;
    }
    let what = comes_back_as(&kept.content_kind);
    console.tell(&format!("{}, {}: {what}; its digest is right", path.display(), bytes(kept.content_bytes)));
    Ok(ExitCode::Done)
}

fn extract(
    repository: &Repository,
    kept: &KeptFile,
    path: &Path,
    args: &BakExtractArgs,
    console: &Console,
) -> Result<()> {
    let failed = |cause: std::io::Error| Error::new(ErrorKind::Target, format!("write {}", path.display()), cause);
    let created = OpenOptions::new().write(true).create_new(true).open(path).map_err(failed)?;
    let mut to = BufWriter::with_capacity(1 << 20, &created);
    let bar = ByteBar::new(console, kept.content_bytes);
    let written = read_content(repository, kept, args.threads.count(), &mut |content| {
        step(&bar, console, ACTION, content.len() as u64)?;
        to.write_all(content).map_err(failed)
    });
    let written = written.and_then(|()| to.flush().and_then(|()| created.sync_all()).map_err(failed));
    bar.finish();
    written.inspect_err(|_| drop(std::fs::remove_file(path)))
}

fn list(kept: &[KeptFile]) -> String {
    let header = [
        ("name", Align::Left),
        ("file", Align::Right),
        ("stored", Align::Right),
        ("kept", Align::Left),
        ("comes back as", Align::Left),
        ("from", Align::Left),
    ];
    let rows: Vec<Vec<String>> = kept
        .iter()
        .map(|kept| {
            vec![
                kept.name.clone(),
                bytes(kept.original_bytes),
                bytes(kept.stored_bytes),
                kept.kept_at.clone(),
                comes_back_as(&kept.content_kind).to_owned(),
                kept.original_path.clone(),
            ]
        })
        .collect();
    table(&header, &rows)
}
