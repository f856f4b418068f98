//! Keys that are made of a passphrase with Argon2id (RFC 9106), as a stanza of our own in age's format: age's own one is
//! scrypt's, and stands alone.

use std::collections::HashSet;
use std::io;

use age::secrecy::{ExposeSecret, SecretString};
use age::{DecryptError, EncryptError};
use age_core::format::{FILE_KEY_BYTES, FileKey, Stanza};
use age_core::primitives::{aead_decrypt, aead_encrypt};
use argon2::{Algorithm, Argon2, Params, Version};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use zeroize::Zeroizing;

/// What the stanza begins with.
const TAG: &str = "pagehaul/argon2id";
const SALT_BYTES: usize = 16;
/// The memory that OWASP's Password Storage Cheat Sheet has as the least for Argon2id, which is what a command's ceiling leaves
/// the program for itself, with five times its passes: as much work as RFC 9106's choice with 64 MiB.
const MEMORY_KIB: u32 = 19 << 10;
const PASSES: u32 = 10;
const LANES: u32 = 1;
/// The most memory, and memory times passes, that a stanza may ask for: who wrote it may be hostile. Some seconds of work.
const MEMORY_KIB_MAX: u32 = 256 << 10;
const WORK_KIB_MAX: u64 = 4 << 20;
const LANES_MAX: u32 = 16;

/// Wraps for everybody who knows a passphrase, and unwraps with it.
#[derive(Clone)]
pub(super) struct Passphrase(SecretString);

/// How the key of one stanza is made.
struct Slot {
    salt: [u8; SALT_BYTES],
    memory_kib: u32,
    passes: u32,
    lanes: u32,
}

impl Slot {
    fn key(&self, passphrase: &SecretString) -> Result<Zeroizing<[u8; 32]>, argon2::Error> {
        let mut key = Zeroizing::new([0u8; 32]);
        let params = Params::new(self.memory_kib, self.passes, self.lanes, Some(key.len()))?;
        let argon2 = Argon2::new(Algorithm::Argon2id, Version::V0x13, params);
        argon2.hash_password_into(passphrase.expose_secret().as_bytes(), &self.salt, key.as_mut())?;
        Ok(key)
    }

    /// Of a stanza's arguments; None for what no stanza has.
    fn read(arguments: &[String]) -> Option<Self> {
        let [salt, memory, passes, lanes] = arguments else { return None };
        let salt = STANDARD_NO_PAD.decode(salt).ok()?.try_into().ok()?;
        Some(Slot { salt, memory_kib: memory.parse().ok()?, passes: passes.parse().ok()?, lanes: lanes.parse().ok()? })
    }

    fn is_too_much_work(&self) -> bool {
        let work = u64::from(self.memory_kib) * u64::from(self.passes);
        self.memory_kib > MEMORY_KIB_MAX || work > WORK_KIB_MAX || self.lanes > LANES_MAX
    }
}

impl Passphrase {
    pub(super) fn new(text: SecretString) -> Self {
        Passphrase(text)
    }
}

impl age::Recipient for Passphrase {
    fn wrap_file_key(&self, file_key: &FileKey) -> Result<(Vec<Stanza>, HashSet<String>), EncryptError> {
        let mut slot = Slot { salt: [0; SALT_BYTES], memory_kib: MEMORY_KIB, passes: PASSES, lanes: LANES };
        getrandom::fill(&mut slot.salt).map_err(|cause| EncryptError::Io(io::Error::other(cause)))?;
        let key = slot.key(&self.0).map_err(|cause| EncryptError::Io(io::Error::other(cause.to_string())))?;
        let numbers = [slot.memory_kib, slot.passes, slot.lanes].map(|number| number.to_string());
        let args = [STANDARD_NO_PAD.encode(slot.salt)].into_iter().chain(numbers).collect();
        // A salt is used once, and so is the key that it gives.
        let body = aead_encrypt(&key, file_key.expose_secret());
        Ok((vec![Stanza { tag: TAG.to_owned(), args, body }], HashSet::new()))
    }
}

