//! TLS on a connection: whom to believe, who we are, and what the log-in can be bound to.
//!
//! rustls does the protocol. What differs from a browser's view is here: libpq's modes that do not look at the
//! certificate, or not at its name, and a root file that holds the server's own certificate.

use std::net::{IpAddr, Ipv4Addr, TcpStream};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{CertificateError, ClientConfig, ClientConnection, StreamOwned};
use sha2::{Digest, Sha224, Sha256, Sha384, Sha512};

use super::conninfo::ConnectSettings;
use super::tls_settings::{ClientCert, RootCert, SslMode, TlsSettings};
use crate::error::{Error, ErrorKind, Result};
use crate::source::server_trust::{ServerTrust, read_certificates};

/// An encrypted connection.
pub(super) type TlsStream = StreamOwned<ClientConnection, TcpStream>;

/// Begins TLS on `tcp`, which the server has agreed to.
///
/// # Errors
/// `Configuration` for files that are not there or make no sense, `Source` for a server that is not the one that is
/// meant, or cannot be talked to.
pub(super) fn begin(settings: &ConnectSettings, mut tcp: TcpStream) -> Result<Box<TlsStream>> {
    let tls = &settings.tls;
    let config = client_config(tls)?;
    let name = match ServerName::try_from(tls.server_name.clone()) {
        Ok(name) => name,
        Err(_) if tls.mode == SslMode::VerifyFull => {
            let action = format!("check that a certificate is for {:?}", tls.server_name);
            return Err(Error::new(ErrorKind::Configuration, action, "it is neither a host name nor an address"));
        }
        // An address is not sent to the server.
        Err(_) => ServerName::IpAddress(IpAddr::V4(Ipv4Addr::UNSPECIFIED).into()),
    };
    let refuse = |cause: &rustls::Error| refused(settings, cause);
    let mut connection = ClientConnection::new(Arc::new(config), name).map_err(|cause| refuse(&cause))?;
    while connection.is_handshaking() {
        connection.complete_io(&mut tcp).map_err(|cause| match inner(&cause) {
            Some(cause) => refuse(cause),
            None if cause.kind() == std::io::ErrorKind::WouldBlock => failed(settings, "it did not answer in time"),
            None => failed(settings, &cause.to_string()),
        })?;
    }
    Ok(Box::new(StreamOwned::new(connection, tcp)))
}

/// The hash of the server's certificate to which SCRAM is bound (RFC 5929, tls-server-end-point); None if its signature
/// names no hash.
pub(super) fn end_point_hash(stream: &TlsStream) -> Option<Vec<u8>> {
    hash_of_certificate(stream.conn.peer_certificates()?.first()?)
}

fn inner(cause: &std::io::Error) -> Option<&rustls::Error> {
    cause.get_ref()?.downcast_ref()
}

fn failed(settings: &ConnectSettings, cause: &str) -> Error {
    Error::new(ErrorKind::Source, format!("begin TLS with the {settings}"), cause)
}

/// The next step for what is wrong with a certificate.
fn refused(settings: &ConnectSettings, cause: &rustls::Error) -> Error {
    let host = &settings.tls.server_name;
    let rustls::Error::InvalidCertificate(problem) = cause else { return failed(settings, &cause.to_string()) };
    match problem {
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => failed(
            settings,
            &format!("its certificate is not for {host} ({problem})"),
        )
        .hint(
            "connect by a name that the certificate has as a subjectAltName (its common name does not count), or use \
                 sslmode=verify-ca",
        ),
        CertificateError::UnknownIssuer => failed(settings, "its certificate is not from an authority of sslrootcert")
            .hint(
                "give sslrootcert the file of the authority that signed the server's certificate (ssl_cert_file), or \
                 that certificate itself",
            ),
        _ => failed(settings, &format!("its certificate is refused: {problem}"))
            .hint("look at it: openssl s_client -starttls postgres -connect HOST:PORT -showcerts"),
    }
}

fn client_config(tls: &TlsSettings) -> Result<ClientConfig> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let bad = |cause: rustls::Error| Error::new(ErrorKind::Configuration, "prepare TLS", cause);
    let verifier = Arc::new(server_trust(tls, &provider)?);
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(bad)?
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    let mut config = match &tls.client_cert {
        None => builder.with_no_client_auth(),
        Some(own) => {
            let (certs, key) = read_client_cert(own)?;
            let action = format!("use client certificate {} with key {}", own.cert.display(), own.key.display());
            builder
                .with_client_auth_cert(certs, key)
                .map_err(|cause| Error::new(ErrorKind::Configuration, action, cause))?
        }
    };
    // Servers from 17 on look at it.
    config.alpn_protocols = vec![b"postgresql".to_vec()];
    Ok(config)
}

fn read_client_cert(own: &ClientCert) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)> {
    let action = || format!("use the private key {}", own.key.display());
    let bad = |cause: String| Error::new(ErrorKind::Configuration, action(), cause);
    let metadata = std::fs::metadata(&own.key).map_err(|cause| {
        bad(cause.to_string()).hint(format!("sslkey names the key of the certificate {}", own.cert.display()))
    })?;
    // As libpq: a key of the system's may be read by a group.
    let others = if metadata.uid() == 0 { 0o037 } else { 0o077 };
    if metadata.mode() & others != 0 {
        return Err(bad("other users may read or write it".into()).hint(format!("chmod 0600 {}", own.key.display())));
    }
    let key = PrivateKeyDer::from_pem_file(&own.key)
        .map_err(|cause| bad(cause.to_string()).hint("it must be PEM, and not protected by a password"))?;
    Ok((read_certificates(&own.cert)?, key))
}

