//! How much memory the server takes for a backup's buffers, before it takes it.

/// One MiB, the server's transfer size for files unless it is told another.
pub const TRANSFER_SIZE_DEFAULT: u32 = 1 << 20;
/// Its transfer size for tapes, and for encrypted databases of one file.
pub const TRANSFER_SIZE_SMALL: u32 = 64 << 10;
/// Its transfer size for S3.
pub const TRANSFER_SIZE_S3: u32 = 10 << 20;
/// Buffers that the server has in flight for each file on a disk.
const DEPTH_OF_DISK: u32 = 3;
/// A compressed or encrypted backup has buffers for the plain pages, for the packed ones and for those on their way.
const SETS_OF_PACKED: u64 = 3;

/// Buffers that the server takes by itself for `files` backup files of a database on `volumes` volumes.
pub fn buffer_count_default(files: u32, volumes: u32) -> u32 {
    files.saturating_mul(1 + DEPTH_OF_DISK).saturating_add(files).saturating_add(volumes.saturating_mul(2))
}

/// Bytes that `buffer_count` buffers of `transfer_size` take outside of the buffer pool; three times as many where the
/// pages are `packed` (compressed, or of an encrypted database).
pub fn buffer_bytes(buffer_count: u32, transfer_size: u32, packed: bool) -> u64 {
    let sets = if packed { SETS_OF_PACKED } else { 1 };
    u64::from(buffer_count) * u64::from(transfer_size) * sets
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_examples() {
        assert_eq!(buffer_count_default(1, 1), 7);
        assert_eq!(buffer_count_default(2, 1), 12);
    }

    #[test]
    fn memory_is_what_the_server_says_it_is() {
        assert_eq!(buffer_bytes(7, TRANSFER_SIZE_DEFAULT, false), 7 << 20);
        assert_eq!(buffer_bytes(50, 4 << 20, true), 600 << 20);
        assert_eq!(buffer_bytes(u32::MAX, u32::MAX, false), u64::from(u32::MAX) * u64::from(u32::MAX));
        assert_eq!(buffer_count_default(u32::MAX, 1), u32::MAX);
    }
}
