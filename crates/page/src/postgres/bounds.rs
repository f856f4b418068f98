//! Where the parts of a page begin and end, as its header tells.

use super::items::{HEADER_BYTES, POINTER_BYTES};
use super::wire::u16_at;

/// `pd_pagesize_version` is the page's size plus this.
pub(super) const LAYOUT_VERSION: usize = 4;

/// The bounds in a page's header.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    pub(super) lower: usize,
    pub(super) upper: usize,
    pub(super) special: usize,
}

impl Bounds {
    /// Of a page whose header is in order.
    pub(super) fn of(page: &[u8]) -> Option<Self> {
        let [lower, upper, special] = [12, 14, 16].map(|at| usize::from(u16_at(page, at)));
        let is_in_order = usize::from(u16_at(page, 18)) == page.len() + LAYOUT_VERSION
            && lower >= HEADER_BYTES
            && lower <= upper
            && upper <= special
            && special <= page.len();
        is_in_order.then_some(Bounds { lower, upper, special })
    }

    pub(super) fn pointer_count(&self) -> usize {
        (self.lower - HEADER_BYTES) / POINTER_BYTES
    }
}
