//! Bounds that formats and settings share; each relation between them is asserted at compile time.

/// One kibibyte in bytes.
pub const KIB: u64 = 1024;
/// One mebibyte in bytes.
pub const MIB: u64 = 1024 * KIB;

/// Smallest frame: below this the 64-byte header and the lost compression context cost too much.
pub const FRAME_SIZE_BYTES_MIN: u32 = 64 * 1024;
/// Largest frame: the bound a reader may rely on for one decode.
pub const FRAME_SIZE_BYTES_MAX: u32 = 4 * 1024 * 1024;
/// Default frame of a codec that looks back no further than it (`cargo xtask bench frames`): smaller ones cost size and
/// gain no speed. Mounts will want 128 KiB.
pub const FRAME_SIZE_BYTES_DEFAULT: u32 = 1024 * 1024;
/// Default frame of a codec that looks back 2 MiB and more: with 1 MiB zstd:3 makes 4 % more than of whole files, with
/// this the same (`cargo xtask bench peers`).
pub const FRAME_SIZE_BYTES_DEFAULT_WIDE: u32 = FRAME_SIZE_BYTES_MAX;

/// Largest transfer buffer, the same bound as SQL Server's MAXTRANSFERSIZE times sixteen.
pub const TRANSFER_SIZE_BYTES_MAX: u32 = 64 * 1024 * 1024;
/// Default transfer buffer; a larger frame makes it as large as itself.
pub const TRANSFER_SIZE_BYTES_DEFAULT: u32 = 1024 * 1024;
/// Default transfer buffer of `auto`: its queues are the clock by which it steers.
pub const TRANSFER_SIZE_BYTES_AUTO: u32 = 4 * 1024 * 1024;

/// Most stripes of one media set; SQL Server stops at 64, a bucket store gains from more.
pub const STRIPE_COUNT_MAX: u16 = 256;
/// Most parity stripes of one media set.
pub const PARITY_COUNT_MAX: u16 = 16;
/// Most threads of one stage.
pub const STAGE_THREADS_MAX: u16 = 256;
/// Most transfer buffers.
pub const BUFFER_COUNT_MAX: u32 = 65_536;

/// Sizes that a database's page may have.
pub const PAGE_SIZES_BYTES: [u32; 6] = [1024, 2048, 4096, 8192, 16_384, 32_768];
/// Most priors of one set: the place of a run has room for 65 536 sets.
pub const PRIOR_COUNT_MAX: usize = 1023;

/// Longest path in a file table (Linux' PATH_MAX).
pub const PATH_BYTES_MAX: usize = 4096;
/// Most files of one set.
pub const FILE_COUNT_MAX: u64 = u32::MAX as u64 - 1;
/// Largest manifest a reader accepts.
pub const MANIFEST_BYTES_MAX: u64 = 64 * MIB;
/// Most damaged pages a manifest lists one by one; beyond it only their number is kept.
pub const BAD_PAGES_LISTED_MAX: usize = 10_000;
/// Most lost files a manifest lists one by one; beyond it only their number is kept.
pub const LOST_FILES_LISTED_MAX: usize = 10_000;

const _: () =
    assert!(FRAME_SIZE_BYTES_DEFAULT >= FRAME_SIZE_BYTES_MIN && FRAME_SIZE_BYTES_DEFAULT <= FRAME_SIZE_BYTES_MAX);
const _: () = assert!(TRANSFER_SIZE_BYTES_DEFAULT >= FRAME_SIZE_BYTES_DEFAULT);
const _: () = assert!(TRANSFER_SIZE_BYTES_MAX >= FRAME_SIZE_BYTES_MAX);
