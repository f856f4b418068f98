//! `pagehaul bak recompress`.

use std::path::Path;

use pagehaul_bak::bytes::BakFile;
use pagehaul_bak::source::{Layout, PieceReader, layout};
use pagehaul_engine::catalog::Repository;
use pagehaul_engine::error::{Error, ErrorKind, Result};
use pagehaul_engine::kept::{KeepReport, KeepRequest, keep};

use super::{step, total_bytes};
use crate::args::BakRecompressArgs;
use crate::exit_code::ExitCode;
use crate::output;
use crate::output::figures::{bytes, ratio};
use crate::output::table::{Align, table};
use crate::progress::{ByteBar, Console};

const ACTION: &str = "store backup files";

/// The file as it is.
pub(super) const AS_IS: &str = "mssql-bak/as-is";
/// What the compressed file held, as a plain one.
pub(super) const STREAM: &str = "mssql-bak/mtf-stream";

/// Stores files.
pub(super) fn run(args: &BakRecompressArgs, console: &Console) -> Result<ExitCode> {
    let files = args.files.open()?;
    if args.name.is_some() && files.len() > 1 {
        let cause = format!("--name is for one file, and {} are given", files.len());
        return Err(Error::new(ErrorKind::Usage, ACTION, cause));
    }
    let bar = ByteBar::new(console, total_bytes(&files)?);
    // Before the repository is made: what is no backup file is refused.
    let layouts = files.iter().map(layout).collect::<Result<Vec<_>>>()?;
    let repository = Repository::open_or_create(&args.place.repo)?;
    let mut reports = Vec::new();
    for ((file, layout), path) in files.iter().zip(layouts).zip(&args.files.files) {
        let as_stream = args.plain && layout == Layout::Compressed;
        let request = KeepRequest {
            source: args.place.source()?,
            name: args.name.clone().unwrap_or_else(|| kept_name(path)),
            original_path: file.name.clone(),
            content_kind: if as_stream { STREAM } else { AS_IS }.to_owned(),
            original_bytes: file.size_bytes()?,
            frames: args.frames()?,
        };
        let watch = |count| step(&bar, console, ACTION, count);
        let report = if as_stream {
            keep_stream(&repository, &request, file, &watch)?
        } else {
            keep_as_is(&repository, &request, file, &watch)?
        };
        reports.push(report);
    }
    bar.finish();
    if args.json {
        output::json(&reports)?;
    } else {
        output::data(&text(&reports))?;
    }
    Ok(ExitCode::Done)
}

/// The file's name with what a name cannot have replaced.
fn kept_name(path: &Path) -> String {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let can_be = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '.' | '_' | '-');
    name.trim_start_matches('.').chars().map(|letter| if can_be(letter) { letter } else { '_' }).collect()
}

fn keep_as_is(
    repository: &Repository,
    request: &KeepRequest,
    file: &BakFile,
    watch: &dyn Fn(u64) -> Result<()>,
) -> Result<KeepReport> {
    let mut offset = 0;
    keep(repository, request, &mut |buffer| {
        let count = file.read_full_at(buffer, offset)?;
        offset += count as u64;
        watch(count as u64)?;
        Ok(count)
    })
}

fn keep_stream(
    repository: &Repository,
    request: &KeepRequest,
    file: &BakFile,
    watch: &dyn Fn(u64) -> Result<()>,
) -> Result<KeepReport> {
    let mut reader = PieceReader::new(file)?;
    let (mut held, mut used, mut told) = (Vec::new(), 0, 0);
    keep(repository, request, &mut |buffer| {
        while used == held.len() {
            let Some(piece) = reader.next_piece()? else { return Ok(0) };
            if let Some(cause) = &piece.damage {
                let action = format!("unpack {} at byte {}", file.name, piece.file_offset);
                return Err(Error::new(ErrorKind::Damage, action, cause).hint("without --plain it is stored as it is"));
            }
            held.clear();
            held.extend_from_slice(&piece.bytes);
            used = 0;
        }
        watch(reader.file_offset() - told)?;
        told = reader.file_offset();
        let count = buffer.len().min(held.len() - used);
        buffer[..count].copy_from_slice(&held[used..used + count]);
        used += count;
        Ok(count)
    })
}

fn text(reports: &[KeepReport]) -> String {
    let header = [
        ("name", Align::Left),
        ("source", Align::Left),
        ("file", Align::Right),
        ("content", Align::Right),
        ("stored", Align::Right),
        ("ratio", Align::Right),
        ("comes back as", Align::Left),
    ];
    let rows: Vec<Vec<String>> = reports.iter().map(row).collect();
    table(&header, &rows)
}

fn row(report: &KeepReport) -> Vec<String> {
    let kept = &report.kept;
    vec![
        kept.name.clone(),
        kept.source.to_string(),
        bytes(kept.original_bytes),
        bytes(kept.content_bytes),
        bytes(kept.stored_bytes),
        ratio(report.ratio),
        comes_back_as(&kept.content_kind).to_owned(),
    ]
}

/// What `bak extract` gives, for people.
pub(super) fn comes_back_as(content_kind: &str) -> &'static str {
    match content_kind {
        AS_IS => "the same bytes",
        STREAM => "a plain backup that says the same, NOT the same bytes",
        _ => "what was stored",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_made_of_paths() {
        assert_eq!(kept_name(Path::new("/x/Sales 2024.bak")), "Sales_2024.bak");
        assert_eq!(kept_name(Path::new("/x/.hidden.bak")), "hidden.bak");
    }
}
