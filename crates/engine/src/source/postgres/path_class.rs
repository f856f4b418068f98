//! What a path of the data directory holds, told from its name alone.
//!
//! The rules: src/common/relpath.c (names of relation files), src/backend/storage/file/reinit.c
//! (parse_filename_for_nontemp_relation) and fd.c (looks_like_temp_rel_name).

/// A relation's forks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fork {
    /// The rows, or the index.
    Main,
    /// The free space map.
    Fsm,
    /// The visibility map.
    Vm,
    /// The empty state of an unlogged relation.
    Init,
}

/// What a file holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PathClass {
    /// Pages with headers, and with checksums where the cluster has them.
    Relation {
        /// The database's object id; 0 in `global`.
        database_oid: u32,
        /// The relation's file number, which is not always its object id.
        file_number: u32,
        /// Which of its forks.
        fork: Fork,
        /// Which segment, from 0.
        segment_number: u32,
    },
    /// Everything else: no pages, no checksums.
    Other,
}

/// Whether the file at `path` ends with the CRC-32C of all that is before it. The CRC-32C of the whole file is then a constant
/// of its length, whatever it holds, and says nothing of two such files.
///
/// The rules: relmapper.c (RelMapFile), origin.c (CheckPointReplicationOrigin), twophase.c (EndPrepare), and pg_control.h, in
/// all of which at most zeros follow.
pub fn ends_with_its_sum(path: &[u8]) -> bool {
    path.ends_with(b"/pg_filenode.map")
        || path.starts_with(b"pg_twophase/")
        || matches!(path, b"pg_logical/replorigin_checkpoint" | b"global/pg_control")
}

/// What the file at `path`, relative to the data directory, holds.
pub fn classify(path: &[u8]) -> PathClass {
    let parts: Vec<&[u8]> = path.split(|byte| *byte == b'/').collect();
    let (database, name) = match parts[..] {
        [b"global", name] => (Some(0), name),
        [b"base", database, name] => (parse_oid(database), name),
        [b"pg_tblspc", tablespace, version, database, name]
            if parse_oid(tablespace).is_some() && version.starts_with(b"PG_") =>
        {
            (parse_oid(database), name)
        }
        _ => return PathClass::Other,
    };
    match (database, RelationFileName::parse(name)) {
        (Some(database_oid), Some(file)) => PathClass::Relation {
            database_oid,
            file_number: file.file_number,
            fork: file.fork,
            segment_number: file.segment_number,
        },
        _ => PathClass::Other,
    }
}

/// The object id of the tablespace that a relation's file lies in, as WAL names it; None for other files.
pub fn tablespace_oid(path: &[u8]) -> Option<u32> {
    let mut parts = path.split(|byte| *byte == b'/');
    match parts.next()? {
        b"base" => Some(1663),
        b"global" => Some(1664),
        b"pg_tblspc" => parse_oid(parts.next()?),
        _ => None,
    }
}

/// Whether files of relations lie directly in `directory` (relative to the data directory).
pub(super) fn is_relation_directory(directory: &[u8]) -> bool {
    directory == b"global" || is_database_directory(directory)
}

/// Whether `directory` is that of one database, in which temporary relations may lie.
pub fn is_database_directory(directory: &[u8]) -> bool {
    let parts: Vec<&[u8]> = directory.split(|byte| *byte == b'/').collect();
    match parts[..] {
        [b"base", database] => is_digits(database),
        [b"pg_tblspc", _, version, database] => version.starts_with(b"PG_") && is_digits(database),
        _ => false,
    }
}

/// The name of a permanent or unlogged relation's file: `16384`, `16384_vm`, `16384.1`, `16384_init`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RelationFileName {
    pub(super) file_number: u32,
    pub(super) fork: Fork,
    pub(super) segment_number: u32,
}

impl RelationFileName {
    pub(super) fn parse(name: &[u8]) -> Option<Self> {
        let (name, segment_number) = split_segment(name)?;
        let (number, fork) = split_fork(name)?;
        Some(RelationFileName { file_number: parse_oid(number)?, fork, segment_number })
    }
}

