//! An extent of pages that is being put together from sectors.

use crate::ledger::{Origin, PageLedger};
use crate::mtf::{Place, Sector};
use crate::page::{EXTENT_PAGES, PAGE_BYTES, PageCheck, Verdict, is_pfs_page, use_map};

/// Pages so far, and the content of a page that may be a PFS page.
#[derive(Default)]
pub(super) struct ExtentCheck {
    pages: Vec<PageCheck>,
    at: Place,
    /// Index of the page that is kept, and its bytes.
    kept: Option<(usize, Vec<u8>)>,
}

impl ExtentCheck {
    /// Adds the next sector; true when the extent is whole.
    pub(super) fn add(&mut self, at: Place, sector: Sector<'_>) -> bool {
        if self.pages.is_empty() {
            self.at = at;
        }
        let begins = self.pages.last().is_none_or(PageCheck::is_whole);
        if begins {
            self.pages.push(PageCheck::default());
        }
        let index = self.pages.len() - 1;
        let page = &mut self.pages[index];
        page.add(sector.bytes, sector.xor, sector.is_lost);
        let whole = page.is_whole();
        let is_here = |page: &PageCheck| page.id().page as usize % EXTENT_PAGES == index;
        if begins && page.looks_like_a_page() && is_pfs_page(page.id().page) && is_here(page) {
            let mut bytes = self.kept.take().map(|(_, bytes)| bytes).unwrap_or_default();
            bytes.clear();
            self.kept = Some((index, bytes));
        }
        if let Some((_, bytes)) = self.kept.as_mut().filter(|(kept, _)| *kept == index) {
            bytes.extend_from_slice(sector.bytes);
        }
        whole && self.pages.len() == EXTENT_PAGES
    }

    /// Hands the pages over, if there are any, and begins anew.
    pub(super) fn hand_over(&mut self, origin: Origin, ledger: &mut PageLedger, tell: &mut dyn FnMut(Place, String)) {
        if self.pages.is_empty() {
            return;
        }
        let origin = Origin { at: self.at, ..origin };
        if self.pages.last().is_some_and(|page| !page.is_whole()) {
            self.pages.pop();
            tell(origin.at, "extent that ends inside a page".to_owned());
        }
        if let Some((index, bytes)) = &self.kept
            && let Some(page) = self.pages.get(*index)
            && bytes.len() == PAGE_BYTES
            && matches!(page.verdict(), Verdict::Sound | Verdict::NotTorn)
        {
            ledger.pfs(page.id(), use_map(bytes));
        }
        ledger.extent(&self.pages, origin, tell);
        self.pages.clear();
        self.kept = None;
    }
}
