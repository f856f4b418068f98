//! What the repository has of one log id, by one listing.

use std::collections::BTreeSet;

use crate::catalog::Repository;
use crate::catalog::wal_bundle::{OpenBundle, open_bundle};
use crate::catalog::wal_names::{ObjectName, prefix_of_segment};
use crate::error::Result;
use crate::format::wal_bundle::Member;
use crate::io::is_temporary_name;
use crate::terms::{SourceName, WalSegmentName};

/// The objects of one timeline and log id.
pub(super) struct StoredLog<'a> {
    repository: &'a Repository,
    system_identifier: u64,
    prefix: String,
    objects: Vec<(String, ObjectName)>,
    /// Whether unfinished writes lie there, of living or dead processes.
    pub(super) has_temporaries: bool,
}

/// A segment in an object that covers it.
pub(super) struct Covering {
    pub(super) bundle: OpenBundle,
    /// Its place in the table of members.
    pub(super) place: usize,
}

impl Covering {
    pub(super) fn member(&self) -> &Member {
        &self.bundle.table.members[self.place]
    }
}

impl<'a> StoredLog<'a> {
    /// Lists what belongs to the log id of `segment`.
    ///
    /// # Errors
    /// Those of the storage.
    pub(super) fn list(
        repository: &'a Repository,
        source: &SourceName,
        system_identifier: u64,
        segment: &WalSegmentName,
    ) -> Result<Self> {
        let prefix = prefix_of_segment(source, system_identifier, segment);
        let names = repository.storage().list(&prefix)?;
        let has_temporaries = names.iter().any(|name| is_temporary_name(name));
        let objects = names.into_iter().filter_map(|name| ObjectName::parse(&name).map(|read| (name, read))).collect();
        Ok(StoredLog { repository, system_identifier, prefix, objects, has_temporaries })
    }

    /// Where it looked.
    pub(super) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Whether an object's name says that it has `segment`.
    pub(super) fn names(&self, segment: &WalSegmentName) -> bool {
        self.covering_names(segment).next().is_some()
    }

    fn covering_names(&self, segment: &WalSegmentName) -> impl Iterator<Item = (&str, u32, u32)> {
        let index = segment.index_in_log();
        self.objects.iter().filter_map(move |(name, read)| match read {
            ObjectName::Bundle { first_index, count } if (*first_index..first_index + count).contains(&index) => {
                Some((name.as_str(), *first_index, *count))
            }
            _ => None,
        })
    }

    /// Opens every object that has `segment`; one that was deleted meanwhile is left out.
    ///
    /// # Errors
    /// `Damage` if one does not read; those of the storage.
    pub(super) fn covering(&self, segment: &WalSegmentName) -> Result<Vec<Covering>> {
        let mut found = Vec::new();
        for (name, first_index, count) in self.covering_names(segment) {
            let object = format!("{}/{name}", self.prefix);
            let Some(bundle) = open_bundle(self.repository, &object)? else { continue };
            let segments = first_index..first_index + count;
            let name_of = |index| WalSegmentName::from_parts(segment.timeline(), segment.log_id(), index).to_string();
            bundle.check_holds(self.system_identifier, segments.map(name_of))?;
            found.push(Covering { bundle, place: (segment.index_in_log() - first_index) as usize });
        }
        Ok(found)
    }

    /// Whether the same objects have something of `segment` as in an earlier listing.
    pub(super) fn has_same_of(&self, earlier: &StoredLog<'_>, segment: &WalSegmentName) -> bool {
        let index = segment.index_in_log();
        let of_segment = |(name, read): &(String, ObjectName)| {
            let has_some = match read {
                ObjectName::Bundle { first_index, count } => (*first_index..first_index + count).contains(&index),
                ObjectName::Piece { index: of, .. } => *of == index,
                _ => false,
            };
            has_some.then(|| name.clone())
        };
        let names = |objects: &[(String, ObjectName)]| objects.iter().filter_map(of_segment).collect::<BTreeSet<_>>();
        names(&self.objects) == names(&earlier.objects)
    }

    /// The objects that are pieces of `segment`.
    pub(super) fn piece_names(&self, segment: &WalSegmentName) -> Vec<String> {
        let index = segment.index_in_log();
        let own =
            self.objects.iter().filter(|(_, read)| matches!(read, ObjectName::Piece { index: of, .. } if *of == index));
        own.map(|(name, _)| format!("{}/{name}", self.prefix)).collect()
    }

    /// Opens every piece of `segment`, in order of offset.
    ///
    /// # Errors
    /// `Damage` if one does not read; those of the storage.
    pub(super) fn pieces(&self, segment: &WalSegmentName) -> Result<Vec<OpenBundle>> {
        let mut pieces = Vec::new();
        for (name, read) in &self.objects {
            if !matches!(read, ObjectName::Piece { index, .. } if *index == segment.index_in_log()) {
                continue;
            }
            let object = format!("{}/{name}", self.prefix);
            let Some(piece) = open_bundle(self.repository, &object)? else { continue };
            piece.check_holds(self.system_identifier, [segment.to_string()].into_iter())?;
            pieces.push(piece);
        }
        pieces.sort_by_key(|piece| piece.table.members[0].piece_offset);
        Ok(pieces)
    }
}