/// Whom the mode believes.
fn server_trust(tls: &TlsSettings, provider: &Arc<CryptoProvider>) -> Result<ServerTrust> {
    if !tls.checks_authority() {
        return Ok(ServerTrust::anyone(provider));
    }
    match &tls.root_cert {
        RootCert::None => {
            let cause = "no root certificate is given, and there is none at ~/.postgresql/root.crt";
            Err(Error::new(ErrorKind::Configuration, "check the server's certificate", cause)
                .hint("give sslrootcert=FILE with the authority's certificate, or sslrootcert=system"))
        }
        // Nothing but verify-full goes with it.
        RootCert::System => ServerTrust::system(provider),
        RootCert::File(path) => ServerTrust::file(path, "sslrootcert", tls.mode == SslMode::VerifyFull, provider),
    }
}

/// The hash of a certificate with the hash of its own signature, MD5 and SHA-1 replaced by SHA-256.
///
/// Own code: rustls reads certificates and does not tell how they are signed, and a reader of all of X.509 is a large
/// thing for one field.
fn hash_of_certificate(der: &[u8]) -> Option<Vec<u8>> {
    const RSA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01];
    const ECDSA_SHA1: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x01];
    const ECDSA_SHA2: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03];
    let (certificate, _) = element(der, 0x30)?;
    let (_, after_body) = element(certificate, 0x30)?;
    let (algorithm, _) = element(after_body, 0x30)?;
    let (oid, _) = element(algorithm, 0x06)?;
    if oid == ECDSA_SHA1 {
        return Some(Sha256::digest(der).to_vec());
    }
    let hash_of = match (oid.strip_prefix(RSA), oid.strip_prefix(ECDSA_SHA2)) {
        (Some([4 | 5 | 11]), _) | (_, Some([2])) => |der: &[u8]| Sha256::digest(der).to_vec(),
        (Some([12]), _) | (_, Some([3])) => |der: &[u8]| Sha384::digest(der).to_vec(),
        (Some([13]), _) | (_, Some([4])) => |der: &[u8]| Sha512::digest(der).to_vec(),
        (Some([14]), _) | (_, Some([1])) => |der: &[u8]| Sha224::digest(der).to_vec(),
        _ => return None,
    };
    Some(hash_of(der))
}

/// Content of the DER element with which `bytes` begin, if its tag is `tag`; and what follows it.
fn element(bytes: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (found, rest) = bytes.split_first()?;
    let (first, rest) = rest.split_first()?;
    let (length, rest) = match usize::from(*first) {
        short @ 0..0x80 => (short, rest),
        long => {
            let (digits, rest) = rest.split_at_checked(long - 0x80).filter(|(digits, _)| digits.len() <= 4)?;
            (digits.iter().fold(0, |length, digit| length << 8 | usize::from(*digit)), rest)
        }
    };
    (*found == tag).then(|| rest.split_at_checked(length)).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn der(tag: u8, content: &[u8]) -> Vec<u8> {
        let mut bytes = vec![tag];
        match content.len() {
            short @ 0..0x80 => bytes.push(short as u8),
            long => bytes.extend([0x82, (long >> 8) as u8, long as u8]),
        }
        bytes.extend_from_slice(content);
        bytes
    }

    fn certificate(oid: &[u8]) -> Vec<u8> {
        let algorithm = der(0x30, &[der(0x06, oid), der(0x05, &[])].concat());
        der(0x30, &[der(0x30, &[7; 300]), algorithm, der(0x03, &[1; 65])].concat())
    }

    #[test]
    fn certificates_are_hashed_as_they_are_signed() {
        let rsa = |last: u8| certificate(&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, last]);
        let length = |der: &[u8]| hash_of_certificate(der).map(|hash| hash.len());
        assert_eq!(hash_of_certificate(&rsa(11)).unwrap(), Sha256::digest(rsa(11)).to_vec());
        assert_eq!([5, 12, 13, 14, 10].map(|last| length(&rsa(last))), [Some(32), Some(48), Some(64), Some(28), None]);
        let ecdsa = certificate(&[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x03]);
        assert_eq!(length(&ecdsa), Some(48));
        assert_eq!(length(&certificate(&[0x2b, 0x65, 0x70])), None, "Ed25519 names no hash");
        let good = rsa(11);
        assert!((0..good.len() - 70).all(|length| hash_of_certificate(&good[..length]).is_none()));
    }

    proptest::proptest! {
        #[test]
        fn rubbish_never_panics(bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..400), at in 0usize..400) {
            hash_of_certificate(&bytes);
            let mut nearly = certificate(&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 11]);
            nearly.truncate(at + 1);
            nearly[at.min(5)] ^= bytes.first().copied().unwrap_or(1);
            hash_of_certificate(&nearly);
        }
    }
}
