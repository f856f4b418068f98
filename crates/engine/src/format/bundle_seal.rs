//! The seal of a signed bundle, behind the members of its table: digests of its frames, who signed, and the signature.

use super::frame::FrameDigest;
use super::wal_bundle::BUNDLE_FRAMES_MAX;
use super::wire::{FieldReader, damaged};
use crate::error::Result;

/// Longest public key of a signer, as text.
const SIGNER_BYTES_MAX: usize = 1024;
/// Longest signature, as text.
const SIGNATURE_BYTES_MAX: usize = 4096;
const WHAT: &str = "a bundle's seal";

/// What was signed of a bundle's content, and by whom.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BundleSeal {
    /// SHA-256 of each frame but that of the table, header and stored bytes together.
    pub frame_digests: Vec<FrameDigest>,
    /// The public key of who signed it, as OpenSSH writes it.
    pub signer: String,
    /// SSH signature, armored.
    pub signature: String,
}

impl BundleSeal {
    /// Appends what is signed of it.
    pub(super) fn put_signed(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&(self.frame_digests.len() as u32).to_le_bytes());
        out.extend_from_slice(self.frame_digests.as_flattened());
        put_text(out, &self.signer);
    }

    /// Appends all of it.
    pub(super) fn put(&self, out: &mut Vec<u8>) {
        self.put_signed(out);
        put_text(out, &self.signature);
    }

    pub(super) fn take(fields: &mut FieldReader<'_>) -> Result<Self> {
        let count = fields.u32()?;
        if u64::from(count) > BUNDLE_FRAMES_MAX {
            return Err(damaged(WHAT, "it has more digests than a bundle has frames"));
        }
        let digests = fields.take(count as usize * size_of::<FrameDigest>())?;
        Ok(BundleSeal {
            frame_digests: digests.as_chunks().0.to_vec(),
            signer: take_text(fields, SIGNER_BYTES_MAX)?,
            signature: take_text(fields, SIGNATURE_BYTES_MAX)?,
        })
    }
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(&(text.len() as u16).to_le_bytes());
    out.extend_from_slice(text.as_bytes());
}

fn take_text(fields: &mut FieldReader<'_>, most_bytes: usize) -> Result<String> {
    let length = usize::from(fields.u16()?);
    if length > most_bytes {
        return Err(damaged(WHAT, "a text is too long"));
    }
    let text = std::str::from_utf8(fields.take(length)?).map_err(|_| damaged(WHAT, "a text is not UTF-8"))?;
    Ok(text.to_owned())
}
