//! The manifest: one JSON document that says what a set is. It is written last; its existence is the commit.
//!
//! Its last line is its own checksum, so that people can read it and no flipped bit passes.

use serde::{Deserialize, Serialize};

use super::manifest_private::Encryption;
pub use super::object_digest::ObjectDigest;
use super::row_code::SHARDS_MAX;
use super::sealed_json;
use super::{DOCUMENT_HINT, FORMAT_VERSION};
use crate::error::{Error, ErrorKind, Result};
use crate::limits::{
    FRAME_SIZE_BYTES_MAX, FRAME_SIZE_BYTES_MIN, MANIFEST_BYTES_MAX, PAGE_SIZES_BYTES, PARITY_COUNT_MAX,
    PRIOR_COUNT_MAX, STRIPE_COUNT_MAX, TRANSFER_SIZE_BYTES_MAX,
};
use crate::terms::{BackupKind, BackupLabel, Lsn, SetId, SourceName, TimelineId, is_absolute_place};

/// Everything about a set but its file list.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Version of all bytes of the set.
    pub format_version: u16,
    /// Version of the program that wrote it.
    pub engine_version: String,
    /// The set's name.
    pub label: BackupLabel,
    /// The id in all its frames, 32 hexadecimal digits.
    pub set_id: String,
    /// Full, differential or incremental.
    pub kind: BackupKind,
    /// The labels of the sets it needs, nearest first; empty for a full one.
    pub prior: Vec<BackupLabel>,
    /// Their ids, in the same order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub prior_set_ids: Vec<String>,
    /// What it was made of, if it was made of a chain of sets and not of a server's files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub synthesized_from: Option<SynthesizedFrom>,
    /// Whose backup it is.
    pub source: SourceName,
    /// What the user said of it.
    pub description: Option<String>,
    /// When the backup began and ended, RFC 3339 in UTC; for people only, LSNs order sets.
    pub started_at: String,
    /// See `started_at`.
    pub finished_at: String,
    /// Codec and level, as typed.
    pub compression: String,
    /// Raw size of a full frame.
    pub frame_size_bytes: u32,
    /// Raw size of a transfer buffer.
    pub transfer_size_bytes: u32,
    /// Bytes of all files.
    pub source_bytes: u64,
    /// Bytes of all stripes and the file table.
    pub stored_bytes: u64,
    /// Entries of the file table.
    pub file_count: u64,
    /// Files that were dropped by the server while the backup ran.
    pub vanished_file_count: u64,
    /// The file table object.
    pub file_table: ObjectDigest,
    /// Checksums of the pages in the stripes, which a later set is compared with; None if the set has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub page_sums: Option<PageSums>,
    /// The SHA-256 digests of all frames, by which a signature of this document is one of the content, too; None if the set was
    /// not signed when it was made, or is encrypted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frame_digests: Option<ObjectDigest>,
    /// The stripes in order.
    pub stripes: Vec<StripeRecord>,
    /// How the set is encrypted; None if it is not.
    pub encryption: Option<Encryption>,
    /// The parity stripes; None if the set has none.
    pub parity: Option<ParityRecord>,
    /// What PostgreSQL said.
    pub postgres: PostgresRecord,
    /// How many pages of the source were damaged.
    pub bad_page_count: u64,
    /// The damaged pages, up to a bound.
    pub bad_pages: Vec<BadPage>,
    /// How many files the catalogs named that the source no longer had.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub lost_file_count: u64,
    /// Those files, up to a bound.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lost_files: Vec<LostFile>,
}

/// The chain that a full set was made of; for people, as those sets may be gone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SynthesizedFrom {
    /// The set whose content it has.
    pub label: BackupLabel,
    /// That set's id, 32 hexadecimal digits.
    pub set_id: String,
    /// The sets that it needed, nearest first.
    pub prior: Vec<BackupLabel>,
    /// When it was made, RFC 3339 in UTC.
    pub synthesized_at: String,
}

/// The checksums of the pages in the stripes' frames.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PageSums {
    /// Raw bytes that one sum is of.
    pub page_size_bytes: u32,
    /// One object for each stripe, in order.
    pub objects: Vec<ObjectDigest>,
}

/// One stripe.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StripeRecord {
    /// File name in its directory.
    pub name: String,
    /// The directory given with --stripe-to, absolute; null if it lies beside the manifest.
    pub directory: Option<String>,
    /// Its size.
    pub size_bytes: u64,
    /// How many frames it has.
    pub frame_count: u64,
    /// XXH3-64 of its index, 16 hexadecimal digits.
    pub index_xxh3: String,
}

