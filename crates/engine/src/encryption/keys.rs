//! Who may read what is written, and what this process can read.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use age::secrecy::{ExposeSecret, SecretString};
use ring::hkdf;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use super::key_files::{identities_in, key_lines, read_key_file, read_passphrase, recipient, run_key_command};
use super::passphrase::Passphrase;
use super::signing::{Signing, is_written_out};
use crate::error::{Error, ErrorKind, Result};
use crate::format::encrypted::{ENCRYPTED_HEADER_BYTES_MAX, EncryptedHeader};
use crate::storage::Storage;
use crate::terms::KeyId;

const DATA_KEY_BYTES: usize = 32;

/// A new key pair: the secret one, `AGE-SECRET-KEY-1...`, and the public one, `age1...`.
pub fn new_identity() -> (SecretText, String) {
    let identity = age::x25519::Identity::generate();
    (SecretText(identity.to_string()), identity.to_public().to_string())
}

/// A secret on its way into a file; it is wiped when it is dropped, and not shown by what prints values.
pub struct SecretText(SecretString);

impl SecretText {
    pub(super) fn new(text: String) -> Self {
        SecretText(SecretString::from(text))
    }

    /// The secret itself.
    pub fn text(&self) -> &str {
        self.0.expose_secret()
    }
}

/// 32 random bytes that the keys of objects are derived from.
pub struct DataKey(Zeroizing<[u8; DATA_KEY_BYTES]>);

impl DataKey {
    fn random() -> Result<Self> {
        let mut bytes = Zeroizing::new([0u8; DATA_KEY_BYTES]);
        getrandom::fill(bytes.as_mut())
            .map_err(|cause| Error::new(ErrorKind::Configuration, "make a data key", cause))?;
        Ok(DataKey(bytes))
    }

    pub(super) fn bytes(&self) -> &[u8] {
        self.0.as_slice()
    }

    /// What it is known by. A key that is not the one that sealed an object has another id, so a wrong key is told from
    /// damage before anything is opened.
    ///
    /// # Errors
    /// `Bug` if the library refuses.
    pub fn id(&self) -> Result<KeyId> {
        let refused = |_| Error::new(ErrorKind::Bug, "derive the id of a data key", "the library refuses");
        let key = hkdf::Salt::new(hkdf::HKDF_SHA256, &[]).extract(self.bytes());
        let mut id = [0u8; 32];
        let parts: [&[u8]; 1] = [b"pagehaul key id 1"];
        key.expand(&parts, hkdf::HKDF_SHA256).map_err(refused)?.fill(&mut id).map_err(refused)?;
        Ok(KeyId(id))
    }
}

/// For whom data keys are wrapped: public keys of age, `age1...`, for which who writes cannot read; everybody who knows the
/// passphrase, who writes too.
struct Recipients(Vec<Box<dyn age::Recipient + Send + Sync>>);

impl Recipients {
    fn wrap(&self, key: &DataKey) -> Result<Vec<u8>> {
        let failed = |cause: &dyn std::fmt::Display| {
            Error::new(ErrorKind::Configuration, "wrap the data key for its recipients", cause)
        };
        let recipients = self.0.iter().map(|recipient| recipient.as_ref() as &dyn age::Recipient);
        let encryptor = age::Encryptor::with_recipients(recipients);
        let mut wrapped = Vec::new();
        let mut writer =
            encryptor.map_err(|cause| failed(&cause))?.wrap_output(&mut wrapped).map_err(|cause| failed(&cause))?;
        std::io::Write::write_all(&mut writer, key.bytes()).map_err(|cause| failed(&cause))?;
        writer.finish().map_err(|cause| failed(&cause))?;
        Ok(wrapped)
    }
}

