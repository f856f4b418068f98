//! A server that speaks S3, in this process, over files in a temporary directory.

use std::net::SocketAddr;
use std::path::PathBuf;

use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder as Connections;
use s3s::auth::SimpleAuth;
use s3s::service::S3ServiceBuilder;
use s3s_fs::FileSystem;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};

/// What tests sign with; the secret is one that no text may ever show.
pub const ACCESS_KEY: &str = "pagehaul-tests";
/// See [`ACCESS_KEY`].
pub const SECRET_KEY: &str = "canary-of-a-secret-key";

/// A server with buckets; it ends when it is dropped.
pub struct S3Server {
    address: SocketAddr,
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
        let files = tempfile::tempdir().unwrap();
        for bucket in buckets {
            std::fs::create_dir(files.path().join(bucket)).unwrap();
        }
        let runtime = Builder::new_multi_thread().worker_threads(2).thread_name("s3").enable_all().build().unwrap();
        let mut service = S3ServiceBuilder::new(FileSystem::new(files.path()).unwrap());
        service.set_auth(SimpleAuth::from_single(ACCESS_KEY, SECRET_KEY));
        let service = service.build();
        let listener = runtime.block_on(TcpListener::bind(("127.0.0.1", 0))).unwrap();
        let address = listener.local_addr().unwrap();
        runtime.spawn(async move {
            let connections = Connections::new(TokioExecutor::new());
            while let Ok((socket, _)) = listener.accept().await {
                let connection = connections.serve_connection(TokioIo::new(socket), service.clone()).into_owned();
                // A client that goes away is its own affair.
                tokio::spawn(async move { connection.await.ok() });
            }
        });
        S3Server { address, files, _runtime: runtime }
    }

    /// Where it is reached.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The target that names `place`, a bucket with or without a prefix.
    pub fn target(&self, place: &str) -> String {
        format!("s3://{place}?endpoint={}", self.endpoint())
    }

    /// The directory in which the objects of a bucket lie as files.
    pub fn bucket_directory(&self, bucket: &str) -> PathBuf {
        self.files.path().join(bucket)
    }

    /// What a client needs in its environment.
    pub fn environment(&self) -> [(&'static str, &'static str); 3] {
        [
            ("AWS_ACCESS_KEY_ID", ACCESS_KEY),
            ("AWS_SECRET_ACCESS_KEY", SECRET_KEY),
            // No other machine is asked for credentials.
            ("AWS_EC2_METADATA_DISABLED", "true"),
        ]
    }
}