/// The parity stripes of a set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ParityRecord {
    /// The object that says which frames each row is of: the trailer of parity stripe 0.
    pub rows: ObjectDigest,
    /// In order; their frames are rows.
    pub stripes: Vec<StripeRecord>,
}

/// What the server said when the backup ran.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PostgresRecord {
    /// `server_version_num`, such as 150020.
    pub version_num: u32,
    /// The cluster's system identifier, as text because JSON numbers are too small for it.
    pub system_identifier: String,
    /// Timeline of the backup.
    pub timeline: TimelineId,
    /// Where replay starts.
    pub start_lsn: Lsn,
    /// Where the cluster is consistent.
    pub stop_lsn: Lsn,
    /// When the backup ended by the server's clock, RFC 3339 in UTC; not in sets of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_time: Option<String>,
    /// WAL segment size.
    pub wal_segment_size_bytes: u64,
    /// Page size.
    pub block_size_bytes: u32,
    /// Whether pages have checksums.
    pub data_checksums: bool,
    /// The data directory it was read from.
    pub data_directory: String,
    /// The operating system user that owns it, by name.
    pub owner: Option<String>,
    /// Tablespaces outside of it.
    pub tablespaces: Vec<Tablespace>,
    /// Names of the WAL segments inside the set.
    pub wal_segments: Vec<String>,
    /// Configuration files outside the data directory: not in the set.
    pub external_files: Vec<String>,
    /// The databases when the backup began; older sets do not know them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub databases: Option<Vec<Database>>,
    /// Name of the superuser that initdb made; older sets do not know it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bootstrap_role: Option<String>,
    /// When the server was started, in microseconds since 1970 by its own clock; not known of remote servers and in older
    /// sets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub postmaster_start_us: Option<u64>,
}

/// One tablespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tablespace {
    /// Its OID, the name of the link in pg_tblspc.
    pub oid: u32,
    /// Its directory on the source.
    pub location: String,
}

/// One database.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Database {
    /// Its OID, the name of its directory below `base` and in each tablespace.
    pub oid: u32,
    /// Its name.
    pub name: String,
    /// Whether it is there to make others from.
    pub is_template: bool,
}

/// A damaged page of the source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BadPage {
    /// File, relative to the data directory.
    pub path: String,
    /// Page of that file, from 0.
    pub page: u32,
    /// What is wrong with it.
    pub reason: String,
}

/// A file that the source should have had and had not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LostFile {
    /// File, or directory of a database, relative to the data directory.
    pub path: String,
    /// Whose it is, such as `public.orders in shop`; None if no relation's, or not known.
    pub relation: Option<String>,
    /// How it is known that it should be there.
    pub reason: String,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// Formats a hash for the manifest.
pub fn hex64(hash: u64) -> String {
    format!("{hash:016x}")
}

const CHECKSUM_KEY: &str = "manifest_xxh3";

impl Manifest {
    /// The stripes, then those of parity.
    pub fn all_stripes(&self) -> impl Iterator<Item = &StripeRecord> {
        self.stripes.iter().chain(self.parity_stripes())
    }

    /// The parity stripes.
    pub fn parity_stripes(&self) -> &[StripeRecord] {
        self.parity.as_ref().map_or(&[], |parity| &parity.stripes)
    }

    /// The objects beside it that are no stripes.
    pub fn other_objects(&self) -> impl Iterator<Item = &ObjectDigest> {
        let sums = self.page_sums.iter().flat_map(|sums| &sums.objects);
        let rows = self.parity.iter().map(|parity| &parity.rows);
        sums.chain(&self.frame_digests).chain(rows).chain([&self.file_table])
    }

    /// Bytes of all its objects but the manifest itself: what `stored_bytes` is to say.
    pub fn object_bytes(&self) -> u64 {
        let stripes: u64 = self.all_stripes().map(|stripe| stripe.size_bytes).sum();
        stripes + self.other_objects().map(|object| object.size_bytes).sum::<u64>()
    }

    /// The id in all frames.
    ///
    /// # Errors
    /// `Damage` if it is not an id.
    pub fn set_id(&self) -> Result<SetId> {
        self.set_id.parse()
    }

