//! Which damaged pages a full set made of a chain has: those that any set of the chain has listed, as far as their bytes are
//! still the ones that were listed. An incremental that was told by the server what has changed did not look at the others.

use std::collections::{BTreeMap, BTreeSet};

use crate::format::file_table::{FileTable, Place};
use crate::format::manifest::{BadPage, Manifest};
use crate::limits::BAD_PAGES_LISTED_MAX;
use crate::terms::FileId;

/// How many there are, and the first of them, in the order of the file table; `chain` is nearest first, as the runs of
/// `table` count sets.
pub(super) fn bad_pages<'a>(table: &FileTable, chain: impl Iterator<Item = &'a Manifest>) -> (u64, Vec<BadPage>) {
    let chain: Vec<&Manifest> = chain.collect();
    let newest = chain.first().map_or(0, |set| set.bad_page_count);
    if chain.iter().all(|set| set.bad_page_count == 0) {
        return (0, Vec::new());
    }
    let named: BTreeSet<&str> = chain.iter().flat_map(|set| &set.bad_pages).map(|page| page.path.as_str()).collect();
    let texts = table.ids().map(|file| (table.path_text(file), file));
    let files: BTreeMap<String, FileId> = texts.filter(|(text, _)| named.contains(text.as_str())).collect();
    let mut found: BTreeMap<(FileId, u32), &BadPage> = BTreeMap::new();
    for (number, set) in chain.iter().enumerate() {
        for page in &set.bad_pages {
            let Some(file) = files.get(&page.path) else { continue };
            if is_still_there(table, *file, u64::from(page.page) * u64::from(set.postgres.block_size_bytes), number) {
                found.entry((*file, page.page)).or_insert(page);
            }
        }
    }
    let count = newest.max(found.len() as u64);
    (count, found.into_values().take(BAD_PAGES_LISTED_MAX).cloned().collect())
}

/// Whether the byte at `offset` was not stored by a set newer than the one with this number.
fn is_still_there(table: &FileTable, file: FileId, offset: u64, number: usize) -> bool {
    let runs = table.runs(file);
    let Some(run) = runs.get(runs.partition_point(|run| run.end() <= offset)) else { return false };
    match run.place() {
        // A page that became zero.
        Place::Zeros => true,
        Place::Frames { set, .. } => usize::from(set.0) >= number,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::file_table::{EntryKind, Run, StoredRun, ZeroFill};
    use crate::format::manifest::tests::sample;
    use crate::terms::{SetIndex, StripeIndex};

    const PAGE: u64 = 8192;

    /// One file; page 0 lies in the set itself, 1 in its prior, 2 in the one before, 3 is zeros.
    fn table() -> FileTable {
        let mut table = FileTable::default();
        let file = table.push(b"base/5/1", b"", EntryKind::File, 0o600, 0, 4 * PAGE).unwrap();
        let stored = (0..4u16).map(|page| {
            let place = match page {
                3 => Place::Zeros,
                set => Place::Frames { set: SetIndex(set), stripe: StripeIndex(0), first_frame: 0, offset_in_frame: 0 },
            };
            StoredRun { file, run: Run::new(u64::from(page) * PAGE, PAGE, place), crc32c: 0 }
        });
        table.with_content(stored.collect(), &[], &[65_536; 3], &mut ZeroFill).unwrap()
    }

    fn set(pages: &[(&str, u32)]) -> Manifest {
        let bad = |(path, page): &(&str, u32)| BadPage { path: (*path).to_owned(), page: *page, reason: "x".into() };
        Manifest { bad_page_count: pages.len() as u64, bad_pages: pages.iter().map(bad).collect(), ..sample() }
    }

    #[test]
    fn pages_that_were_written_since_are_bad_no_more() {
        let file = "base/5/1";
        let own = set(&[(file, 1)]);
        let prior = set(&[(file, 0), (file, 1), (file, 2), ("base/5/2", 0)]);
        let oldest = set(&[(file, 1), (file, 2), (file, 3), (file, 9)]);
        let (count, listed) = bad_pages(&table(), [&own, &prior, &oldest].into_iter());
        assert_eq!(listed.iter().map(|page| page.page).collect::<Vec<_>>(), [1, 2, 3]);
        assert_eq!(count, 3);
        assert_eq!(bad_pages(&table(), [&set(&[])].into_iter()), (0, Vec::new()));
    }
}
