//! Points to the coordinates of each axis, as bit patterns, and back.

pub(crate) const FLOAT_BYTES: usize = 8;

/// Appends the coordinates of `points`, which have so many axes, to the first of `axes`.
pub(crate) fn apart<const AXES: usize>(points: &[u8], axes: &mut [Vec<u64>]) {
    let points = points.as_chunks::<FLOAT_BYTES>().0.as_chunks::<AXES>().0;
    for (axis, values) in axes[..AXES].iter_mut().enumerate() {
        values.extend(points.iter().map(|point| u64::from_le_bytes(point[axis])));
    }
}

/// Appends the next `count` points of so many axes to `out`, and takes them from the first of `axes`; None if there are not as many.
pub(crate) fn together<const AXES: usize>(count: usize, axes: &mut [&[u64]], out: &mut Vec<u8>) -> Option<()> {
    let mut values: [&[u64]; AXES] = [&[]; AXES];
    for (values, axis) in values.iter_mut().zip(axes) {
        (*values, *axis) = axis.split_at_checked(count)?;
    }
    let start = out.len();
    out.resize(start + count * AXES * FLOAT_BYTES, 0);
    let points = out[start..].as_chunks_mut::<FLOAT_BYTES>().0.as_chunks_mut::<AXES>().0;
    for (at, point) in points.iter_mut().enumerate() {
        for (float, values) in point.iter_mut().zip(&values) {
            *float = values[at].to_le_bytes();
        }
    }
    Some(())
}
