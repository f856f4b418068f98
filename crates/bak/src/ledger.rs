//! What is known of the pages of one set, over all files of its media set: which are damaged, and which only look so.
//!
//! A page that is not in use may hold whatever lay on the disk, so a wrong checksum counts only if PFS says that the page
//! is in use, or if there is no PFS to ask and the page looks like itself. The last copy of a page counts.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::damage::{Damage, DamageList, Layer};
use crate::mtf::Place;
use crate::page::{EXTENT_PAGES, PFS_INTERVAL_PAGES, PageCheck, PageId, UseMap, Verdict, is_pfs_page, is_used};

/// Pages with a wrong checksum that wait for PFS, at most.
const SUSPECTS_MAX: usize = 1 << 20;
/// Extents that a backup copied again, in mind while images are written, at most.
pub(crate) const EXTENTS_PER_IMAGE_MAX: usize = 1 << 22;
/// Extents in one entry of the map of extents.
const EXTENTS_PER_ENTRY: u32 = 4096;

/// Counts of pages of a set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PageCounts {
    /// Pages in the set, copies counted each.
    pub pages: u64,
    /// With a right checksum.
    pub sound: u64,
    /// With torn bits that agree.
    pub not_torn: u64,
    /// With neither checksum nor torn bits.
    pub unprotected: u64,
    /// Not in use, with old content whose checksum is wrong: harmless.
    pub stale: u64,
    /// With a wrong checksum, and nothing that says whether they are in use.
    pub unjudged: u64,
    /// In use and damaged.
    pub damaged: u64,
    /// Pages that only fill up a stripe.
    pub filler: u64,
}

/// A page with a wrong checksum.
#[derive(Clone, Debug)]
struct Suspect {
    file: usize,
    at: Place,
    ordinal: u32,
    cause: String,
    /// Whether another page of its extent proves its place.
    is_firm: bool,
    /// Whether its header has the number that belongs there.
    is_itself: bool,
}

/// The pages of a set.
#[derive(Default)]
pub struct PageLedger {
    /// Counts so far; `stale`, `unjudged` and `damaged` at the end.
    pub counts: PageCounts,
    use_maps: BTreeMap<PageId, UseMap>,
    extents: BTreeMap<(u16, u32), Box<[u64; (EXTENTS_PER_ENTRY / 64) as usize]>>,
    suspects: BTreeMap<PageId, Suspect>,
    /// Sound pages of second and later copies.
    recopied: BTreeMap<PageId, u32>,
    overflow: u64,
}

/// Where an extent came from.
#[derive(Clone, Copy, Debug)]
pub struct Origin {
    /// Index of the backup file.
    pub file: usize,
    /// Where its first page begins.
    pub at: Place,
    /// Which copy: number of the data block.
    pub ordinal: u32,
    /// Whether bytes of the stream and of the file are the same.
    pub is_plain: bool,
}

impl Origin {
    /// Where page `index` of the extent begins.
    fn page(self, index: usize) -> Place {
        let bytes = (index * crate::page::PAGE_BYTES) as u64;
        Place {
            file_offset: self.at.file_offset + if self.is_plain { bytes } else { 0 },
            stream_offset: self.at.stream_offset + bytes,
        }
    }
}

impl PageLedger {
    /// Takes the pages of an extent, up to eight; a problem that is no page's goes to `tell`.
    pub fn extent(&mut self, pages: &[PageCheck], origin: Origin, tell: &mut dyn FnMut(Place, String)) {
        self.counts.pages += pages.len() as u64;
        if pages.iter().all(PageCheck::is_filler) {
            self.counts.filler += pages.len() as u64;
            return;
        }
        let verdicts: Vec<Verdict> = pages.iter().map(PageCheck::verdict).collect();
        let Some((base, is_firm)) = place_of(pages, &verdicts) else {
            return self.without_place(pages, &verdicts, origin, tell);
        };
        self.note_extent(base);
        for (index, (page, verdict)) in pages.iter().zip(verdicts).enumerate() {
            let id = PageId { page: base.page + index as u32, ..base };
            let is_itself = page.id() == id;
            let verdict = match verdict {
                Verdict::Sound if !is_itself => Verdict::Wrong(format!("it carries the number {}", page.id())),
                // Old content of other kinds has such flags by chance.
                Verdict::NotTorn if !is_itself => Verdict::Unprotected,
                verdict => verdict,
            };
            self.page(id, verdict, &|cause| Suspect {
                file: origin.file,
                at: origin.page(index),
                ordinal: origin.ordinal,
                cause,
                is_firm,
                is_itself,
            });
        }
    }

