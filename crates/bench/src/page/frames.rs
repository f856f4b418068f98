//! The files of a database cut into frames, as a backup cuts them: a frame is of one file, and files up to half a frame
//! share one with their neighbours.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;

use pagehaul_engine::error::{Error, ErrorKind, Result};
use pagehaul_page::Part;

use super::list::FilesOfDatabase;

/// A sample takes or leaves pieces of this size, so that even large frames are whole.
const REGION_BYTES: u64 = 8 << 20;
/// The kind of frames that hold files of several kinds, and the relation of those that hold several.
const SHARED: &str = "small files";

/// A run of one file within a frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    /// In the list.
    pub(crate) file: usize,
    pub(crate) start: usize,
    pub(crate) length: usize,
    pub(crate) first_page: u32,
}

/// What is encoded at once.
#[derive(Clone, Debug, Default)]
pub(crate) struct Frame {
    pub(crate) bytes: Vec<u8>,
    pub(crate) runs: Vec<Run>,
}

impl Frame {
    /// What the page codec is told of it.
    pub(crate) fn parts<'a>(&self, list: &'a FilesOfDatabase) -> Vec<Part<'a>> {
        let part = |run: &Run| Part {
            start: run.start,
            length: run.length,
            first_page: run.first_page,
            layout: &list.files[run.file].layout,
        };
        self.runs.iter().map(part).collect()
    }

    fn add(&mut self, list: &FilesOfDatabase, file: usize, offset: u64, content: &[u8]) {
        let page = offset / u64::from(list.page_size_bytes.max(1));
        let first_page = list.files[file].first_page + page as u32;
        self.runs.push(Run { file, start: self.bytes.len(), length: content.len(), first_page });
        self.bytes.extend_from_slice(content);
    }

    /// What all its files have in common, or that it is shared.
    fn common<'a>(&self, of_file: impl Fn(usize) -> &'a str) -> &'a str {
        let first = self.runs.first().map_or(SHARED, |run| of_file(run.file));
        if self.runs.iter().all(|run| of_file(run.file) == first) { first } else { SHARED }
    }
}

/// The frames of all files or, with `sample_mib`, of about so many MiB spread evenly over them. They are in memory then.
///
/// # Errors
/// `Source` if a file cannot be read.
pub(crate) fn load(list: &FilesOfDatabase, frame_size: usize, sample_mib: Option<u64>) -> Result<Vec<Frame>> {
    let mut regions = Vec::new();
    for (index, file) in list.files.iter().enumerate() {
        let failed = |cause| Error::new(ErrorKind::Source, format!("read {}", file.path.display()), cause);
        let size_bytes = std::fs::metadata(&file.path).map_err(failed)?.len();
        for offset in (0..size_bytes).step_by(REGION_BYTES as usize) {
            regions.push((index, offset, (size_bytes - offset).min(REGION_BYTES), size_bytes));
        }
    }
    let all_bytes: u64 = regions.iter().map(|region| region.2).sum();
    let wanted_bytes = sample_mib.map_or(all_bytes, |mib| (mib << 20).min(all_bytes));
    let (mut frames, mut shared) = (Vec::new(), Frame::default());
    let (mut seen, mut taken) = (0u64, 0u64);
    for (index, offset, length, size_bytes) in regions {
        let is_behind = u128::from(taken) * u128::from(all_bytes) <= u128::from(seen) * u128::from(wanted_bytes);
        seen += length;
        if !is_behind {
            continue;
        }
        taken += length;
        let content = read(list, index, offset, length as usize)?;
        if size_bytes as usize > frame_size / 2 {
            for (number, piece) in content.chunks(frame_size).enumerate() {
                let mut frame = Frame::default();
                frame.add(list, index, offset + (number * frame_size) as u64, piece);
                frames.push(frame);
            }
        } else {
            if shared.bytes.len() + content.len() > frame_size {
                frames.push(std::mem::take(&mut shared));
            }
            shared.add(list, index, offset, &content);
        }
    }
    frames.push(shared);
    frames.retain(|frame| !frame.bytes.is_empty());
    Ok(frames)
}

fn read(list: &FilesOfDatabase, file: usize, offset: u64, length: usize) -> Result<Vec<u8>> {
    let path = &list.files[file].path;
    let mut content = vec![0; length];
    File::open(path)
        .and_then(|file| file.read_exact_at(&mut content, offset))
        .map_err(|cause| Error::new(ErrorKind::Source, format!("read {}", path.display()), cause))?;
    Ok(content)
}

/// Groups of frames, by number.
pub(crate) type Groups = BTreeMap<String, Vec<usize>>;

/// By what the pages hold.
pub(crate) fn by_kind(list: &FilesOfDatabase, frames: &[Frame]) -> Groups {
    groups(frames, |frame| frame.common(|file| &list.files[file].kind))
}

/// By relation.
pub(crate) fn by_relation(list: &FilesOfDatabase, frames: &[Frame]) -> Groups {
    groups(frames, |frame| frame.common(|file| &list.files[file].relation))
}

fn groups<'a>(frames: &'a [Frame], name: impl Fn(&'a Frame) -> &'a str) -> Groups {
    let mut groups = Groups::new();
    for (number, frame) in frames.iter().enumerate() {
        groups.entry(name(frame).to_owned()).or_default().push(number);
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::list::FileOfDatabase;

    fn list(sizes: &[(&str, usize)], directory: &std::path::Path) -> FilesOfDatabase {
        let file = |(number, (kind, size)): (usize, &(&str, usize))| {
            let path = directory.join(number.to_string());
            std::fs::write(&path, vec![number as u8 + 1; *size]).unwrap();
            FileOfDatabase {
                path,
                kind: (*kind).to_owned(),
                first_page: 100,
                relation: number.to_string(),
                layout: pagehaul_page::RelationLayout::other(8192),
            }
        };
        let files = sizes.iter().enumerate().map(file).collect();
        FilesOfDatabase { database: "d".to_owned(), page_size_bytes: 8192, files }
    }

    #[test]
    fn small_files_share_and_large_ones_do_not() {
        let directory = tempfile::tempdir().unwrap();
        let list =
            list(&[("heap", 8192), ("heap", 40960), ("btree", 16384), ("fsm", 24576), ("vm", 0)], directory.path());
        let frames = load(&list, 32768, None).unwrap();
        let shape: Vec<Vec<(usize, usize, u32)>> = frames
            .iter()
            .map(|frame| frame.runs.iter().map(|run| (run.file, run.length, run.first_page)).collect())
            .collect();
        let large = [vec![(1, 32768, 100)], vec![(1, 8192, 104)], vec![(3, 24576, 100)]];
        assert_eq!(shape[..3], large);
        assert_eq!(shape[3], [(0, 8192, 100), (2, 16384, 100)]);
        let kinds = by_kind(&list, &frames);
        assert_eq!(kinds["heap"], [0, 1]);
        assert_eq!(kinds[SHARED], [3]);
        assert_eq!(frames[3].parts(&list)[1].start, 8192);
    }

    #[test]
    fn a_sample_is_spread_over_everything() {
        let directory = tempfile::tempdir().unwrap();
        let list = list(&[("heap", 40 << 20), ("btree", 40 << 20)], directory.path());
        let frames = load(&list, 1 << 20, Some(32)).unwrap();
        let of = |file| frames.iter().filter(|frame| frame.runs[0].file == file).count();
        assert_eq!((of(0), of(1)), (16, 16));
    }
}