/// Where keys come from, as the user names it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeySources {
    /// Public keys, `age1...`.
    pub recipients: Vec<String>,
    /// Files with a public key a line.
    pub recipients_files: Vec<PathBuf>,
    /// Files with an identity, `AGE-SECRET-KEY-1...`, a line.
    pub identity_files: Vec<PathBuf>,
    /// A program, with its arguments, that prints identities.
    pub key_command: Option<String>,
    /// A file with a passphrase: its first line.
    pub passphrase_file: Option<PathBuf>,
    /// Where recipients are named, the passphrase is none of them: it reads what is to be written for others.
    #[serde(default)]
    pub passphrase_only_reads: bool,
    /// Refuse what is not encrypted.
    pub require_encryption: bool,
    /// File with the key that signs heads and WAL.
    #[serde(default)]
    pub sign_key_file: Option<PathBuf>,
    /// Public keys whose signatures count, or files that have them.
    #[serde(default)]
    pub signers: Vec<String>,
    /// Directory that remembers the newest head that was seen of each source; none remembers nothing.
    #[serde(default)]
    pub known_heads: Option<PathBuf>,
    /// Times and sizes of the files when they were read: a process that works for another one is not asked any more when
    /// these have changed.
    #[serde(default)]
    pub stamps: Vec<String>,
}

impl KeySources {
    /// Adds those of `other`; of commands and passphrases the first one stays.
    pub fn add(&mut self, other: KeySources) {
        fn join<T: PartialEq>(all: &mut Vec<T>, more: Vec<T>) {
            for one in more {
                if !all.contains(&one) {
                    all.push(one);
                }
            }
        }
        join(&mut self.recipients, other.recipients);
        join(&mut self.recipients_files, other.recipients_files);
        join(&mut self.identity_files, other.identity_files);
        self.key_command = self.key_command.take().or(other.key_command);
        self.passphrase_file = self.passphrase_file.take().or(other.passphrase_file);
        self.passphrase_only_reads |= other.passphrase_only_reads;
        self.require_encryption |= other.require_encryption;
        self.sign_key_file = self.sign_key_file.take().or(other.sign_key_file);
        join(&mut self.signers, other.signers);
        self.known_heads = self.known_heads.take().or(other.known_heads);
    }

    /// The same with absolute paths, for a process that runs elsewhere.
    ///
    /// # Errors
    /// `Usage` if the working directory is not known.
    pub fn absolute(&self) -> Result<Self> {
        let absolute = |path: &PathBuf| {
            std::path::absolute(path)
                .map_err(|cause| Error::new(ErrorKind::Usage, format!("use {}", path.display()), cause))
        };
        let absolute_signer = |signer: &String| match is_written_out(signer) {
            true => Ok(signer.clone()),
            false => absolute(&PathBuf::from(signer)).map(|path| path.display().to_string()),
        };
        Ok(KeySources {
            recipients_files: self.recipients_files.iter().map(absolute).collect::<Result<_>>()?,
            identity_files: self.identity_files.iter().map(absolute).collect::<Result<_>>()?,
            passphrase_file: self.passphrase_file.as_ref().map(absolute).transpose()?,
            sign_key_file: self.sign_key_file.as_ref().map(absolute).transpose()?,
            signers: self.signers.iter().map(absolute_signer).collect::<Result<_>>()?,
            known_heads: self.known_heads.as_ref().map(absolute).transpose()?,
            stamps: self.files().map(|path| stamp(&path)).collect(),
            ..self.clone()
        })
    }

    /// All files that are read.
    fn files(&self) -> impl Iterator<Item = PathBuf> {
        let signers = self.signers.iter().filter(|signer| !is_written_out(signer)).map(PathBuf::from);
        let named = self.recipients_files.iter().chain(&self.identity_files).chain(&self.sign_key_file);
        named.cloned().chain(signers)
    }

    /// The words of a command line that reads with these keys; no secret is among them.
    pub fn reading_flags(&self) -> Vec<String> {
        let file = |flag: &str, path: &PathBuf| [flag.to_owned(), path.display().to_string()];
        let identities = self.identity_files.iter().flat_map(|path| file("--identity", path));
        let passphrase = self.passphrase_file.iter().flat_map(|path| file("--passphrase-file", path));
        let command = self.key_command.iter().flat_map(|command| ["--key-command".to_owned(), command.clone()]);
        let signers = self.signers.iter().flat_map(|signer| ["--signer".to_owned(), signer.clone()]);
        identities.chain(passphrase).chain(command).chain(signers).collect()
    }
}

