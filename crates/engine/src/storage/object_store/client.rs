//! The connection to a store: the service's operator with its time-outs and retries, over one HTTP client.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::Uri;
use opendal::layers::{RetryEvent, RetryLayer, TimeoutLayer};
use opendal::{HttpTransporter, OperationContext, Operator, services};
use reqsign_core::ProvideCredentialChain;
use rustls::{ClientConfig, RootCertStore};

use super::addresses::InTurn;
use super::credentials::credentials;
use super::patience::tell_of;
use super::signed;
use super::target::{Service, Target};
use super::traffic::Traffic;
use super::transport::Transport;
use crate::error::{Error, ErrorKind, Result};

pub(super) const DELAY_MIN: Duration = Duration::from_millis(200);
pub(super) const DELAY_MAX: Duration = Duration::from_secs(10);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Where people name further certificates for S3.
const CA_VARIABLE: &str = "AWS_CA_BUNDLE";
/// Regions are part of S3's signatures; servers other than Amazon's take any.
pub(super) const ANY_REGION: &str = "us-east-1";

/// An operator whose root is the target's prefix; nothing has a time-out or is tried again before it is [`layered`].
///
/// # Errors
/// `Configuration` if certificates cannot be read or settings do not fit each other.
pub(super) fn connect(target: &Target) -> Result<Operator> {
    let failed = |cause: String| {
        Error::new(ErrorKind::Configuration, format!("use {}", target.to_text()), cause).hint(
            "region, endpoint and credentials come from the target's options, the environment and the tools' files",
        )
    };
    let root = format!("/{}", target.prefix);
    let operator = match target.service {
        Service::S3 => Operator::new(s3(target, &root)),
        Service::Gcs => {
            let mut builder = services::Gcs::default().bucket(&target.container).root(&root);
            if let Some(endpoint) = target.endpoints.first() {
                builder = builder.endpoint(endpoint);
            }
            Operator::new(builder)
        }
        Service::Azblob => {
            let mut builder = services::Azblob::default().container(&target.container).root(&root);
            if let Some(endpoint) = target.endpoints.first() {
                builder = builder.endpoint(endpoint);
            }
            Operator::new(builder)
        }
    };
    let operator = operator.map_err(|cause| failed(super::errors::cause(&cause)))?;
    let client = http_client(target).map_err(failed)?;
    let signer = is_signed_late(target).then(|| signed::signer(target)).transpose().map_err(failed)?;
    let endpoints = target.endpoints.iter().map(|text| text.parse::<Uri>().map_err(|cause| failed(cause.to_string())));
    let endpoints = endpoints.collect::<Result<_>>()?;
    let transport = Transport::new(client, traffic(target), signer, endpoints, target.timeout);
    let context = OperationContext::new().with_http_transport(HttpTransporter::new(transport));
    Ok(operator.with_context(context))
}

/// What is asked through it has `timeout` for each request, its content included, and is tried again if it fails.
pub(super) fn layered(operator: &Operator, target: &Target, timeout: Duration) -> Operator {
    let (store, times) = (target.to_text(), target.retries);
    let retries = RetryLayer::new()
        .with_max_times(times)
        .with_min_delay(DELAY_MIN)
        .with_max_delay(DELAY_MAX)
        .with_jitter()
        .with_notify(move |event: RetryEvent<'_>| {
            tell_of(&store, event.attempt as usize, times, &super::errors::cause(event.err));
        });
    // A time-out is one of the failures that are tried again, so it lies within.
    let timeouts = TimeoutLayer::new().with_timeout(timeout).with_io_timeout(timeout);
    operator.clone().layer(timeouts).layer(retries)
}

fn s3(target: &Target, root: &str) -> services::S3 {
    let mut builder = services::S3::default().bucket(&target.container).root(root);
    if let Some(endpoint) = target.endpoints.first() {
        builder = builder.endpoint(endpoint);
    }
    match &target.region {
        Some(region) => builder = builder.region(region),
        None if !target.endpoints.is_empty() && named_region().is_none() => builder = builder.region(ANY_REGION),
        None => {}
    }
    if target.virtual_host {
        builder = builder.enable_virtual_host_style();
    }
    builder = builder.credential_provider_chain(ProvideCredentialChain::new().push(credentials(target)));
    if is_signed_late(target) {
        builder = builder.skip_signature();
    }
    // The server checks what arrives, part by part.
    builder.checksum_algorithm("crc32c")
}

/// Whether requests are signed when it is known to which endpoint they go: its name is part of S3's signatures.
fn is_signed_late(target: &Target) -> bool {
    target.service == Service::S3 && target.endpoints.len() > 1
}

/// The traffic to a store, which all that speak to it share.
pub(super) fn traffic(target: &Target) -> Arc<Traffic> {
    static ALL: Mutex<BTreeMap<Vec<String>, Arc<Traffic>>> = Mutex::new(BTreeMap::new());
    let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
    // The provider's own stores are told apart by their buckets.
    let key = if target.endpoints.is_empty() { vec![target.container.clone()] } else { target.endpoints.clone() };
    Arc::clone(all.entry(key).or_insert_with(|| Arc::new(Traffic::new(target.endpoints.len()))))
}

/// The region that the environment names.
pub(super) fn named_region() -> Option<String> {
    ["AWS_REGION", "AWS_DEFAULT_REGION"].into_iter().find_map(|name| std::env::var(name).ok())
}

/// The client of all stores that trust the same certificates: connections are shared, and hundreds of certificates are
/// read once, not for each stripe.
pub(super) fn http_client(target: &Target) -> std::result::Result<reqwest::Client, String> {
    static CLIENTS: Mutex<BTreeMap<Option<String>, reqwest::Client>> = Mutex::new(BTreeMap::new());
    let further = target.ca_file.clone().or_else(|| std::env::var(CA_VARIABLE).ok().filter(|file| !file.is_empty()));
    let mut clients = CLIENTS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(client) = clients.get(&further) {
        return Ok(client.clone());
    }
    let client = new_http_client(further.as_deref())?;
    clients.insert(further, client.clone());
    Ok(client)
}

/// One that trusts the certificates in the file `further`, too. Proxies are those of the environment (`HTTPS_PROXY`,
/// `NO_PROXY`).
fn new_http_client(further: Option<&str>) -> std::result::Result<reqwest::Client, String> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if let Some(file) = further {
        use rustls::pki_types::{CertificateDer, pem::PemObject};
        let failed = |cause: &dyn std::fmt::Display| format!("the certificates in {file} do not read: {cause}");
        for certificate in CertificateDer::pem_file_iter(file).map_err(|cause| failed(&cause))? {
            roots.add(certificate.map_err(|cause| failed(&cause))?).map_err(|cause| failed(&cause))?;
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|cause| cause.to_string())?
        .with_root_certificates(roots)
        .with_no_client_auth();
    reqwest::Client::builder()
        .tls_backend_preconfigured(tls)
        .connect_timeout(CONNECT_TIMEOUT)
        .dns_resolver(Arc::new(InTurn::default()))
        // Many connections carry more than many streams of one.
        .http1_only()
        // A store that sends us elsewhere is not the one that was named.
        .redirect(reqwest::redirect::Policy::none())
        .build()
        .map_err(|cause| cause.to_string())
}
