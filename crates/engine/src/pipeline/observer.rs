//! Who watches a verb: the command line's progress display, or nobody.

use super::LiveView;
use super::limit::Direction;

/// Hears what a verb does, and may ask it to stop.
pub trait Observer: Sync {
    /// A new phase begins, such as "read the data files".
    fn phase(&self, name: &str);

    /// Something worth telling that is no error.
    fn note(&self, text: &str);

    /// Something has been waited for far too long: told even where notes are not.
    fn waiting(&self, text: &str) {
        self.note(text);
    }

    /// Called about ten times a second while the data path runs.
    fn progress(&self, direction: Direction, live: &LiveView<'_>);

    /// Whether a signal asked to stop.
    fn interrupted(&self) -> bool;
}

/// Watches nothing.
#[derive(Debug)]
pub struct NoObserver;

impl Observer for NoObserver {
    fn phase(&self, _name: &str) {}
    fn note(&self, _text: &str) {}
    fn progress(&self, _direction: Direction, _live: &LiveView<'_>) {}
    fn interrupted(&self) -> bool {
        false
    }
}
