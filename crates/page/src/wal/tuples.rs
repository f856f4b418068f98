//! The data of a block into which many tuples were inserted at once: each tuple by itself, so that rows come to rows.
//!
//! Each is an xl_multi_insert_tuple (src/include/access/heapam_xlog.h) at a multiple of 2, and then its bytes. What is between two of
//! them is a byte of whatever the server had in that memory before.

use super::streams::BlockStreams;
use crate::error::{Damaged, Decoded};
use crate::postgres::wire::{align, append, put, put_bytes, u16_at};

/// `datalen`, which follows from the tuple.
const LENGTH_BYTES: usize = 2;
/// SizeOfMultiInsertTuple without it.
const HEADER_BYTES: usize = 5;

/// Appends the tuples of `data`; false, and nothing, if it is not a list of them.
pub(super) fn take(data: &[u8], streams: &mut BlockStreams) -> bool {
    let BlockStreams { tuples, tuple_counts, tuple_gaps, .. } = streams;
    let (lengths, bytes, gaps) = (tuples.lengths.values.len(), tuples.data.values.len(), tuple_gaps.values.len());
    let mut count = 0;
    let mut at = 0;
    while at < data.len() {
        let start = align(at, 2);
        let head = data.get(start..start + LENGTH_BYTES + HEADER_BYTES);
        let end = head.map_or(usize::MAX, |head| start + LENGTH_BYTES + HEADER_BYTES + usize::from(u16_at(head, 0)));
        if end > data.len() {
            tuples.lengths.values.truncate(lengths);
            tuples.data.values.truncate(bytes);
            tuple_gaps.values.truncate(gaps);
            count = 0;
            break;
        }
        let tuple = start + LENGTH_BYTES;
        tuple_gaps.values.extend_from_slice(&data[at..start]);
        tuples.lengths.values.push((end - tuple) as u32);
        append(&mut tuples.data.values, data, tuple, end);
        (at, count) = (end, count + 1);
    }
    tuple_counts.values.push(count);
    count > 0
}

/// Puts the next `count` tuples at `at` of the body; where they end.
pub(super) fn make(body: &mut [u8], at: usize, count: u32, streams: &mut BlockStreams) -> Decoded<usize> {
    let mut end = at;
    for _ in 0..count {
        let start = at + align(end - at, 2);
        if start > end {
            put(body, end, [streams.tuple_gaps.next()?])?;
        }
        let tuple = streams.tuples.next()?;
        let length = tuple.len().checked_sub(HEADER_BYTES).and_then(|length| u16::try_from(length).ok());
        put(body, start, length.ok_or(Damaged("a tuple of WAL is too short or too long"))?.to_le_bytes())?;
        put_bytes(body, start + LENGTH_BYTES, tuple)?;
        end = start + LENGTH_BYTES + tuple.len();
    }
    Ok(end)
}
