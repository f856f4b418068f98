//! What a manifest of an encrypted set shows to everybody, and what only to who has the key.
//!
//! What orders, removes and copies sets is public: labels, ids, positions in WAL, sizes, where objects lie. What tells of the
//! database is private: names, paths, descriptions.

use serde::{Deserialize, Serialize};

use super::checksum::sha256_hex;
use super::manifest::{BadPage, Database, LostFile, Manifest, Tablespace};
use crate::error::{Error, ErrorKind, Result};

/// How a set is encrypted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Encryption {
    /// Id of the data key that all its objects are encrypted with, 64 hexadecimal digits.
    pub key_id: String,
    /// The private part of the manifest, an encrypted object in base64.
    pub private: String,
}

/// The private part.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PrivatePart {
    /// SHA-256 of the public part, 64 hexadecimal digits: it cannot be changed without the key.
    pub public_sha256: String,
    description: Option<String>,
    data_directory: String,
    owner: Option<String>,
    tablespaces: Vec<Tablespace>,
    external_files: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    databases: Option<Vec<Database>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    bootstrap_role: Option<String>,
    bad_pages: Vec<BadPage>,
    lost_files: Vec<LostFile>,
}

impl Manifest {
    /// The manifest without what is private.
    pub(super) fn public(&self) -> Manifest {
        let mut public = self.clone();
        public.put_private(PrivatePart::default());
        public
    }

    /// What is private, bound to what is public.
    ///
    /// # Errors
    /// `Bug` if it cannot be rendered.
    pub fn private_part(&self) -> Result<PrivatePart> {
        let postgres = self.postgres.clone();
        Ok(PrivatePart {
            public_sha256: self.public_sha256()?,
            description: self.description.clone(),
            data_directory: postgres.data_directory,
            owner: postgres.owner,
            tablespaces: postgres.tablespaces,
            external_files: postgres.external_files,
            databases: postgres.databases,
            bootstrap_role: postgres.bootstrap_role,
            bad_pages: self.bad_pages.clone(),
            lost_files: self.lost_files.clone(),
        })
    }

    /// Adds what is private to what is public.
    pub fn put_private(&mut self, private: PrivatePart) {
        self.description = private.description;
        self.postgres.data_directory = private.data_directory;
        self.postgres.owner = private.owner;
        self.postgres.tablespaces = private.tablespaces;
        self.postgres.external_files = private.external_files;
        self.postgres.databases = private.databases;
        self.postgres.bootstrap_role = private.bootstrap_role;
        self.bad_pages = private.bad_pages;
        self.lost_files = private.lost_files;
    }

    /// Whether the private part is missing.
    pub fn is_locked(&self) -> bool {
        // A remote server may not have told its directory, but then the databases are known.
        self.encryption.is_some() && self.postgres.data_directory.is_empty() && self.postgres.databases.is_none()
    }

    /// SHA-256 of the public part as JSON without blanks. Where the stripes lie is left out: a copy has them elsewhere.
    ///
    /// # Errors
    /// `Bug` if it cannot be rendered.
    pub fn public_sha256(&self) -> Result<String> {
        let mut public = self.public();
        public.encryption = None;
        let parities = public.parity.iter_mut().flat_map(|parity| &mut parity.stripes);
        public.stripes.iter_mut().chain(parities).for_each(|stripe| stripe.directory = None);
        let text = serde_json::to_vec(&public)
            .map_err(|cause| Error::new(ErrorKind::Bug, "render the public part of a manifest", cause))?;
        Ok(sha256_hex(&text))
    }
}
