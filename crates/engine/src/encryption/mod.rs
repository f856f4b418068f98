//! Encryption of what is stored: whole objects, so that everything above reads and writes as if there were none.
//!
//! A process writes under one data key, which it makes at random and wraps for its recipients (`keys.rs`). Each object has a
//! key of its own, derived from the data key and the object's header, and is sealed in chunks (`chunks.rs`) that know their
//! place and whether they are the last. `storage.rs` does that below the storage trait.

mod chunks;
mod key_files;
mod keys;
mod object;
mod passphrase;
mod rewrap;
mod signing;
mod storage;

pub use keys::{DataKey, KeySources, Keys, SecretText, hide_memory, new_identity};
pub use object::{ENCRYPTED_READER_BYTES, decrypt_bytes, encrypt_bytes, keys_of_object};
pub use rewrap::Rewrapping;
pub use signing::{Signed, Signing, new_sign_key};
pub use storage::EncryptedStorage;

#[cfg(test)]
mod tests;
