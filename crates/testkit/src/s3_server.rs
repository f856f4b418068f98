//! A server that speaks S3, in this process, over files in a temporary directory.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hyper::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder as Connections;
use rustls::ServerConfig;
use s3s::S3Result;
use s3s::auth::{S3Auth, SecretKey};
use s3s::service::S3ServiceBuilder;
use s3s_fs::FileSystem;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio_rustls::TlsAcceptor;

use crate::damage::files_below;
use crate::s3_faults::{self, S3Fault, S3Faults};

/// What tests sign with; the secret is one that no text may ever show.
pub const ACCESS_KEY: &str = "pagehaul-tests";
/// See [`ACCESS_KEY`].
pub const SECRET_KEY: &str = "canary-of-a-secret-key";
/// What a client needs in its environment for the two.
pub const CREDENTIALS: [(&str, &str); 3] = [
    ("AWS_ACCESS_KEY_ID", ACCESS_KEY),
    ("AWS_SECRET_ACCESS_KEY", SECRET_KEY),
    // No other machine is asked for credentials.
    ("AWS_EC2_METADATA_DISABLED", "true"),
];
/// What access keys of a role begin with; their secret is the same.
pub const ROLE_PREFIX: &str = "role-";

const TARGET_VARIABLE: &str = "PAGEHAUL_TESTKIT_OBJECT_STORE";

/// The target that [`run_again`] names; None in the process that is to call it.
pub fn told_target() -> Option<String> {
    std::env::var(TARGET_VARIABLE).ok()
}

/// Runs the test `name` of this binary once more, in a process that has `environment` and finds `target` by
/// [`told_target`]: a process cannot change the environment of its own threads.
///
/// # Panics
/// If the test fails there, or a secret of the environment shows in what it says.
pub fn run_again(name: &str, target: &str, environment: &[(&str, &str)]) {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .envs(environment.iter().copied())
        .env(TARGET_VARIABLE, target)
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success(), "{told}");
    assert!(told.contains("1 passed"), "there is no test {name}: {told}");
    let mut secrets = environment.iter().filter(|(key, _)| key.contains("SECRET") || key.ends_with("_KEY"));
    assert!(secrets.all(|(_, secret)| !told.contains(secret)), "{told}");
}

fn acceptor(certificate: &Path, key: &Path) -> TlsAcceptor {
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer};
    let certificates = CertificateDer::pem_file_iter(certificate).unwrap().map(Result::unwrap).collect();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(certificates, PrivateKeyDer::from_pem_file(key).unwrap())
        .unwrap();
    TlsAcceptor::from(Arc::new(config))
}

/// Who may sign, and who did.
#[derive(Clone, Default)]
struct Signers {
    seen: Arc<Mutex<BTreeSet<String>>>,
}

impl S3Auth for Signers {
    fn get_secret_key<'a, 'k, 'f>(
        &'a self,
        access_key: &'k str,
    ) -> Pin<Box<dyn Future<Output = S3Result<SecretKey>> + Send + 'f>>
    where
        'a: 'f,
        'k: 'f,
        Self: 'f,
    {
        let is_known = access_key == ACCESS_KEY || access_key.starts_with(ROLE_PREFIX);
        self.seen.lock().unwrap().insert(access_key.to_owned());
        let secret = is_known.then(|| SecretKey::from(SECRET_KEY));
        Box::pin(async { secret.ok_or_else(|| s3s::s3_error!(InvalidAccessKeyId)) })
    }
}

/// A server with buckets; it ends when it is dropped.
pub struct S3Server {
    address: SocketAddr,
    scheme: &'static str,
    /// What goes wrong.
    pub faults: Arc<S3Faults>,
    signers: Signers,
    files: TempDir,
    /// Dropping it ends the connections.
    _runtime: Runtime,
}