    fn page(&mut self, id: PageId, verdict: Verdict, suspect: &dyn Fn(String) -> Suspect) {
        let cause = match verdict {
            Verdict::Sound => {
                self.counts.sound += 1;
                return self.note_good(id, suspect(String::new()).ordinal);
            }
            Verdict::NotTorn => {
                self.counts.not_torn += 1;
                return self.note_good(id, suspect(String::new()).ordinal);
            }
            Verdict::Unprotected => {
                self.counts.unprotected += 1;
                return;
            }
            Verdict::Wrong(cause) => cause,
            Verdict::Lost => "its chunk could not be read".to_owned(),
        };
        let suspect = suspect(cause);
        if self.recopied.get(&id).is_some_and(|ordinal| *ordinal > suspect.ordinal) {
            return;
        }
        if self.suspects.len() >= SUSPECTS_MAX {
            self.settle();
        }
        if self.suspects.len() >= SUSPECTS_MAX {
            self.overflow += 1;
            return;
        }
        self.suspects.insert(id, suspect);
    }

    fn note_good(&mut self, id: PageId, ordinal: u32) {
        if self.suspects.get(&id).is_some_and(|suspect| suspect.ordinal < ordinal) {
            self.suspects.remove(&id);
        }
        if ordinal > 0 && self.recopied.len() < SUSPECTS_MAX {
            self.recopied.insert(id, ordinal);
        }
    }

    /// An extent in which no page says where it belongs.
    fn without_place(
        &mut self,
        pages: &[PageCheck],
        verdicts: &[Verdict],
        origin: Origin,
        tell: &mut dyn FnMut(Place, String),
    ) {
        if pages.iter().all(|page| page.is_zero() || page.is_lost()) {
            self.counts.unprotected += pages.iter().filter(|page| !page.is_lost()).count() as u64;
            return;
        }
        let wrong = verdicts.iter().filter(|verdict| matches!(verdict, Verdict::Wrong(_))).count();
        self.counts.damaged += wrong as u64;
        tell(origin.at, format!("extent in which no page says where it belongs, {wrong} with wrong checksums"));
    }

    /// Takes the content of a PFS page whose checksum is right; of several copies, pages count as used that all say so.
    pub fn pfs(&mut self, id: PageId, map: UseMap) {
        match self.use_maps.get_mut(&id) {
            Some(known) => known.iter_mut().zip(map.iter()).for_each(|(known, new)| *known &= new),
            None => {
                self.use_maps.insert(id, map);
            }
        }
    }

    /// Takes over what PFS pages of `base`, the set that this differential one is built on, say: those that are not in
    /// this set have not changed since.
    pub fn build_on(&mut self, base: &PageLedger) {
        for (id, map) in &base.use_maps {
            if !self.has_extent(*id) {
                self.use_maps.entry(*id).or_insert_with(|| map.clone());
            }
        }
    }

    fn has_extent(&self, id: PageId) -> bool {
        let extent = id.page / EXTENT_PAGES as u32;
        let bit = extent % EXTENTS_PER_ENTRY;
        let entry = self.extents.get(&(id.file_id, extent / EXTENTS_PER_ENTRY));
        entry.is_some_and(|entry| entry[(bit / 64) as usize] >> (bit % 64) & 1 != 0)
    }

