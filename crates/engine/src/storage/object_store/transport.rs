//! The way of a request: when it is sent, to which endpoint of the store, with a signature for it; and whether its answer comes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use http::uri::{Authority, Parts};
use http::{Request, Response, Uri, header};
use opendal::{Buffer, ErrorKind as Answer, HttpBody, HttpTransport};
use opendal_http_transport_reqwest::ReqwestTransport;
use reqsign_aws_v4::Credential;
use reqsign_core::Signer;

use super::traffic::Traffic;

/// Requests that bring or ask for more than this wait for their turn.
const LARGE_BYTES: usize = 256 * 1024;
/// What an answer must bring within the time-out. Without it, one whose bytes drip would be waited for as long as it drips: each
/// of them is a sign of life.
const LEAST_BYTES: usize = 16 * 1024;

/// Sends requests to one store.
pub(super) struct Transport {
    client: ReqwestTransport,
    traffic: Arc<Traffic>,
    /// None where requests arrive signed.
    signer: Option<Signer<Credential>>,
    /// Requests are made for the first. Where there are not two there is nothing to choose.
    endpoints: Vec<Uri>,
    /// In which an answer must bring [`LEAST_BYTES`].
    patience: Duration,
}

impl Transport {
    /// With `endpoints` that are ways to one store. With a signer, requests arrive without signatures.
    pub(super) fn new(
        client: reqwest::Client,
        traffic: Arc<Traffic>,
        signer: Option<Signer<Credential>>,
        endpoints: Vec<Uri>,
        patience: Duration,
    ) -> Self {
        Transport { client: ReqwestTransport::new(client), traffic, signer, endpoints, patience }
    }

    /// The request for the endpoint at `place`.
    async fn addressed(&self, request: Request<Buffer>, place: usize) -> opendal::Result<Request<Buffer>> {
        let [first, _, ..] = self.endpoints.as_slice() else { return Ok(request) };
        let (mut head, body) = request.into_parts();
        let moved = at(&head.uri, first, &self.endpoints[place]);
        head.uri = moved.map_err(|cause| opendal::Error::new(Answer::Unexpected, cause.to_string()))?;
        if let Some(signer) = &self.signer {
            signer.sign(&mut head, None).await.map_err(|cause| {
                let refused = opendal::Error::new(Answer::PermissionDenied, format!("it cannot be signed: {cause}"));
                refused.with_temporary(cause.is_retryable())
            })?;
            // The client writes it, as with opendal's own signatures.
            head.headers.remove(header::HOST);
        }
        Ok(Request::from_parts(head, body))
    }
}

impl HttpTransport for Transport {
    async fn fetch(&self, request: Request<Buffer>) -> opendal::Result<Response<HttpBody>> {
        let is_large = request.body().len() > LARGE_BYTES || request.headers().contains_key(header::RANGE);
        let mut turn = self.traffic.enter(is_large).await;
        let request = self.addressed(request, turn.endpoint()).await?;
        let answer = self.client.fetch(request).await?;
        turn.answered(answer.status());
        let (head, body) = answer.into_parts();
        // It is under way until all of it was read.
        let mut flow = Flow::new(self.patience);
        let looked_at = move |piece: opendal::Result<Buffer>| {
            let _until_here = &turn;
            let piece = piece?;
            if flow.is_drip(piece.len(), Instant::now()) {
                let cause = format!("its answer brought less than {LEAST_BYTES} bytes in {:?}", flow.patience);
                return Err(opendal::Error::new(Answer::Unexpected, cause).set_temporary());
            }
            Ok(piece)
        };
        Ok(Response::from_parts(head, body.map_inner(|pieces| Box::new(pieces.map(looked_at)))))
    }
}

/// How fast an answer comes.
struct Flow {
    patience: Duration,
    since: Instant,
    bytes: usize,
}

impl Flow {
    fn new(patience: Duration) -> Self {
        Flow { patience, since: Instant::now(), bytes: 0 }
    }

    /// Whether it has brought too little for too long, with the piece that comes now.
    fn is_drip(&mut self, piece_bytes: usize, now: Instant) -> bool {
        self.bytes += piece_bytes;
        if now.duration_since(self.since) < self.patience {
            return false;
        }
        let brought = std::mem::take(&mut self.bytes);
        self.since = now;
        brought < LEAST_BYTES
    }
}

/// `uri`, made for the endpoint `first`, for another one. A name before that of the endpoint, a bucket's, stays.
fn at(uri: &Uri, first: &Uri, other: &Uri) -> Result<Uri, http::Error> {
    let text = |uri: &Uri| uri.authority().map(Authority::to_string).unwrap_or_default();
    let own = text(uri);
    let before = own.strip_suffix(&text(first)).filter(|before| before.is_empty() || before.ends_with('.'));
    // What goes elsewhere is none of the store's: somebody who gives credentials, say.
    let Some(before) = before else { return Ok(uri.clone()) };
    let mut parts: Parts = uri.clone().into_parts();
    parts.scheme = other.scheme().cloned();
    parts.authority = Some(format!("{before}{}", text(other)).parse::<Authority>()?);
    Ok(Uri::from_parts(parts)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f23_an_answer_that_drips_is_none_and_one_that_is_slow_is_one() {
        let second = Duration::from_secs(1);
        let mut flow = Flow::new(10 * second);
        let begin = flow.since;
        // In each ten seconds enough, if only just, then one byte less.
        let mut drips = |seconds: u32, bytes| flow.is_drip(bytes, begin + seconds * second);
        assert!(!drips(1, LEAST_BYTES - 1) && !drips(10, 1));
        assert!(!drips(15, LEAST_BYTES / 2) && !drips(20, LEAST_BYTES / 2));
        assert!(!drips(29, LEAST_BYTES - 2) && drips(31, 1));
    }

    #[test]
    fn requests_go_to_another_endpoint_of_the_same_store_and_others_where_they_went() {
        let first: Uri = "https://one.example:9000".parse().unwrap();
        let other: Uri = "http://[::1]:9001".parse().unwrap();
        for (made, sent) in [
            ("https://one.example:9000/b/k?partNumber=1", "http://[::1]:9001/b/k?partNumber=1"),
            ("https://sts.example/token", "https://sts.example/token"),
            ("https://another-one.example:9000/b", "https://another-one.example:9000/b"),
        ] {
            assert_eq!(at(&made.parse().unwrap(), &first, &other).unwrap(), sent);
        }
        let named: Uri = "https://two.example".parse().unwrap();
        assert_eq!(
            at(&"https://bucket.one.example:9000/k".parse().unwrap(), &first, &named).unwrap(),
            "https://bucket.two.example/k"
        );
    }
}
