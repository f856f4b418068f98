//! Columns of values of one kind: pushed while pages are taken apart, taken in the same order while they are put together.

use crate::error::{Damaged, Decoded};

/// The values of one stream of a frame, and how many of them a decoder has used.
#[derive(Debug, Default)]
pub(crate) struct Stream<T> {
    pub(crate) values: Vec<T>,
    used: usize,
}

impl<T: Copy> Stream<T> {
    pub(crate) fn clear(&mut self) {
        self.values.clear();
        self.used = 0;
    }

    /// The next value.
    #[inline]
    pub(crate) fn next(&mut self) -> Decoded<T> {
        let value = self.values.get(self.used).ok_or(SPENT)?;
        self.used += 1;
        Ok(*value)
    }

    /// The next `count` values.
    #[inline]
    pub(crate) fn take(&mut self, count: usize) -> Decoded<&[T]> {
        let end = self.used.checked_add(count).ok_or(SPENT)?;
        let taken = self.values.get(self.used..end).ok_or(SPENT)?;
        self.used = end;
        Ok(taken)
    }

    /// The next `count` values, which stay.
    #[inline]
    pub(crate) fn coming(&self, count: usize) -> Decoded<&[T]> {
        let end = self.used.checked_add(count).ok_or(SPENT)?;
        self.values.get(self.used..end).ok_or(SPENT)
    }

    /// The last `count` values that were taken.
    #[inline]
    pub(crate) fn taken(&self, count: usize) -> Decoded<&[T]> {
        let start = self.used.checked_sub(count).ok_or(SPENT)?;
        self.values.get(start..self.used).ok_or(SPENT)
    }

    /// The memory it keeps.
    pub(crate) fn held_bytes(&self) -> usize {
        held_bytes(&self.values)
    }
}

/// The memory `values` keep, whether in use or not.
pub(crate) fn held_bytes<T>(values: &Vec<T>) -> usize {
    values.capacity() * size_of::<T>()
}

const SPENT: Damaged = Damaged("a stream has fewer values than the pages need");