/// The key that a process writes with, and how its recipients get it.
pub(super) struct OwnKey {
    pub(super) key: Arc<DataKey>,
    pub(super) id: KeyId,
    pub(super) wrapped: Vec<u8>,
}

type Identities = Vec<Box<dyn age::Identity + Send + Sync>>;

/// The keys of a process.
#[derive(Default)]
pub struct Keys {
    recipients: Option<Arc<Recipients>>,
    identities: Arc<Identities>,
    signing: Arc<Signing>,
    sources: KeySources,
    own: OnceLock<OwnKey>,
    known: Mutex<BTreeMap<KeyId, Arc<DataKey>>>,
    /// Memory of readers that are done, for the next ones.
    pub(super) scratch: Mutex<Vec<Vec<u8>>>,
}

static OF_PROCESS: OnceLock<Arc<Keys>> = OnceLock::new();

impl Keys {
    /// Reads the keys that `sources` name.
    ///
    /// # Errors
    /// `Configuration` for a file that does not read, that others may read, or that has no key in it.
    pub fn load(sources: &KeySources) -> Result<Self> {
        let mut recipients: Vec<Box<dyn age::Recipient + Send + Sync>> = Vec::new();
        for text in &sources.recipients {
            recipients.push(Box::new(recipient(text, "--recipient")?));
        }
        for path in &sources.recipients_files {
            for line in key_lines(&read_key_file(path, false)?) {
                recipients.push(Box::new(recipient(line, &path.display().to_string())?));
            }
        }
        let mut identities: Vec<Box<dyn age::Identity + Send + Sync>> = Vec::new();
        for path in &sources.identity_files {
            identities.extend(identities_in(&read_key_file(path, true)?, &path.display().to_string())?);
        }
        if let Some(command) = &sources.key_command {
            identities.extend(identities_in(&run_key_command(command)?, "what the key command printed")?);
        }
        if let Some(path) = &sources.passphrase_file {
            let passphrase = Passphrase::new(read_passphrase(path)?);
            if recipients.is_empty() || !sources.passphrase_only_reads {
                recipients.push(Box::new(passphrase.clone()));
            }
            // Behind the others, whose stanzas are told from those of other keys at once.
            identities.push(Box::new(passphrase));
        }
        let recipients = (!recipients.is_empty()).then(|| Arc::new(Recipients(recipients)));
        let signing = Arc::new(Signing::load(sources.sign_key_file.as_deref(), &sources.signers)?);
        let (identities, sources) = (Arc::new(identities), sources.absolute()?);
        Ok(Keys { recipients, identities, signing, sources, ..Keys::default() })
    }

    /// Memory of a reader that is done, by preference just enough for `size` bytes: many small reads do not make as many large ones of them.
    pub(super) fn take_scratch(&self, size: usize) -> Vec<u8> {
        let mut scratch = self.scratch.lock().unwrap_or_else(PoisonError::into_inner);
        let order = |bytes: &Vec<u8>| (bytes.capacity() < size, bytes.capacity().abs_diff(size));
        let best = (0..scratch.len()).min_by_key(|place| order(&scratch[*place]));
        best.map(|place| scratch.swap_remove(place)).unwrap_or_default()
    }

    /// Makes these the keys of the process; what repositories are opened from here on use. The first ones stay.
    pub fn install(self) {
        if !self.identities.is_empty() || self.signs() {
            hide_memory();
        }
        drop(OF_PROCESS.set(Arc::new(self)));
    }

    /// The keys of the process: none, unless some were installed.
    pub fn of_process() -> Arc<Keys> {
        OF_PROCESS.get().map_or_else(Arc::default, Arc::clone)
    }

    /// Whether what is written is encrypted.
    pub fn encrypts(&self) -> bool {
        self.recipients.is_some() || self.own.get().is_some()
    }

    /// Whether what is not encrypted is refused.
    pub fn require_encryption(&self) -> bool {
        self.sources.require_encryption
    }

    /// Where they come from, with absolute paths.
    pub fn sources(&self) -> &KeySources {
        &self.sources
    }