    fn note_extent(&mut self, base: PageId) {
        let extent = base.page / EXTENT_PAGES as u32;
        let entry = self.extents.entry((base.file_id, extent / EXTENTS_PER_ENTRY)).or_insert_with(|| Box::new([0; 64]));
        let bit = extent % EXTENTS_PER_ENTRY;
        entry[(bit / 64) as usize] |= 1 << (bit % 64);
    }

    /// Bytes of different extents of a database file that were found.
    pub fn found_bytes(&self, file_id: u16) -> u64 {
        let of_file = self.extents.iter().filter(|((file, _), _)| *file == file_id);
        let extents: u64 = of_file.flat_map(|(_, bits)| bits.iter()).map(|bits| u64::from(bits.count_ones())).sum();
        extents * crate::page::EXTENT_BYTES as u64
    }

    /// Whether a page with a wrong checksum is in use; None if nothing says so.
    fn is_in_use(&self, id: PageId, suspect: &Suspect) -> Option<bool> {
        if !suspect.is_firm || is_pfs_page(id.page) {
            return Some(true);
        }
        let pfs = PageId { page: crate::page::pfs_page(id.page), ..id };
        match self.use_maps.get(&pfs) {
            Some(map) => Some(is_used(map, id.page % PFS_INTERVAL_PAGES)),
            None if suspect.is_itself => Some(true),
            None => None,
        }
    }

    /// Forgets suspects of which PFS already says that they are not in use.
    fn settle(&mut self) {
        let mut suspects = std::mem::take(&mut self.suspects);
        let before = suspects.len();
        suspects.retain(|id, suspect| self.is_in_use(*id, suspect) != Some(false));
        self.counts.stale += (before - suspects.len()) as u64;
        self.suspects = suspects;
    }

    /// Judges all suspects, when all files of the media set were read.
    pub fn finish(&mut self, names: &[String], set: u16, damage: &mut DamageList) {
        self.settle();
        for (id, suspect) in std::mem::take(&mut self.suspects) {
            if self.is_in_use(id, &suspect) == Some(true) {
                self.counts.damaged += 1;
                damage.add(Damage {
                    file: names.get(suspect.file).cloned().unwrap_or_default(),
                    layer: Layer::Page,
                    offset: Some(suspect.at.file_offset),
                    stream_offset: Some(suspect.at.stream_offset),
                    set: Some(set),
                    page: Some(id),
                    cause: suspect.cause,
                });
            } else {
                self.counts.unjudged += 1;
            }
        }
        if self.overflow > 0 {
            self.counts.damaged += self.overflow;
            let cause = format!("{} more pages have wrong checksums than can be looked at", self.overflow);
            damage.whole(&names.first().cloned().unwrap_or_default(), Layer::Page, cause);
        }
    }
}

/// Where most pages of an extent say that it belongs, pages with right checksums first; and whether one of these or an
/// unprotected one says so.
pub fn place_of(pages: &[PageCheck], verdicts: &[Verdict]) -> Option<(PageId, bool)> {
    let mut votes: Vec<(PageId, u32, bool)> = Vec::with_capacity(EXTENT_PAGES);
    for (index, (page, verdict)) in pages.iter().zip(verdicts).enumerate() {
        let id = page.id();
        if !page.looks_like_a_page() || id.page as usize % EXTENT_PAGES != index {
            continue;
        }
        let base = PageId { page: id.page - index as u32, ..id };
        let (weight, is_firm) = match verdict {
            Verdict::Sound => (16, true),
            Verdict::NotTorn | Verdict::Unprotected => (2, true),
            Verdict::Wrong(_) | Verdict::Lost => (1, false),
        };
        match votes.iter_mut().find(|(known, ..)| *known == base) {
            Some((_, sum, firm)) => (*sum, *firm) = (*sum + weight, *firm || is_firm),
            None => votes.push((base, weight, is_firm)),
        }
    }
    votes.into_iter().rev().max_by_key(|(_, weight, _)| *weight).map(|(base, _, is_firm)| (base, is_firm))
}