    /// The document with its checksum. Of an encrypted set it has the public part and what encryption made of the rest.
    ///
    /// # Errors
    /// `Bug` if it cannot be rendered.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        if self.encryption.is_some() {
            return sealed_json::seal(&self.public(), CHECKSUM_KEY);
        }
        sealed_json::seal(self, CHECKSUM_KEY)
    }

    /// Reads a manifest; `name` is what errors call it.
    ///
    /// # Errors
    /// `Damage` if the checksum does not hold, the version is not known, or a rule is broken.
    pub fn from_bytes(bytes: &[u8], name: &str) -> Result<Self> {
        let bad = |cause: &dyn std::fmt::Display| {
            Error::new(ErrorKind::Damage, format!("read manifest {name}"), cause).hint(DOCUMENT_HINT)
        };
        if bytes.len() as u64 > MANIFEST_BYTES_MAX {
            return Err(bad(&"it is too long"));
        }
        let document = sealed_json::open(bytes, CHECKSUM_KEY)
            .ok_or_else(|| bad(&"its checksum does not match: it was changed or cut"))?;
        let version: Version = serde_json::from_slice(&document).map_err(|cause| bad(&cause))?;
        if version.format_version != FORMAT_VERSION {
            return Err(bad(&format!(
                "format version {} is not known to this build, which reads version {FORMAT_VERSION}",
                version.format_version
            ))
            .hint("use the version of pagehaul that wrote it, or a newer one"));
        }
        let manifest: Manifest = serde_json::from_slice(&document).map_err(|cause| bad(&cause))?;
        manifest.check().map_err(|cause| bad(&cause))?;
        Ok(manifest)
    }

    fn check(&self) -> std::result::Result<(), &'static str> {
        if self.stripes.is_empty() || self.stripes.len() > usize::from(STRIPE_COUNT_MAX) {
            return Err("its number of stripes is out of bounds");
        }
        if self.parity.as_ref().is_some_and(|parity| {
            let (parities, stripes) = (parity.stripes.len(), self.stripes.len());
            parities == 0 || parities > usize::from(PARITY_COUNT_MAX) || parities + stripes > SHARDS_MAX
        }) {
            return Err("its number of parity stripes is out of bounds");
        }
        self.check_priors()?;
        if self.set_id.parse::<SetId>().is_err() {
            return Err("its id is none");
        }
        let bounds = |size: u32, most: u32| (FRAME_SIZE_BYTES_MIN..=most).contains(&size);
        if !bounds(self.frame_size_bytes, FRAME_SIZE_BYTES_MAX)
            || !bounds(self.transfer_size_bytes, TRANSFER_SIZE_BYTES_MAX)
        {
            return Err("its frame or transfer size is out of bounds");
        }
        let mut directories = self.all_stripes().filter_map(|stripe| stripe.directory.as_deref());
        if !directories.all(is_absolute_place) {
            return Err("the directory of a stripe is neither an absolute path nor an object store");
        }
        let others = self.other_objects().map(|object| &object.name);
        let names = self.all_stripes().map(|stripe| &stripe.name).chain(others);
        // Documents are read as they are, encrypted or not: nothing else may have such a name.
        let is_document = |name: &str| name.ends_with(".json") || name.ends_with(".age");
        let is_bad = |name: &str| name.contains('/') || name.starts_with('.') || name.is_empty() || is_document(name);
        if names.into_iter().any(|name| is_bad(name)) {
            return Err("an object name could leave the set's directory, or is that of a document");
        }
        Ok(())
    }

    fn check_priors(&self) -> std::result::Result<(), &'static str> {
        if (self.kind == BackupKind::Full) != self.prior.is_empty() {
            return Err("a full set needs no priors, and any other kind has at least one");
        }
        if self.synthesized_from.is_some() && self.kind != BackupKind::Full {
            return Err("only a full set is made of others");
        }
        if self.prior.len() > PRIOR_COUNT_MAX || self.prior_set_ids.len() != self.prior.len() {
            return Err("its list of priors is too long, or has not an id for each");
        }
        let mut labels: Vec<&BackupLabel> = self.prior.iter().chain([&self.label]).collect();
        labels.sort_unstable();
        if labels.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err("a set is twice in its list of priors, or is its own prior");
        }
        if self.page_sums.as_ref().is_some_and(|sums| {
            sums.objects.len() != self.stripes.len() || !PAGE_SIZES_BYTES.contains(&sums.page_size_bytes)
        }) {
            return Err("its page checksums are not one object for each stripe, or of pages of an unknown size");
        }
        Ok(())
    }

    /// Ids of the priors, in the order of `prior`.
    ///
    /// # Errors
    /// `Damage` if one is not an id.
    pub fn prior_ids(&self) -> Result<Vec<SetId>> {
        self.prior_set_ids.iter().map(|id| id.parse()).collect()
    }
}

#[derive(Deserialize)]
struct Version {
    format_version: u16,
}

#[cfg(test)]
#[path = "manifest_tests.rs"]
pub(crate) mod tests;
