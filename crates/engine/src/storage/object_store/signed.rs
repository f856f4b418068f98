//! Requests to S3 that opendal does not have: signed with the credentials it finds, sent by the client it sends with, to the
//! place that it speaks to.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use http::{HeaderMap, Method, Request, StatusCode};
use md5::Md5;
use opendal::HttpTransporter;
use opendal_http_transport_reqwest::ReqwestTransport;
use reqsign_aws_v4::{Credential, RequestSigner};
use reqsign_core::{Context, OsEnv, Signer};
use reqsign_file_read_tokio::TokioFileRead;
use sha2::{Digest, Sha256};

use super::client::{ANY_REGION, DELAY_MAX, DELAY_MIN, http_client, named_region, traffic};
use super::credentials::credentials;
use super::patience::tell_of;
use super::target::Target;
use super::traffic::Traffic;

/// Answers that are understood are shorter, lists of a thousand uploads too. One that is longer is an object: the server does not know
/// what it was asked.
const ANSWER_BYTES_MAX: usize = 1024 * 1024;
const AMAZON: &str = "https://s3.amazonaws.com";

/// Sends requests to one bucket.
pub(super) struct Requests {
    client: reqwest::Client,
    signer: Signer<Credential>,
    /// `https://HOST/BUCKET`, or `https://BUCKET.HOST`: of each endpoint.
    buckets: Vec<String>,
    traffic: Arc<Traffic>,
    timeout: Duration,
    retries: usize,
    /// As people call it.
    store: String,
}

/// What the store said.
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: String,
}

impl Requests {
    /// To the bucket of `target`; the cause if settings do not fit each other.
    pub(super) fn new(target: &Target) -> Result<Self, String> {
        let region = region(target)?;
        let of = |endpoint: Option<&String>| bucket_url(target, endpoint, &region);
        let buckets = match target.endpoints.is_empty() {
            true => vec![of(None)],
            false => target.endpoints.iter().map(|endpoint| of(Some(endpoint))).collect(),
        };
        let (client, signer, traffic) = (http_client(target)?, signer(target)?, traffic(target));
        let (timeout, retries, store) = (target.timeout, target.retries, target.to_text());
        Ok(Requests { client, signer, buckets, traffic, timeout, retries, store })
    }

    /// Sends a request about `key`, which may be empty for the bucket itself, until it is answered or has been tried
    /// often enough; the cause if there was no answer.
    pub(super) async fn send(&self, method: Method, key: &str, query: &str, body: &str) -> Result<Answer, String> {
        let mut delay = DELAY_MIN;
        for left in (0..=self.retries).rev() {
            let tried = tokio::time::timeout(self.timeout, self.try_once(&method, key, query, body)).await;
            let tried = tried.unwrap_or_else(|_| Err(format!("no answer within {} s", self.timeout.as_secs_f64())));
            let is_over = match &tried {
                Ok(answer) => !may_be_better_later(answer),
                Err(_) => false,
            };
            if is_over || left == 0 {
                return tried;
            }
            let words = tried.map_or_else(|cause| cause, |answer| answer.status.to_string());
            tell_of(&self.store, self.retries - left + 1, self.retries, &words);
            tokio::time::sleep(jittered(delay)).await;
            delay = (delay * 2).min(DELAY_MAX);
        }
        Err("it was never sent".to_owned())
    }

    async fn try_once(&self, method: &Method, key: &str, query: &str, body: &str) -> Result<Answer, String> {
        let mut turn = self.traffic.enter(false).await;
        let mut url = self.buckets[turn.endpoint()].clone();
        if !key.is_empty() {
            url = format!("{url}/{}", encoded(key));
        }
        if !query.is_empty() {
            url = format!("{url}?{query}");
        }
        let mut request = Request::builder().method(method.clone()).uri(url);
        request = request.header("x-amz-content-sha256", hex(&Sha256::digest(body)));
        if !body.is_empty() {
            request = request.header("content-md5", BASE64.encode(Md5::digest(body)));
            request = request.header("content-type", "application/xml");
        }
        let (mut head, ()) = request.body(()).map_err(|cause| cause.to_string())?.into_parts();
        self.signer.sign(&mut head, None).await.map_err(|cause| format!("it cannot be signed: {cause}"))?;
        let request = Request::from_parts(head, body.to_owned());
        let request = reqwest::Request::try_from(request).map_err(|cause| cause.to_string())?;
        let mut found = self.client.execute(request).await.map_err(|cause| words_of(&cause))?;
        let (status, headers) = (found.status(), std::mem::take(found.headers_mut()));
        turn.answered(status);
        let mut bytes = Vec::new();
        while let Some(piece) = found.chunk().await.map_err(|cause| words_of(&cause))? {
            if bytes.len() + piece.len() > ANSWER_BYTES_MAX {
                bytes.clear();
                break;
            }
            bytes.extend_from_slice(&piece);
        }
        Ok(Answer { status, headers, body: String::from_utf8_lossy(&bytes).into_owned() })
    }
}