impl age::Identity for Passphrase {
    fn unwrap_stanza(&self, stanza: &Stanza) -> Option<Result<FileKey, DecryptError>> {
        if stanza.tag != TAG {
            return None;
        }
        let Some(slot) = Slot::read(&stanza.args) else { return Some(Err(DecryptError::InvalidHeader)) };
        if slot.is_too_much_work() {
            return Some(Err(DecryptError::ExcessiveWork { required: u8::MAX, target: 0 }));
        }
        let Ok(key) = slot.key(&self.0) else { return Some(Err(DecryptError::InvalidHeader)) };
        let opened = aead_decrypt(&key, FILE_KEY_BYTES, &stanza.body).map(Zeroizing::new);
        Some(match opened.as_ref().map(|bytes| <[u8; FILE_KEY_BYTES]>::try_from(bytes.as_slice())) {
            Ok(Ok(bytes)) => Ok(FileKey::new(Box::new(bytes))),
            _ => Err(DecryptError::DecryptionFailed),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of the reference implementation's own tests (phc-winner-argon2, src/test.c, Argon2id, version 0x13).
    #[test]
    fn s12_keys_are_those_of_argon2id() {
        let salt = *b"somesalt\0\0\0\0\0\0\0\0";
        let params = |memory_kib| Params::new(memory_kib, 2, 1, Some(32)).unwrap();
        let mut key = [0u8; 32];
        for (memory_kib, password, expected) in [
            (1 << 16, "password", "09316115d5cf24ed5a15a31a3ba326e5cf32edc24702987c02b6566f61913cf7"),
            (1 << 8, "password", "9dfeb910e80bad0311fee20f9c0e2b12c17987b4cac90c2ef54d5b3021c68bfe"),
            (1 << 16, "differentpassword", "0b84d652cf6b0c4beaef0dfe278ba6a80df6696281d7e0d2891b817d8c458fde"),
        ] {
            let argon2 = Argon2::new(Algorithm::Argon2id, Version::V0x13, params(memory_kib));
            argon2.hash_password_into(password.as_bytes(), &salt[..8], &mut key).unwrap();
            let text: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(text, expected, "{memory_kib} {password}");
        }
    }

    #[test]
    fn s12_a_slot_has_a_salt_of_its_own_and_opens_with_its_passphrase_alone() {
        use age::{Identity as _, Recipient as _};
        let passphrase = |text: &str| Passphrase::new(SecretString::from(text.to_owned()));
        let file_key = || FileKey::new(Box::new([7; FILE_KEY_BYTES]));
        let wrap = || passphrase("right").wrap_file_key(&file_key()).unwrap().0.remove(0);
        let (one, other) = (wrap(), wrap());
        assert_ne!(one.args[0], other.args[0]);
        assert_ne!(one.body, other.body);
        let opened = passphrase("right").unwrap_stanza(&one).unwrap().unwrap();
        assert_eq!(opened.expose_secret(), &[7; FILE_KEY_BYTES]);
        let failed =
            |passphrase: &Passphrase, stanza: &Stanza| passphrase.unwrap_stanza(stanza).unwrap().err().unwrap();
        assert!(matches!(failed(&passphrase("wrong"), &one), DecryptError::DecryptionFailed));
        // Parameters are part of the key, whoever changed them.
        let with = |at: usize, text: &str| {
            let mut args = one.args.clone();
            args[at] = text.to_owned();
            Stanza { tag: TAG.to_owned(), args, body: one.body.clone() }
        };
        assert!(matches!(failed(&passphrase("right"), &with(2, "2")), DecryptError::DecryptionFailed));
        for (at, text) in [(1, "2000000"), (2, "100000"), (3, "17"), (1, "4294967295")] {
            assert!(
                matches!(failed(&passphrase("right"), &with(at, text)), DecryptError::ExcessiveWork { .. }),
                "{text}"
            );
        }
        for (at, text) in [(0, "short"), (1, "-1"), (1, "0"), (2, "0"), (3, "0"), (3, "x")] {
            assert!(matches!(failed(&passphrase("right"), &with(at, text)), DecryptError::InvalidHeader), "{text}");
        }
        let others = Stanza { tag: "X25519".to_owned(), args: one.args.clone(), body: one.body.clone() };
        assert!(passphrase("right").unwrap_stanza(&others).is_none());
    }
}
