//! Which server certificates are believed: nobody's in particular, an authority's, or an authority's for this name; a
//! certificate that stands in the root file itself is believed as it is.
//!
//! rustls speaks TLS; what differs from a browser's view is here, for every kind of server.

use std::path::Path;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, DigitallySignedStruct, RootCertStore, SignatureScheme};

use crate::error::{Error, ErrorKind, Result};

/// Believes a server as far as it is told to.
#[derive(Debug)]
pub(super) struct ServerTrust {
    /// None if the certificate does not matter.
    authorities: Option<Arc<WebPkiServerVerifier>>,
    /// Certificates of the root file: a server may have one of them itself.
    trusted: Vec<CertificateDer<'static>>,
    checks_name: bool,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerTrust {
    /// Whoever it is.
    pub(super) fn anyone(provider: &CryptoProvider) -> Self {
        ServerTrust {
            authorities: None,
            trusted: Vec::new(),
            checks_name: false,
            algorithms: provider.signature_verification_algorithms,
        }
    }

    /// Whom the authorities of the operating system vouch for, by name.
    ///
    /// # Errors
    /// `Configuration` if there are none.
    pub(super) fn system(provider: &Arc<CryptoProvider>) -> Result<Self> {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        ServerTrust::of(roots, Vec::new(), true, provider)
    }

    /// Whom the authorities in the PEM file at `path` vouch for, and who has one of these certificates.
    ///
    /// # Errors
    /// `Configuration` for a file that is not there or makes no sense; `flag` names what it is called there.
    pub(super) fn file(path: &Path, flag: &str, checks_name: bool, provider: &Arc<CryptoProvider>) -> Result<Self> {
        let trusted = read_certificates(path)?;
        let mut roots = RootCertStore::empty();
        for certificate in &trusted {
            roots.add(certificate.clone()).map_err(|cause| {
                Error::new(ErrorKind::Configuration, format!("use {flag} {}", path.display()), cause)
            })?;
        }
        ServerTrust::of(roots, trusted, checks_name, provider)
    }

    fn of(
        roots: RootCertStore,
        trusted: Vec<CertificateDer<'static>>,
        checks_name: bool,
        provider: &Arc<CryptoProvider>,
    ) -> Result<Self> {
        let authorities = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider))
            .build()
            .map_err(|cause| Error::new(ErrorKind::Configuration, "use the root certificates", cause))?;
        Ok(ServerTrust { authorities: Some(authorities), trusted, checks_name, ..ServerTrust::anyone(provider) })
    }
}

/// The certificates in the PEM file at `path`, at least one.
///
/// # Errors
/// `Configuration`.
pub(super) fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let bad = |cause: String| {
        Error::new(ErrorKind::Configuration, format!("read certificates from {}", path.display()), cause)
            .hint("it must be a file of PEM, with BEGIN CERTIFICATE in it")
    };
    let found = CertificateDer::pem_file_iter(path).map_err(|cause| bad(cause.to_string()))?;
    let found: Vec<_> = found.collect::<std::result::Result<_, _>>().map_err(|cause| bad(cause.to_string()))?;
    if found.is_empty() { Err(bad("there is none in it".to_owned())) } else { Ok(found) }
}

impl ServerCertVerifier for ServerTrust {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> std::result::Result<ServerCertVerified, rustls::Error> {
        let Some(authorities) = &self.authorities else { return Ok(ServerCertVerified::assertion()) };
        // One that signed itself is an authority's, and no authority's may be a server's for others.
        if self.trusted.iter().any(|trusted| trusted == end_entity) {
            if self.checks_name {
                verify_server_name(&ParsedCertificate::try_from(end_entity)?, server_name)?;
            }
            return Ok(ServerCertVerified::assertion());
        }
        match authorities.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now) {
            // The name is looked at last, when all else is well.
            Err(rustls::Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) if !self.checks_name => Ok(ServerCertVerified::assertion()),
            verified => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, dss, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, dss, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
