//! Images that are being written.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use pagehaul_engine::error::{Error, ErrorKind, Result};

use super::{ImageFile, image_path};
use crate::ledger::EXTENTS_PER_IMAGE_MAX;
use crate::page::{EXTENT_BYTES, PAGE_BYTES, PageId};
use crate::sql::Configuration;

struct Image {
    file: File,
    path: PathBuf,
    logical_name: String,
    size_bytes: u64,
    written_bytes: u64,
}

/// The images of one database; removed again unless they are finished.
pub(super) struct Images {
    directory: PathBuf,
    images: BTreeMap<u16, Image>,
    /// Extents of the set at hand that have newer copies than its first data block's.
    recopied: BTreeMap<PageId, u32>,
    is_finished: bool,
}

impl Images {
    pub(super) fn new(directory: &Path) -> Self {
        let (images, recopied) = (BTreeMap::new(), BTreeMap::new());
        Images { directory: directory.to_owned(), images, recopied, is_finished: false }
    }

    /// Makes files for the data files of `config` that have none yet, and gives all their sizes.
    pub(super) fn begin_set(&mut self, config: &Configuration) -> Result<()> {
        self.recopied.clear();
        for file in config.files.iter().filter(|file| !file.is_log()) {
            let Ok(file_id) = u16::try_from(file.file_id) else {
                let cause = format!("database file number {} cannot be", file.file_id);
                return Err(Error::new(ErrorKind::Damage, "make images of the database files", cause));
            };
            if !self.images.contains_key(&file_id) {
                let is_taken = |path: &Path| self.images.values().any(|image| image.path == path);
                let path = image_path(&self.directory, &file.physical_path, file_id, &is_taken);
                let created = OpenOptions::new().write(true).create_new(true).open(&path);
                let created = created.map_err(|cause| failed(&path, &cause))?;
                let logical_name = file.logical_name.clone();
                self.images
                    .insert(file_id, Image { file: created, path, logical_name, size_bytes: 0, written_bytes: 0 });
            }
            if let Some(image) = self.images.get_mut(&file_id).filter(|image| image.size_bytes < file.size_bytes) {
                image.file.set_len(file.size_bytes).map_err(|cause| failed(&image.path, &cause))?;
                image.size_bytes = file.size_bytes;
            }
        }
        Ok(())
    }

    /// Writes an extent, unless a newer copy is there already.
    pub(super) fn write(&mut self, base: PageId, ordinal: u32, content: &[u8]) -> Result<()> {
        let refused = |cause: String| Error::new(ErrorKind::Damage, format!("place page {base} in an image"), cause);
        if self.recopied.get(&base).is_some_and(|newer| *newer > ordinal) {
            return Ok(());
        }
        let Some(image) = self.images.get_mut(&base.file_id) else {
            return Err(refused("the set names no such file".to_owned()));
        };
        let offset = u64::from(base.page) * PAGE_BYTES as u64;
        let length = (content.len() as u64).min(image.size_bytes.saturating_sub(offset)) as usize;
        let (inside, beyond) = content.split_at(length);
        if beyond.iter().any(|byte| *byte != 0) {
            return Err(refused(format!("the file has only {} bytes", image.size_bytes)));
        }
        image.file.write_all_at(inside, offset).map_err(|cause| failed(&image.path, &cause))?;
        image.written_bytes += inside.len() as u64;
        if ordinal > 0 {
            if self.recopied.len() >= EXTENTS_PER_IMAGE_MAX {
                return Err(refused("more extents were copied again than can be kept in mind".to_owned()));
            }
            self.recopied.insert(base, ordinal);
        }
        debug_assert!(content.len() <= EXTENT_BYTES);
        Ok(())
    }

    /// Makes the images durable.
    pub(super) fn finish(mut self) -> Result<Vec<ImageFile>> {
        let mut made = Vec::new();
        for (file_id, image) in &self.images {
            image.file.sync_all().map_err(|cause| failed(&image.path, &cause))?;
            made.push(ImageFile {
                file_id: *file_id,
                logical_name: image.logical_name.clone(),
                path: image.path.display().to_string(),
                size_bytes: image.size_bytes,
                written_bytes: image.written_bytes,
            });
        }
        let directory = if self.directory.as_os_str().is_empty() { Path::new(".") } else { &self.directory };
        File::open(directory).and_then(|open| open.sync_all()).map_err(|cause| failed(directory, &cause))?;
        self.is_finished = true;
        Ok(made)
    }
}

impl Drop for Images {
    fn drop(&mut self) {
        if !self.is_finished {
            self.images.values().for_each(|image| drop(std::fs::remove_file(&image.path)));
        }
    }
}

fn failed(path: &Path, cause: &std::io::Error) -> Error {
    let error = Error::new(ErrorKind::Target, format!("write {}", path.display()), cause);
    if cause.kind() == std::io::ErrorKind::AlreadyExists {
        return error.hint("images never replace files: choose a directory without them");
    }
    error
}
