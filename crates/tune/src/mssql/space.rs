//! The settings to choose from, for one server.

use pagehaul_engine::error::{Error, ErrorKind, Result};
use pagehaul_engine::source::mssql::device::Device;
use pagehaul_engine::source::mssql::edition::{Dialect, Edition, MajorVersion};
use pagehaul_engine::source::mssql::server_facts::ServerFacts;
use pagehaul_engine::source::mssql::statement::{Algorithm, BackupStatement, Compression, Level};

use super::point::Point;

/// Files of a media set.
const FILE_COUNT_MAX: u16 = 64;
/// Points of a space: more are no search but a mistake.
const POINT_COUNT_MAX: usize = 10_000;
/// Buffers may take this share of the machine's memory when nobody says more: they lie outside of the buffer pool, in
/// what max server memory leaves to the rest.
const MEMORY_SHARE: u64 = 16;

/// Lists of settings; every combination is a point.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Space {
    /// Algorithms and levels.
    pub compressions: Vec<Compression>,
    /// Numbers of backup files.
    pub files: Vec<u16>,
    /// BUFFERCOUNT.
    pub buffer_counts: Vec<Option<u32>>,
    /// MAXTRANSFERSIZE.
    pub transfer_sizes: Vec<Option<u32>>,
    /// BLOCKSIZE.
    pub block_sizes: Vec<Option<u32>>,
}

impl Space {
    /// What a server of `dialect` offers.
    pub fn of(dialect: &Dialect) -> Self {
        let mut compressions = vec![Compression::No];
        let is_2022 = dialect.version >= MajorVersion::V2022;
        if matches!(dialect.edition, Edition::Standard | Edition::Enterprise) {
            compressions.push(Compression::By(Algorithm::MsXpress, None));
            if is_2022 && dialect.is_windows {
                compressions.push(Compression::By(Algorithm::QatDeflate, None));
            }
            if dialect.version >= MajorVersion::V2025 {
                let levels = [Level::Low, Level::Medium, Level::High];
                compressions.extend(levels.map(|level| Compression::By(Algorithm::Zstd, Some(level))));
            }
        }
        Space {
            compressions,
            files: vec![1, 2, 4, 8],
            buffer_counts: vec![None, Some(25), Some(50), Some(100)],
            transfer_sizes: vec![None, Some(4 << 20)],
            block_sizes: vec![None],
        }
    }

    /// Every combination, in the order of the lists.
    ///
    /// # Errors
    /// `Usage` for values that no server takes, or too many combinations.
    pub fn points(&self) -> Result<Vec<Point>> {
        let refused = |cause: String| Error::new(ErrorKind::Usage, "tune SQL Server", cause);
        let count = [
            self.compressions.len(),
            self.files.len(),
            self.buffer_counts.len(),
            self.transfer_sizes.len(),
            self.block_sizes.len(),
        ]
        .into_iter()
        .try_fold(1usize, usize::checked_mul)
        .filter(|count| (1..=POINT_COUNT_MAX).contains(count));
        if count.is_none() {
            return Err(refused(format!("there are no combinations, or more than {POINT_COUNT_MAX}")));
        }
        if let Some(bad) = self.files.iter().find(|files| !(1..=FILE_COUNT_MAX).contains(*files)) {
            return Err(refused(format!("a backup has 1 to {FILE_COUNT_MAX} files, not {bad}")));
        }
        let mut points = Vec::new();
        for compression in &self.compressions {
            for files in &self.files {
                for transfer_size in &self.transfer_sizes {
                    for buffer_count in &self.buffer_counts {
                        points.extend(self.block_sizes.iter().map(|block_size| Point {
                            compression: *compression,
                            files: *files,
                            buffer_count: *buffer_count,
                            transfer_size: *transfer_size,
                            block_size: *block_size,
                        }));
                    }
                }
            }
        }
        Ok(points)
    }
}

/// What buffers may take on this server when nobody says more.
pub fn buffer_bytes_max(facts: &ServerFacts) -> u64 {
    (facts.memory_bytes / MEMORY_SHARE).max(64 << 20)
}

/// What the buffers of `point` take on this server.
pub fn buffer_bytes(point: &Point, facts: &ServerFacts) -> u64 {
    let devices = vec![Device::Nul; usize::from(point.files)];
    let mut statement = BackupStatement::full(&facts.database, devices);
    statement.options.compression = Some(point.compression);
    statement.options.buffer_count = point.buffer_count;
    statement.options.max_transfer_size = point.transfer_size;
    statement.buffer_bytes(facts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_space_has_what_the_server_has() {
        let of = |version, edition, is_windows| {
            let space = Space::of(&Dialect { version: MajorVersion(version), edition, is_windows });
            space.compressions.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
        };
        assert_eq!(of(15, Edition::Standard, true), "none,ms_xpress");
        assert_eq!(of(16, Edition::Enterprise, true), "none,ms_xpress,qat_deflate");
        assert_eq!(of(17, Edition::Enterprise, false), "none,ms_xpress,zstd:low,zstd:medium,zstd:high");
        assert_eq!(of(17, Edition::Express, true), "none");
    }

    #[test]
    fn spaces_without_end_are_refused() {
        let dialect = Dialect { version: MajorVersion::V2025, edition: Edition::Enterprise, is_windows: true };
        let usual = Space::of(&dialect);
        assert_eq!(usual.points().unwrap().len(), 6 * 4 * 4 * 2);
        assert!(Space { files: vec![65], ..usual.clone() }.points().is_err());
        assert!(Space { files: vec![], ..usual.clone() }.points().is_err());
        assert!(Space { buffer_counts: vec![None; 5000], ..usual }.points().is_err());
    }
}
