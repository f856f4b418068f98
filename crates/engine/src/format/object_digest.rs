//! What a manifest says of an object beside it: its size, a checksum against accidents, and a digest that nobody can forge.

use std::hash::Hasher;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::checksum::hex;

/// Name, size and hashes of one object beside the manifest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ObjectDigest {
    /// Object name in the set's directory.
    pub name: String,
    /// Its size.
    pub size_bytes: u64,
    /// XXH3-64 of its bytes, 16 hexadecimal digits.
    pub xxh3: String,
    /// SHA-256 of its bytes, 64 hexadecimal digits; not in sets of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
}

impl ObjectDigest {
    /// Of the object `name` whose bytes have these sums.
    pub fn new(name: String, sums: &ObjectSums) -> Self {
        let (xxh3, sha256) = (hex(&sums.xxh3.to_be_bytes()), Some(hex(&sums.sha256)));
        ObjectDigest { name, size_bytes: sums.size_bytes, xxh3, sha256 }
    }

    /// Whether bytes with these sums are the object's.
    pub fn fits(&self, sums: &ObjectSums) -> bool {
        self.size_bytes == sums.size_bytes
            && self.xxh3 == hex(&sums.xxh3.to_be_bytes())
            && self.sha256.as_ref().is_none_or(|sha256| *sha256 == hex(&sums.sha256))
    }
}

/// Size and hashes of an object's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectSums {
    /// How many bytes.
    pub size_bytes: u64,
    /// XXH3-64 of them.
    pub xxh3: u64,
    /// SHA-256 of them.
    pub sha256: [u8; 32],
}

impl ObjectSums {
    /// Of `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        let mut hasher = ObjectHasher::default();
        hasher.update(bytes);
        hasher.finish()
    }
}

/// Sums up an object's bytes in their order.
#[derive(Clone, Default)]
pub struct ObjectHasher {
    size_bytes: u64,
    xxh3: twox_hash::XxHash3_64,
    sha256: Sha256,
}

impl ObjectHasher {
    /// The next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.size_bytes += bytes.len() as u64;
        self.xxh3.write(bytes);
        self.sha256.update(bytes);
    }

    /// The sums of all of them.
    pub fn finish(self) -> ObjectSums {
        ObjectSums { size_bytes: self.size_bytes, xxh3: self.xxh3.finish(), sha256: self.sha256.finalize().into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_is_told_from_another_one_by_each_of_its_sums() {
        let sums = ObjectSums::of(b"abc");
        let digest = ObjectDigest::new("files.table".to_owned(), &sums);
        // FIPS 180-2, appendix B.1.
        let known = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!((digest.size_bytes, digest.sha256.as_deref()), (3, Some(known)));
        let mut hasher = ObjectHasher::default();
        hasher.update(b"a");
        hasher.update(b"bc");
        assert!(digest.fits(&hasher.finish()));
        let forged = ObjectSums { sha256: ObjectSums::of(b"abd").sha256, ..sums };
        assert!(!digest.fits(&forged) && !digest.fits(&ObjectSums { xxh3: 1, ..sums }));
        assert!(!digest.fits(&ObjectSums { size_bytes: 4, ..sums }));
        // Sets of older versions have no SHA-256.
        assert!(ObjectDigest { sha256: None, ..digest }.fits(&forged));
    }
}