/// Whether the same request may do better a moment later.
pub(super) fn may_be_better_later(answer: &Answer) -> bool {
    let status = answer.status;
    // What is not implemented is not implemented later.
    let is_server = status.is_server_error() && status != StatusCode::NOT_IMPLEMENTED;
    is_server || [StatusCode::TOO_MANY_REQUESTS, StatusCode::REQUEST_TIMEOUT].contains(&status)
}

/// Half of the delay to all of it, so that many who wait do not come back at once.
fn jittered(delay: Duration) -> Duration {
    let share = getrandom::u32().unwrap_or(u32::MAX / 2);
    delay / 2 + (delay / 2).mul_f64(f64::from(share) / f64::from(u32::MAX))
}

/// The error with what is below it, without the address: a signature may be in it.
fn words_of(cause: &reqwest::Error) -> String {
    use std::error::Error as _;
    let mut words = String::from("the request failed");
    let mut source = cause.source();
    while let Some(inner) = source {
        words = format!("{words}: {inner}");
        source = inner.source();
    }
    words
}

/// Signs requests to the store that `target` names, with the credentials that opendal would find; the cause if settings do
/// not fit each other.
pub(super) fn signer(target: &Target) -> Result<Signer<Credential>, String> {
    let transport = HttpTransporter::new(ReqwestTransport::new(http_client(target)?));
    let context = Context::new().with_file_read(TokioFileRead).with_env(OsEnv).with_http_send(transport);
    Ok(Signer::new(context, credentials(target), RequestSigner::new("s3", &region(target)?)))
}

/// As opendal finds it.
fn region(target: &Target) -> Result<String, String> {
    match &target.region {
        Some(region) => Ok(region.clone()),
        None => match named_region() {
            Some(region) => Ok(region),
            None if !target.endpoints.is_empty() => Ok(ANY_REGION.to_owned()),
            None => Err("no region is named".to_owned()),
        },
    }
}

/// The endpoint of S3 that the environment names, as opendal finds it.
pub(super) fn endpoint_of_environment() -> Option<String> {
    let variable = |name| std::env::var(name).ok().filter(|text: &String| !text.is_empty());
    ["AWS_ENDPOINT_URL", "AWS_ENDPOINT", "AWS_S3_ENDPOINT"].into_iter().find_map(variable)
}

/// As opendal makes it.
fn bucket_url(target: &Target, endpoint: Option<&String>, region: &str) -> String {
    let mut endpoint = endpoint.cloned().or_else(endpoint_of_environment).unwrap_or_else(|| AMAZON.to_owned());
    if !endpoint.starts_with("http") {
        endpoint = format!("https://{endpoint}");
    }
    let bucket = &target.container;
    let mut endpoint = endpoint.trim_end_matches('/').replace(&format!("//{bucket}."), "//");
    if endpoint == AMAZON {
        endpoint = format!("https://s3.{region}.amazonaws.com");
    }
    match target.virtual_host {
        true => endpoint.replace("//", &format!("//{bucket}.")),
        false => format!("{endpoint}/{bucket}"),
    }
}

/// A value as it stands in a query.
pub(super) fn encoded_value(value: &str) -> String {
    encoded(value).replace('/', "%2F")
}

/// A key as it stands in a URL: what is not plain is percent-encoded, once.
fn encoded(key: &str) -> String {
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~/".contains(byte);
    key.bytes()
        .map(|byte| if is_plain(&byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_go_where_those_of_opendal_go() {
        let url = |text: &str| {
            let target = Target::parse(text).unwrap();
            bucket_url(&target, target.endpoints.first(), "eu-1")
        };
        for (text, expected) in [
            ("s3://b/p", "https://s3.eu-1.amazonaws.com/b"),
            ("s3://b?virtual-host=true", "https://b.s3.eu-1.amazonaws.com"),
            ("s3://b?endpoint=http://127.0.0.1:9000/", "http://127.0.0.1:9000/b"),
            ("s3://b?endpoint=https://host&virtual-host=true", "https://b.host"),
            ("s3://b?endpoint=https://b.host&virtual-host=true", "https://b.host"),
        ] {
            assert_eq!(url(text), expected);
        }
        assert_eq!(encoded("a/b c+d=é.phw"), "a/b%20c%2Bd%3D%C3%A9.phw");
    }
}
