//! Authorities and certificates that tests make with openssl, as files in a directory.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

const KEY: &str = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";

/// Runs openssl in `directory`.
///
/// # Panics
/// If it fails.
pub fn openssl(directory: &Path, arguments: &str) {
    let output = Command::new("openssl").args(arguments.split(' ')).current_dir(directory).output().unwrap();
    assert!(output.status.success(), "openssl {arguments}: {}", String::from_utf8_lossy(&output.stderr));
}

/// An authority, `name.crt` and `name.key`.
///
/// # Panics
/// If openssl cannot make it.
pub fn make_authority(directory: &Path, name: &str) {
    openssl(directory, &format!("req -x509 {KEY} -keyout {name}.key -out {name}.crt -subj /CN={name} -days 30"));
}

/// A certificate to be made.
pub struct Certificate<'a> {
    /// Its files: `name.crt`, and `name.key` which only the owner may read.
    pub name: &'a str,
    /// Common name.
    pub subject: &'a str,
    /// As openssl writes it: `subjectAltName=DNS:localhost`.
    pub extension: &'a str,
    /// Days from now; one that is negative makes a certificate that has expired.
    pub days: i32,
}

impl Certificate<'_> {
    /// Makes it, signed by `authority`.
    ///
    /// # Panics
    /// If openssl cannot.
    pub fn make(&self, directory: &Path, authority: &str) {
        let Certificate { name, subject, extension, days } = self;
        openssl(directory, &format!("req {KEY} -keyout {name}.key -out {name}.csr -subj /CN={subject}"));
        std::fs::write(directory.join("extension"), format!("{extension}\n")).unwrap();
        let by = format!("-CA {authority}.crt -CAkey {authority}.key -CAcreateserial -extfile extension");
        openssl(directory, &format!("x509 -req -in {name}.csr {by} -out {name}.crt -days {days}"));
        std::fs::set_permissions(directory.join(format!("{name}.key")), PermissionsExt::from_mode(0o600)).unwrap();
    }
}
