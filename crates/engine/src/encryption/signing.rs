//! Who signs, and whose signatures count: keys of OpenSSH, signatures as `ssh-keygen -Y` makes and checks them.

use std::path::{Path, PathBuf};

use ssh_key::private::{Ed25519Keypair, KeypairData};
use ssh_key::{Algorithm, HashAlg, LineEnding, PrivateKey, PublicKey, SshSig};
use zeroize::Zeroizing;

use super::key_files::{key_lines, read_key_file};
use super::keys::SecretText;
use crate::error::{Error, ErrorKind, Result};

/// What is signed; a signature that was made for something else is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signed {
    /// A list of the sets.
    Head,
    /// An object of the WAL archive.
    Wal,
}

impl Signed {
    fn namespace(self) -> &'static str {
        match self {
            Signed::Head => "pagehaul-head",
            Signed::Wal => "pagehaul-wal",
        }
    }

    fn action(self) -> &'static str {
        match self {
            Signed::Head => "sign the head",
            Signed::Wal => "sign WAL",
        }
    }
}

const KEY_HINT: &str =
    "ssh-keygen -t ed25519 -N '' -f FILE makes a pair, and so does `pagehaul key new --signing --output FILE`";

/// The keys about signatures that a process has.
#[derive(Default)]
pub struct Signing {
    sign_key: Option<PrivateKey>,
    /// Whose signatures count: those named, and its own.
    signers: Vec<PublicKey>,
}

impl Signing {
    /// Reads the key that signs, and the public keys; those are written out, or the paths of files that have them.
    pub(super) fn load(sign_key: Option<&Path>, signers: &[String]) -> Result<Self> {
        let mut known = Vec::new();
        for text in signers {
            match is_written_out(text) {
                true => known.push(public_key(text, "--signer")?),
                false => {
                    let path = PathBuf::from(text);
                    for line in key_lines(&read_key_file(&path, false)?) {
                        known.push(public_key(line, &path.display().to_string())?);
                    }
                }
            }
        }
        let sign_key = sign_key.map(private_key).transpose()?;
        known.extend(sign_key.as_ref().map(|key| key.public_key().clone()));
        Ok(Signing { sign_key, signers: known })
    }

    pub(super) fn signs(&self) -> bool {
        self.sign_key.is_some()
    }

    pub(super) fn is_asked_for(&self) -> bool {
        !self.signers.is_empty()
    }

    /// The public key of who signs, and the signature of what `content` makes of it.
    ///
    /// # Errors
    /// `Configuration` without a key that signs; those of `content`.
    pub fn sign(&self, signed: Signed, content: impl FnOnce(&str) -> Result<Vec<u8>>) -> Result<(String, String)> {
        let failed = |cause: &dyn std::fmt::Display| Error::new(ErrorKind::Bug, signed.action(), cause);
        let key = self.sign_key.as_ref().ok_or_else(|| {
            Error::new(ErrorKind::Configuration, signed.action(), "there is no key to sign with")
                .hint("give --sign-key FILE")
        })?;
        // The comment is nobody's business.
        let public = PublicKey::from(key.public_key().key_data().clone());
        let signer = public.to_openssh().map_err(|cause| failed(&cause))?;
        let content = content(&signer)?;
        let signature = key.sign(signed.namespace(), HashAlg::Sha512, &content).map_err(|cause| failed(&cause))?;
        Ok((signer, signature.to_pem(LineEnding::LF).map_err(|cause| failed(&cause))?))
    }

    /// Whether `signature` of `content` is by somebody whose signatures count.
    ///
    /// # Errors
    /// The cause, if it is not.
    pub fn check(
        &self,
        signed: Signed,
        content: &[u8],
        signer: &str,
        signature: &str,
    ) -> std::result::Result<(), String> {
        let signer =
            PublicKey::from_openssh(signer).map_err(|cause| format!("the key of its signer does not read: {cause}"))?;
        let fingerprint = signer.fingerprint(HashAlg::Sha256);
        let known = self.signers.iter().find(|known| known.key_data() == signer.key_data());
        let known = known.ok_or_else(|| format!("it is signed by {fingerprint}, who is none of the given signers"))?;
        let signature = SshSig::from_pem(signature).map_err(|cause| format!("its signature does not read: {cause}"))?;
        known
            .verify(signed.namespace(), content, &signature)
            .map_err(|_| "its signature is of something else: it was changed".to_owned())
    }
}

/// Whether a signer is a public key itself, and not the path of a file with some.
pub(super) fn is_written_out(signer: &str) -> bool {
    signer.trim().starts_with("ssh-")
}

/// A new key pair that signs: the secret one as OpenSSH writes it, and the public one, `ssh-ed25519 ...`.
///
/// # Errors
/// `Bug` if the library refuses.
pub fn new_sign_key() -> Result<(SecretText, String)> {
    let failed = |cause: &dyn std::fmt::Display| Error::new(ErrorKind::Bug, "make a signing key", cause);
    let mut seed = Zeroizing::new([0u8; 32]);
    getrandom::fill(seed.as_mut()).map_err(|cause| failed(&cause))?;
    let pair = KeypairData::Ed25519(Ed25519Keypair::from_seed(&seed));
    let key = PrivateKey::new(pair, "pagehaul").map_err(|cause| failed(&cause))?;
    let text = key.to_openssh(LineEnding::LF).map_err(|cause| failed(&cause))?;
    let public = key.public_key().to_openssh().map_err(|cause| failed(&cause))?;
    Ok((SecretText::new(text.to_string()), public))
}

fn public_key(text: &str, from: &str) -> Result<PublicKey> {
    let failed = |cause: &dyn std::fmt::Display| {
        // What was typed may be a secret key by mistake, and is not repeated.
        Error::new(ErrorKind::Configuration, format!("read a signer of {from}"), cause).hint(KEY_HINT)
    };
    let key = PublicKey::from_openssh(text.trim()).map_err(|cause| failed(&cause))?;
    match key.algorithm() {
        Algorithm::Ed25519 => Ok(key),
        other => Err(failed(&format!("it is a key of kind {}, and only ssh-ed25519 is known", other.as_str()))),
    }
}

fn private_key(path: &Path) -> Result<PrivateKey> {
    let failed = |cause: &dyn std::fmt::Display| {
        Error::new(ErrorKind::Configuration, format!("read the signing key {}", path.display()), cause).hint(KEY_HINT)
    };
    let key = PrivateKey::from_openssh(read_key_file(path, true)?.as_bytes()).map_err(|cause| failed(&cause))?;
    if key.is_encrypted() {
        return Err(failed(&"it has a passphrase, and nobody is there to type it"));
    }
    match key.algorithm() {
        Algorithm::Ed25519 => Ok(key),
        other => Err(failed(&format!("it is a key of kind {}, and only ssh-ed25519 is known", other.as_str()))),
    }
}