impl S3Server {
    /// Starts it with empty buckets of these names.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn start(buckets: &[&str]) -> Self {
        Self::start_with(buckets, None)
    }

    /// The same over TLS, with the certificate and the key in these files.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn start_with_tls(buckets: &[&str], certificate: &Path, key: &Path) -> Self {
        Self::start_with(buckets, Some(acceptor(certificate, key)))
    }

    fn start_with(buckets: &[&str], tls: Option<TlsAcceptor>) -> Self {
        let files = tempfile::tempdir().unwrap();
        for bucket in buckets {
            std::fs::create_dir(files.path().join(bucket)).unwrap();
        }
        let runtime = Builder::new_multi_thread().worker_threads(2).thread_name("s3").enable_all().build().unwrap();
        let mut service = S3ServiceBuilder::new(FileSystem::new(files.path()).unwrap());
        let signers = Signers::default();
        service.set_auth(signers.clone());
        let service = service.build();
        let listener = runtime.block_on(TcpListener::bind(("127.0.0.1", 0))).unwrap();
        let address = listener.local_addr().unwrap();
        let faults = Arc::new(S3Faults::default());
        let (at_work, directory) = (Arc::clone(&faults), files.path().to_owned());
        let scheme = if tls.is_some() { "https" } else { "http" };
        runtime.spawn(async move {
            let connections = Connections::new(TokioExecutor::new());
            while let Ok((socket, _)) = listener.accept().await {
                // Without it the ends of answers wait for acknowledgements that clients delay.
                socket.set_nodelay(true).ok();
                let (service, faults, directory) = (service.clone(), Arc::clone(&at_work), directory.clone());
                let answering = service_fn(move |request: Request<Incoming>| {
                    let (service, faults, directory) = (service.clone(), Arc::clone(&faults), directory.clone());
                    let answer = async move {
                        let fault = faults.next();
                        if let Some(fault) = fault
                            && let Some(instead) = s3_faults::before(fault, &request, &directory, &faults).await
                        {
                            return instead;
                        }
                        let (writes, place) = (s3_faults::writes_an_object(&request), request.uri().path().to_owned());
                        let answer = service.call(request.map(s3s::Body::from)).await;
                        if fault == Some(S3Fault::Halved) && answer.is_ok() {
                            s3_faults::halve(writes, &place, &directory);
                        }
                        s3_faults::after(fault, answer.map_err(|cause| std::io::Error::other(format!("{cause:?}")))?)
                            .await
                    };
                    // What a server has begun it ends, whether or not the client is still there.
                    let answer = tokio::spawn(answer);
                    async move { answer.await.map_err(std::io::Error::other)? }
                });
                let (connections, tls) = (connections.clone(), tls.clone());
                // A client that goes away is its own affair.
                tokio::spawn(async move {
                    match tls {
                        None => connections.serve_connection(TokioIo::new(socket), answering).await.ok(),
                        Some(tls) => {
                            let socket = TokioIo::new(tls.accept(socket).await.ok()?);
                            connections.serve_connection(socket, answering).await.ok()
                        }
                    }
                });
            }
        });
        S3Server { address, scheme, faults, signers, files, _runtime: runtime }
    }

    /// Where it is reached.
    pub fn endpoint(&self) -> String {
        format!("{}://{}", self.scheme, self.address)
    }

    /// The target that names `place`, a bucket with or without a prefix.
    pub fn target(&self, place: &str) -> String {
        format!("s3://{place}?endpoint={}", self.endpoint())
    }

    /// The access keys with which requests were signed, since the last call.
    ///
    /// # Panics
    /// If a thread of it did.
    pub fn signers(&self) -> BTreeSet<String> {
        std::mem::take(&mut self.signers.seen.lock().unwrap())
    }

    /// The directory in which the objects of a bucket lie as files.
    pub fn bucket_directory(&self, bucket: &str) -> PathBuf {
        self.files.path().join(bucket)
    }

    /// Makes everything that is stored older by this much: leases without new beats are dead then.
    ///
    /// # Panics
    /// If a file's time cannot be changed.
    pub fn age(&self, by: Duration) {
        for path in files_below(self.files.path()) {
            let file = std::fs::File::options().write(true).open(&path).unwrap();
            let modified = file.metadata().unwrap().modified().unwrap();
            file.set_modified(modified - by).unwrap();
        }
    }

    /// As [`run_again`], with this server's credentials.
    ///
    /// # Panics
    /// See there.
    pub fn run_again(&self, name: &str, target: &str) {
        run_again(name, target, &self.environment());
    }

    /// What a client needs in its environment.
    pub fn environment(&self) -> [(&'static str, &'static str); 3] {
        CREDENTIALS
    }
}
