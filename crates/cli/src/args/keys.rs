//! Flags about keys: for whom what is stored is encrypted, and with what it is read.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use pagehaul_engine::encryption::KeySources;
use pagehaul_tune::history::History;

/// Keys, as typed.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct KeyArgs {
    /// Encrypt what is stored for this public key (age1...), which age-keygen or `pagehaul key new` makes; repeat it for
    /// several, any of whom can restore
    #[arg(long, value_name = "KEY", env = "PAGEHAUL_RECIPIENT", global = true, help_heading = "Encryption")]
    pub(crate) recipient: Vec<String>,

    /// File with a public key a line
    #[arg(long, value_name = "FILE", env = "PAGEHAUL_RECIPIENTS_FILE", global = true, help_heading = "Encryption")]
    pub(crate) recipients_file: Vec<PathBuf>,

    /// File with the secret key (AGE-SECRET-KEY-1...) that reads what is encrypted; only its owner may be able to read it
    #[arg(long, value_name = "FILE", env = "PAGEHAUL_IDENTITY", global = true, help_heading = "Encryption")]
    pub(crate) identity: Vec<PathBuf>,

    /// Program that prints the secret key, with its arguments divided by blanks
    #[arg(long, value_name = "COMMAND", env = "PAGEHAUL_KEY_COMMAND", global = true, help_heading = "Encryption")]
    pub(crate) key_command: Option<String>,

    /// File whose first line is a passphrase that encrypts and reads, without keys or beside them; with --recipient it only reads
    /// for `copy` and `key rotate`
    #[arg(long, value_name = "FILE", env = "PAGEHAUL_PASSPHRASE_FILE", global = true, help_heading = "Encryption")]
    pub(crate) passphrase_file: Option<PathBuf>,

    /// Refuse backups and WAL that are not encrypted
    #[arg(long, global = true, help_heading = "Encryption")]
    pub(crate) require_encryption: bool,

    /// File with the secret key (ssh-ed25519) that signs which backups there are, after every change, and WAL
    #[arg(long, value_name = "FILE", env = "PAGEHAUL_SIGN_KEY", global = true, help_heading = "Signatures")]
    pub(crate) sign_key: Option<PathBuf>,

    /// Take only backups and WAL that are signed with this key: the public one, or a file with one a line; repeat it for several
    #[arg(long, value_name = "KEY_OR_FILE", env = "PAGEHAUL_SIGNER", global = true, help_heading = "Signatures")]
    pub(crate) signer: Vec<String>,

    /// Directory that remembers how far the signed lists had come, or NUL for none [default: heads beside the history]
    #[arg(long, value_name = "DIR", env = "PAGEHAUL_KNOWN_HEADS", global = true, help_heading = "Signatures")]
    pub(crate) known_heads: Option<PathBuf>,
}

impl KeyArgs {
    /// Where the keys come from.
    pub(crate) fn sources(&self) -> KeySources {
        KeySources {
            recipients: self.recipient.clone(),
            recipients_files: self.recipients_file.clone(),
            identity_files: self.identity.clone(),
            key_command: self.key_command.clone(),
            passphrase_file: self.passphrase_file.clone(),
            require_encryption: self.require_encryption,
            sign_key_file: self.sign_key.clone(),
            signers: self.signer.clone(),
            known_heads: self.known_heads(),
            ..KeySources::default()
        }
    }

    fn known_heads(&self) -> Option<PathBuf> {
        match &self.known_heads {
            _ if self.sign_key.is_none() && self.signer.is_empty() => None,
            Some(named) if named.as_os_str().eq_ignore_ascii_case("NUL") => None,
            Some(named) => Some(named.clone()),
            // Without a home directory there is no usual place.
            None => History::default_path().ok().map(|history| history.with_file_name("heads")),
        }
    }
}

/// The verbs about keys.
#[derive(Subcommand, Debug)]
pub(crate) enum KeyVerb {
    /// Make a key pair: the secret key goes into a file, the public one is printed
    #[command(
        after_help = "Examples:\n  pagehaul key new --output /root/pagehaul.key\n  pagehaul key new --signing --output /root/pagehaul-signer"
    )]
    New(KeyNewArgs),
    /// Let other keys read what is stored: data keys are wrapped for them in new objects
    #[command(after_help = ROTATE_HELP)]
    Rotate(KeyRotateArgs),
}

impl KeyVerb {
    /// Whether the user asked for a JSON document.
    pub(crate) fn wants_json(&self) -> bool {
        match self {
            KeyVerb::New(args) => args.json,
            KeyVerb::Rotate(args) => args.json,
        }
    }
}

/// Flags of `key new`.
#[derive(Args, Clone, Debug)]
pub(crate) struct KeyNewArgs {
    /// File for the secret key; it must not be there yet
    #[arg(long, value_name = "FILE")]
    pub(crate) output: PathBuf,

    /// A pair that signs (ssh-ed25519), not one that encrypts
    #[arg(long)]
    pub(crate) signing: bool,

    /// Print the outcome as one JSON document on standard output
    #[arg(long)]
    pub(crate) json: bool,
}

/// Flags of `key rotate`.
#[derive(Args, Clone, Debug)]
pub(crate) struct KeyRotateArgs {
    /// Name of the database system in the repository [default: the only one there is]
    #[arg(value_name = "SOURCE")]
    pub(crate) source: Option<String>,

    /// Repository: a directory, or s3://BUCKET/PREFIX?endpoint=URL (gs://, azblob://)
    #[arg(long, value_name = "URL_OR_DIR", env = "PAGEHAUL_REPO")]
    pub(crate) repo: String,

    /// Print the outcome as one JSON document on standard output
    #[arg(long)]
    pub(crate) json: bool,
}

/// Help of `key`.
pub(crate) const KEY_HELP: &str = "\
Backups are encrypted for public keys; only who has a secret key of one of them can restore. The host of the database needs \
the public ones. Keep secret keys where the database host cannot lose them: without one, backups are gone.

Examples:
  pagehaul key new --output /safe/pagehaul.key
  pagehaul backup --repo /backup --recipient age1...
  pagehaul restore --repo /backup --target-dir /restore/main --identity /safe/pagehaul.key";

const ROTATE_HELP: &str = "\
Nothing that is stored is changed or encrypted anew, so the old key can still read it from the objects themselves. To shut \
an old key out, copy the repository with the new recipients and remove the old one. New backups and WAL are for whom \
--recipient names when they are made.

Examples:
  pagehaul key rotate main --repo /backup --identity /safe/old.key --recipient age1...";
