//! The file table: as found, and with the input as the content of blocks whose checksums hold.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pagehaul_engine::error::{Error, ErrorKind};
use pagehaul_engine::format::checksum::{crc32c, xxh3};
use pagehaul_engine::format::file_table::FileTable;
use pagehaul_engine::format::file_table_stream::FILE_TABLE_MAGIC;
use pagehaul_engine::terms::SetId;

const SET: SetId = SetId([3; 16]);

fuzz_target!(|data: &[u8]| {
    check(data);
    let Some((counts, elements)) = data.split_first_chunk::<4>() else { return };
    // Small counts are the ones that can be right.
    let (files, runs) =
        (u64::from(u16::from_le_bytes([counts[0], counts[1]])), u64::from(u16::from_le_bytes([counts[2], counts[3]])));
    let mut bytes = FILE_TABLE_MAGIC.to_vec();
    bytes.extend_from_slice(&1u16.to_le_bytes());
    bytes.extend_from_slice(&[0; 6]);
    bytes.extend_from_slice(&SET.0);
    bytes.extend_from_slice(&files.to_le_bytes());
    bytes.extend_from_slice(&runs.to_le_bytes());
    bytes.resize(60, 0);
    bytes.extend_from_slice(&crc32c(&bytes).to_le_bytes());
    for raw in elements.chunks(4000).filter(|raw| !raw.is_empty()) {
        let mut stored = Vec::with_capacity(zstd_safe::compress_bound(raw.len()));
        if zstd_safe::compress(&mut stored, raw, 1).is_err() {
            return;
        }
        bytes.extend_from_slice(&(raw.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&(stored.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&xxh3(&stored).to_le_bytes());
        bytes.extend_from_slice(&stored);
    }
    check(&bytes);
});

fn read(bytes: &[u8]) -> Option<FileTable> {
    let mut rest = bytes;
    let mut source = |into: &mut [u8]| {
        let Some((head, tail)) = rest.split_at_checked(into.len()) else {
            return Err(Error::new(ErrorKind::Damage, "read the input", "it ends too early"));
        };
        into.copy_from_slice(head);
        rest = tail;
        Ok(())
    };
    FileTable::read(SET, bytes.len() as u64, &mut source).ok().map(|(table, _)| table)
}

/// What reads must be written so that it reads the same.
fn check(bytes: &[u8]) {
    let Some(table) = read(bytes) else { return };
    let _total = table.content_bytes();
    let mut written = Vec::new();
    let digest = table.write(SET, &mut |piece| {
        written.extend_from_slice(piece);
        Ok(())
    });
    assert_eq!(digest.map(|digest| digest.size_bytes).ok(), Some(written.len() as u64));
    let again = read(&written).unwrap_or_default();
    assert_eq!(again.entries().len(), table.entries().len());
    for file in table.ids() {
        assert!(!table.path(file).is_empty() && !table.path(file).starts_with(b"/"));
        assert_eq!(again.path(file), table.path(file));
        assert_eq!(again.target(file), table.target(file));
        assert_eq!(again.runs(file), table.runs(file));
        assert_eq!(again.entry(file).size_bytes, table.entry(file).size_bytes);
    }
}