    /// The data key for what is written; None without recipients.
    ///
    /// # Errors
    /// `Configuration` if it cannot be wrapped.
    pub(super) fn own(&self) -> Result<Option<&OwnKey>> {
        if self.own.get().is_none()
            && let Some(recipients) = &self.recipients
        {
            let key = Arc::new(DataKey::random()?);
            let own = OwnKey { id: key.id()?, wrapped: recipients.wrap(&key)?, key };
            // Who was faster has made the one that counts.
            drop(self.own.set(own));
        }
        Ok(self.own.get())
    }

    /// The data key of the object with this header; where no key at hand opens what it has, what was wrapped since for
    /// others is looked for in `home`, the repository's own storage.
    ///
    /// # Errors
    /// `Configuration` if no key at hand opens any, `Damage` if it is not what was wrapped; those of the storage.
    pub(super) fn unwrap(&self, header: &EncryptedHeader, home: &dyn Storage) -> Result<Arc<DataKey>> {
        let (id, what) = (header.key_id, header.name.as_str());
        if let Some(own) = self.own.get().filter(|own| own.id == id) {
            return Ok(Arc::clone(&own.key));
        }
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(key) = known.get(&id) {
            return Ok(Arc::clone(key));
        }
        let key = match self.open(&header.wrapped_key, what) {
            Err(locked) if locked.kind() == ErrorKind::Configuration && !self.identities.is_empty() => {
                let later = rewrapped(home, header)?;
                later.iter().find_map(|wrapped| self.open(wrapped, what).ok()).ok_or(locked)?
            }
            opened => opened?,
        };
        let key = Arc::new(key);
        if key.id()? != id {
            let cause =
                "the wrapped key in its header is not the one that it was encrypted with: the header is damaged";
            return Err(Error::new(ErrorKind::Damage, format!("decrypt {what}"), cause));
        }
        known.insert(id, Arc::clone(&key));
        Ok(key)
    }

    /// The same keys without recipients: they read, and write in clear.
    pub fn that_only_read(&self) -> Keys {
        self.shared()
    }

    /// The same keys with a data key of their own for what they write.
    pub fn that_write_anew(&self) -> Keys {
        Keys { recipients: self.recipients.clone(), ..self.shared() }
    }

    /// What keys have in common that are made of these.
    fn shared(&self) -> Keys {
        let (identities, signing) = (Arc::clone(&self.identities), Arc::clone(&self.signing));
        Keys { identities, signing, sources: self.sources.clone(), ..Keys::default() }
    }

    /// Whether heads and WAL are signed.
    pub fn signs(&self) -> bool {
        self.signing.signs()
    }

    /// Whether the manifests that are written are to name digests of all content: they are signed, and no encryption binds it.
    pub fn bind_content(&self) -> bool {
        self.signs() && !self.encrypts()
    }

    /// Whether only sets count that somebody known has signed.
    pub fn asks_for_signatures(&self) -> bool {
        self.signing.is_asked_for()
    }

    /// Whether it was said whose signatures count.
    pub fn names_signers(&self) -> bool {
        !self.sources.signers.is_empty()
    }

    /// Keys that read and write in clear, and sign.
    pub fn that_only_sign(&self) -> Keys {
        Keys { identities: Arc::default(), ..self.shared() }
    }

    /// What signs and checks.
    pub fn signing(&self) -> &Signing {
        &self.signing
    }

    /// Whether what is encrypted for somebody can be tried to be read.
    pub fn has_identities(&self) -> bool {
        !self.identities.is_empty()
    }

    /// Keys that write with the data key of the object with this header, and for whom that was wrapped.
    ///
    /// # Errors
    /// As [`Keys::unwrap`].
    pub(super) fn that_write_as(&self, header: &EncryptedHeader, home: &dyn Storage) -> Result<Keys> {
        let own = OwnKey { key: self.unwrap(header, home)?, id: header.key_id, wrapped: header.wrapped_key.clone() };
        Ok(Keys { own: OnceLock::from(own), ..self.shared() })
    }