/// Whether `name` is that of a temporary relation's file: `t3_16384`, with fork and segment as usual.
pub(super) fn is_temporary_relation(name: &[u8]) -> bool {
    let parse = || {
        let (name, _) = split_segment(name.strip_prefix(b"t")?)?;
        let (name, _) = split_fork(name)?;
        let separator = name.iter().position(|byte| *byte == b'_')?;
        Some(is_digits(&name[..separator]) && is_digits(&name[separator + 1..]))
    };
    parse().unwrap_or(false)
}

/// Cuts `.N` off; a name without it is segment 0, one with `.0` or rubbish is no relation's.
fn split_segment(name: &[u8]) -> Option<(&[u8], u32)> {
    match name.iter().position(|byte| *byte == b'.') {
        None => Some((name, 0)),
        Some(dot) => Some((&name[..dot], parse_oid(&name[dot + 1..])?)),
    }
}

/// Cuts the fork's suffix off; none is the main fork.
fn split_fork(name: &[u8]) -> Option<(&[u8], Fork)> {
    for (suffix, fork) in [(&b"_fsm"[..], Fork::Fsm), (b"_vm", Fork::Vm), (b"_init", Fork::Init)] {
        if let Some(rest) = name.strip_suffix(suffix) {
            return Some((rest, fork));
        }
    }
    Some((name, Fork::Main))
}

fn is_digits(text: &[u8]) -> bool {
    !text.is_empty() && text.iter().all(u8::is_ascii_digit)
}

/// A number from 1, without leading zeros.
fn parse_oid(text: &[u8]) -> Option<u32> {
    if !is_digits(text) || text[0] == b'0' {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn relation(database_oid: u32, file_number: u32, fork: Fork, segment_number: u32) -> PathClass {
        PathClass::Relation { database_oid, file_number, fork, segment_number }
    }

    #[test]
    fn files_that_end_with_their_sum_all_have_the_same() {
        let file = |content: u8| {
            let mut file = vec![content; 500];
            let sum = crc_fast::crc32_iscsi(&file) as u32;
            file.extend(sum.to_le_bytes());
            file.extend([0; 8]);
            crc_fast::crc32_iscsi(&file)
        };
        assert_eq!(file(1), file(2), "so they must not be compared by it");
        let ends = ["global/pg_filenode.map", "base/5/pg_filenode.map", "pg_tblspc/9/PG_15_1/5/pg_filenode.map"];
        let others = ["base/5/1249", "PG_VERSION", "pg_xact/0000", "pg_logical/mappings/map-1"];
        assert!(ends.iter().chain(&["pg_twophase/0000000000000301"]).all(|path| ends_with_its_sum(path.as_bytes())));
        assert!(others.iter().all(|path| !ends_with_its_sum(path.as_bytes())));
    }

    #[test]
    fn relation_files_are_told_from_others() {
        assert_eq!(classify(b"base/5/16384"), relation(5, 16384, Fork::Main, 0));
        assert_eq!(classify(b"base/5/16384.12"), relation(5, 16384, Fork::Main, 12));
        assert_eq!(classify(b"base/5/16384_vm.1"), relation(5, 16384, Fork::Vm, 1));
        assert_eq!(classify(b"global/1262_fsm"), relation(0, 1262, Fork::Fsm, 0));
        assert_eq!(classify(b"pg_tblspc/16400/PG_15_202209061/5/16401_init"), relation(5, 16401, Fork::Init, 0));
        for other in [
            &b"global/pg_control"[..],
            b"global/pg_filenode.map",
            b"base/5/PG_VERSION",
            b"base/5/pg_internal.init",
            b"base/5/t3_16384",
            b"base/5/16384.0",
            b"base/5/16384.x",
            b"base/5/016384",
            b"base/5/99999999999",
            b"base/x/16384",
            b"16384",
            b"pg_xact/0000",
            b"",
            b"base/5/16384\xff",
        ] {
            assert_eq!(classify(other), PathClass::Other, "{}", String::from_utf8_lossy(other));
        }
    }

    #[test]
    fn temporary_relations() {
        for name in [&b"t3_16384"[..], b"t13_16384_vm", b"t3_16384.2", b"t3_16384_fsm.1"] {
            assert!(is_temporary_relation(name));
        }
        for name in [&b"16384"[..], b"t_16384", b"t3_", b"t3", b"t3_x", b"table", b"t3_1_2"] {
            assert!(!is_temporary_relation(name), "{}", String::from_utf8_lossy(name));
        }
    }
}