    /// Wraps the data key of the object with this header for the recipients, as a new object of `home`.
    ///
    /// # Errors
    /// `Usage` without recipients; as [`Keys::unwrap`]; those of the storage.
    pub(super) fn rewrap(&self, header: &EncryptedHeader, home: &dyn Storage) -> Result<()> {
        let recipients = self.recipients.as_ref().ok_or_else(|| {
            Error::new(ErrorKind::Usage, "wrap data keys anew", "no recipient is named")
                .hint("name the new one with --recipient, and the old key with --identity")
        })?;
        let key = self.unwrap(header, home)?;
        let wrapped = recipients.wrap(&key)?;
        let prefix = rewrapped_prefix(header);
        let numbers = home.list(&prefix)?;
        let numbers = numbers.iter().filter_map(|name| name.strip_suffix(".age")?.parse::<u32>().ok());
        let number = numbers.max().unwrap_or(0) + 1;
        let name = format!("{prefix}/{number:04}.age");
        if home.put_new(&name, &wrapped)? {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Conflict, format!("store {name}"), "somebody else wraps the same key now"))
    }

    fn open(&self, wrapped: &[u8], what: &str) -> Result<DataKey> {
        let damaged = |cause: &dyn std::fmt::Display| {
            Error::new(ErrorKind::Damage, format!("decrypt {what}"), format!("its wrapped key is damaged: {cause}"))
        };
        let locked = |cause: &str| {
            Error::new(ErrorKind::Configuration, format!("decrypt {what}"), cause)
                .hint("give --identity FILE, --key-command or --passphrase-file of one of its recipients")
        };
        let decryptor = age::Decryptor::new_buffered(wrapped).map_err(|cause| damaged(&cause))?;
        if self.identities.is_empty() {
            return Err(locked("it is encrypted, and no key was given"));
        }
        let identities = self.identities.iter().map(|identity| identity.as_ref() as &dyn age::Identity);
        let mut reader = decryptor.decrypt(identities).map_err(|cause| match cause {
            age::DecryptError::NoMatchingKeys | age::DecryptError::KeyDecryptionFailed => {
                locked("wrong key: it is encrypted for others than the given keys")
            }
            // A wrong passphrase looks like a damaged stanza; the header's own MAC is only reached with the right one.
            age::DecryptError::DecryptionFailed => locked("wrong key or passphrase, or a damaged header"),
            age::DecryptError::ExcessiveWork { .. } => {
                damaged(&"it asks for more work than any passphrase should take")
            }
            other => damaged(&other),
        })?;
        let mut bytes = Zeroizing::new([0u8; DATA_KEY_BYTES]);
        reader.read_exact(bytes.as_mut()).map_err(|cause| damaged(&cause))?;
        // Reaching the end proves that nothing was cut off.
        if reader.read(&mut [0u8; 1]).map_err(|cause| damaged(&cause))? != 0 {
            return Err(damaged(&"it is too long"));
        }
        Ok(DataKey(bytes))
    }
}

/// Where the data key of an object is kept as it was wrapped later, for other recipients.
fn rewrapped_prefix(header: &EncryptedHeader) -> String {
    let source = header.name.split('/').next().unwrap_or_default();
    format!("{source}/keys/{}", header.key_id)
}

/// All of that, the newest first.
fn rewrapped(home: &dyn Storage, header: &EncryptedHeader) -> Result<Vec<Vec<u8>>> {
    let prefix = rewrapped_prefix(header);
    let mut names: Vec<String> = home.list(&prefix)?.into_iter().filter(|name| name.ends_with(".age")).collect();
    names.sort();
    let read = |name: &String| home.read_small(&format!("{prefix}/{name}"), ENCRYPTED_HEADER_BYTES_MAX as u64);
    names.iter().rev().filter_map(|name| read(name).transpose()).collect()
}

fn stamp(path: &Path) -> String {
    use std::os::unix::fs::MetadataExt;
    let stamp =
        |file: std::fs::Metadata| format!("{}.{:09} {} {}", file.mtime(), file.mtime_nsec(), file.size(), file.ino());
    std::fs::metadata(path).map(stamp).unwrap_or_default()
}

/// Keeps secrets from core files, and from debuggers of the same user. Programs that this one starts are not concerned.
pub fn hide_memory() {
    // A kernel that refuses leaves what was before; nothing else depends on it.
    rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable).ok();
}
